-- KEYS lock fence queue leases | ARGV token process ticket ttl_ms queued proposal_us former
-- -> time_us granted, with the proposal as fence / {fence, time_us, former} granted /
--    {ms that it can last, holder's token or '', time_us, former} refused
-- former: 1 released / 0 was free / -1 another's / 2 there is none, as where only the time is told
local call = redis.call
local time = call('TIME')
local now, former = time[1] * 1000000 + time[2], 2
if ARGV[7] ~= '' then
  local holder = call('GET', KEYS[1])
  former = not holder and 0 or holder ~= ARGV[7] and -1 or call('DEL', KEYS[1])
end

local function grant()
  local last, proposal = tonumber(call('GET', KEYS[2]) or 0), tonumber(ARGV[6])
  call('PSETEX', KEYS[1], ARGV[4], ARGV[1])
  local fence = math.max(last + 1, now - SLACK)
  if proposal < fence or proposal > now + SLACK then
    call('PSETEX', KEYS[2], FENCE_TTL, string.format('%.0f', fence)) -- tostring loses digits
    return {fence, now, former}
  end
  call('PSETEX', KEYS[2], FENCE_TTL, ARGV[6])
  return former == 2 and now or {proposal, now, former}
end

-- Mostly nobody waits, and the key is free.
if call('EXISTS', KEYS[1], KEYS[3]) == 0 then
  return grant()
end

-- queue.lua

local holder = call('GET', LOCK)
if holder == token then
  return {tonumber(call('GET', KEYS[2])) or 0, now, former} -- the command came twice
end
local left
if holder then
  left = call('PTTL', LOCK)
else
  local name, number, ends
  repeat -- until nobody is before us, or one is who has heard it
    name, number, ends = oldest(process, now)
    if not name or number > ticket or number == ticket and name > process then
      leave(process)
      return grant()
    end
  until wake(name, number)
  left = math.ceil((ends - now) / 1000)
end
if queued then
  join(now)
end
return {left, holder or '', now, former}
