-- KEYS lock fence queue leases | ARGV token process ticket ttl_ms queued proposal_us former
-- -> {fence, time_us, former} granted / {ms that it can last, holder's token or '', time_us, former} refused
-- former: 1 released / 0 was free / -1 another's / 2 there is none
local time = redis.call('TIME')
local now, former = time[1] * 1000000 + time[2], 2
if ARGV[7] ~= '' then
  local holder = redis.call('GET', KEYS[1])
  former = not holder and 0 or holder ~= ARGV[7] and -1 or redis.call('DEL', KEYS[1])
end

-- Mostly the proposal is right: it is stored at once, and mended where it isn't.
local function granted()
  local last = tonumber(redis.call('SET', KEYS[2], ARGV[6], 'PX', FENCE_TTL, 'GET')) or 0
  local proposal, fence = tonumber(ARGV[6]), math.max(last + 1, now - SLACK)
  if proposal > fence and proposal <= now + SLACK then
    return {proposal, now, former}
  end
  redis.call('SET', KEYS[2], string.format('%.0f', fence), 'PX', FENCE_TTL) -- tostring loses digits
  return {fence, now, former}
end

-- Mostly nobody waits, and the key is free.
if redis.call('EXISTS', KEYS[3]) == 0 and redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[4]) then
  return granted()
end

-- queue.lua

local holder = redis.call('GET', LOCK)
if holder == token then
  return {tonumber(redis.call('GET', KEYS[2])) or 0, now, former} -- the command came twice
end
local left
if holder then
  left = redis.call('PTTL', LOCK)
else
  local name, number, ends
  repeat -- until nobody is before us, or one is who has heard it
    name, number, ends = oldest(process, now)
    if not name or number > ticket or number == ticket and name > process then
      leave(process)
      redis.call('SET', LOCK, token, 'PX', ARGV[4])
      return granted()
    end
  until wake(name, number)
  left = math.ceil((ends - now) / 1000)
end
if queued then
  join(now)
end
return {left, holder or '', now, former}
