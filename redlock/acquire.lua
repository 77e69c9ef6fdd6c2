-- KEYS lock fence queue leases | ARGV token process ticket ttl_ms queued proposal_us [former]
-- -> time_us granted, with the proposal as fence, and nobody waits / {fence, time_us, former} granted /
--    {ms that it can last, holder's token or '', time_us, former} refused
-- former: 1 released / 0 was free / -1 another's / 2 there is none
local time = call('TIME')
local now, proposal = time[1] * 1000000 + time[2], tonumber(ARGV[6])

-- lock.lua

-- Stores the fence and gives it.
local function fence()
  local last = tonumber(call('SET', KEYS[2], ARGV[6], 'PX', FENCE_TTL, 'GET') or 0)
  local least = math.max(last + 1, now - SLACK)
  if proposal >= least and proposal <= now + SLACK then
    return proposal
  end
  call('SET', KEYS[2], string.format('%.0f', least), 'PX', FENCE_TTL) -- tostring loses digits
  return least
end

local former = 2
if ARGV[7] then
  local held = holder()
  former = not held and 0 or held ~= ARGV[7] and -1 or call('DEL', KEYS[1])
end

-- Mostly nobody waits, and the key is free.
if call('EXISTS', KEYS[1], KEYS[3]) == 0 then
  local granted = fence()
  hold(ARGV[1])
  return former == 2 and granted == proposal and now or {granted, now, former}
end

-- queue.lua

local held, left = holder()
if held == token then
  return {tonumber(call('GET', KEYS[2])) or 0, now, former} -- the command came twice
elseif held then
  left = call('PTTL', LOCK)
else
  local name, number, ends
  repeat -- until nobody is before us, or one is who has heard it
    name, number, ends = oldest(process, now)
    if not name or number > ticket or number == ticket and name > process then
      leave(process)
      local granted = fence()
      hold(token .. '+')
      return {granted, now, former}
    end
  until wake(name, number)
  left = math.ceil((ends - now) / 1000)
end
if queued then
  join(now)
end
return {left, held or '', now, former}
