-- KEYS, ARGV and answer as of release.lua, with who released it as ARGV[6]. For the TTL, extend.lua refuses this token.
redis.call('SET', KEYS[1] .. ':forced:' .. ARGV[1], ARGV[6], 'PX', ARGV[4])
ARGV[6] = nil
-- release.lua
