-- KEYS, ARGV and answer as for release.lua; ARGV[6] is the name of whoever releases the lock. For the TTL, extend.lua refuses this token.
redis.call('SET', KEYS[1] .. ':forced:' .. ARGV[1], ARGV[6], 'PX', ARGV[4])
ARGV[6] = nil
-- release.lua
