-- KEYS lock | ARGV token -> 1 released / 0 was free / -1 another's
local holder = redis.call('GET', KEYS[1])
if not holder then
  return 0
end
if holder ~= ARGV[1] then
  return -1
end
redis.call('DEL', KEYS[1])
return 1
