-- KEYS, ARGV and answer as for release.lua. ARGV[6] is the name of whoever releases the lock. extend.lua refuses this token until the TTL is over.
redis.call('SET', KEYS[1] .. ':forced:' .. ARGV[1], ARGV[6], 'PX', ARGV[4])
ARGV[6] = nil
-- release.lua
