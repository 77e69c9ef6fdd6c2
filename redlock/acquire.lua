-- KEYS lock fence queue leases | ARGV token process ticket ttl_ms queued told proposal_us fence_ttl_ms slack_us former
-- -> {fence, time_us, former} granted / {ms that it can last, holder's token or '', time_us, former} refused
-- former: 1 released / 0 was free / -1 another's / 2 there is none
local now, former = clock(), 2
if ARGV[10] ~= '' then
  local holder = redis.call('GET', LOCK)
  former = not holder and 0 or holder ~= ARGV[10] and -1 or redis.call('DEL', LOCK)
end

-- Mostly the proposal is right: it is stored at once, and mended where it isn't.
local function granted()
  local proposal, slack = tonumber(ARGV[7]), tonumber(ARGV[9])
  local last = tonumber(redis.call('SET', KEYS[2], ARGV[7], 'PX', ARGV[8], 'GET')) or 0
  local fence = math.max(last + 1, now - slack)
  if proposal > fence and proposal <= now + slack then
    return {proposal, now, former}
  end
  redis.call('SET', KEYS[2], string.format('%.0f', fence), 'PX', ARGV[8]) -- tostring loses digits
  return {fence, now, former}
end

local waiters = redis.call('EXISTS', QUEUE) == 1
if not waiters and redis.call('SET', LOCK, token, 'NX', 'PX', ARGV[4]) then
  return granted()
end
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
