-- KEYS lock fence | ARGV token ttl_ms proposal_us fence_ttl_ms slack_us
-- -> {fence, time_us} granted / {holder's remaining ms, holder's token, time_us}
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  local holder = redis.call('GET', KEYS[1])
  if holder ~= ARGV[1] then
    return {redis.call('PTTL', KEYS[1]), holder, now}
  end
  return {tonumber(redis.call('GET', KEYS[2])) or 0, now} -- the command came twice
end
-- Mostly the proposal is right: it is stored at once, and mended where it isn't.
local proposal, slack = tonumber(ARGV[3]), tonumber(ARGV[5])
local last = tonumber(redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4], 'GET')) or 0
local fence = math.max(last + 1, now - slack)
if proposal > fence and proposal <= now + slack then
  return {proposal, now}
end
redis.call('SET', KEYS[2], string.format('%.0f', fence), 'PX', ARGV[4]) -- tostring loses digits
return {fence, now}
