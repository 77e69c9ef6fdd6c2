-- KEYS lock fence queue leases result | ARGV token process ticket ttl_ms waits keep_ms fence result anyway
-- -> 1 this result is remembered, or a later one / 0 the key was free / -1 another token has the key
-- lock.lua
local held = holder()
if held ~= ARGV[1] and ARGV[9] ~= '1' then
  return held and -1 or 0
end
if (tonumber(call('HGET', KEYS[5], 'fence')) or 0) < tonumber(ARGV[7]) then
  call('HSET', KEYS[5], 'fence', ARGV[7], 'data', ARGV[8])
  local timed = redis.pcall('PEXPIRE', KEYS[5], ARGV[6])
  if type(timed) == 'table' then -- the user lacks the right: no result without a TTL may be left
    call('DEL', KEYS[5])
    return timed
  end
end
return 1
