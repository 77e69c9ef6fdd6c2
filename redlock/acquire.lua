-- KEYS lock | ARGV token ttl_ms -> 1 granted / {holder's remaining ms, holder's token}
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return 1
end
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then -- the command came twice
  return 1
end
return {redis.call('PTTL', KEYS[1]), holder}
