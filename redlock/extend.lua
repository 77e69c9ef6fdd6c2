-- KEYS lock fence queue leases | ARGV token process ticket ttl_ms queued fence refill_until_us
-- -> {1 held by the token now / 0 free / -1 another's, time_us}
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
elseif holder then
  return {-1, now}
elseif now < tonumber(ARGV[7]) then -- the lease is valid and this master lacks the key
  redis.call('PSETEX', KEYS[1], ARGV[4], ARGV[1])
else
  return {0, now}
end
if tonumber(ARGV[6]) > (tonumber(redis.call('GET', KEYS[2])) or 0) then
  redis.call('PSETEX', KEYS[2], FENCE_TTL, ARGV[6])
end
return {1, now}
