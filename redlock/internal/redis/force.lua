-- KEYS, ARGV and reply as for release.lua, except that ARGV[6] is the name of the operator. extend.lua refuses this token for the TTL.
redis.call('SET', KEYS[1] .. ':forced:' .. ARGV[1], ARGV[6], 'PX', ARGV[4])
ARGV[6] = nil
-- release.lua
