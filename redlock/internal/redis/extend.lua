-- KEYS lock fence queue leases | ARGV token process ticket ttl_ms waits fence refill_until_us
-- -> {1 held by the token now / 0 free / -1 another's / -2 released by force, time_us, for -2 by whom}
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
-- lock.lua
local held = holder()
if held == ARGV[1] then
  call('PEXPIRE', KEYS[1], ARGV[4])
elseif call('EXISTS', KEYS[1] .. ':forced:' .. ARGV[1]) == 1 then -- force.lua
  return {-2, now, call('GET', KEYS[1] .. ':forced:' .. ARGV[1])}
elseif held then
  return {-1, now}
elseif now < tonumber(ARGV[7]) then -- the lease is valid, but this master lacks the key
  call('RPUSH', KEYS[1], ARGV[1] .. '+')
  local timed = redis.pcall('PEXPIRE', KEYS[1], ARGV[4])
  if type(timed) == 'table' then -- denied: no lock may be left without an end
    call('DEL', KEYS[1])
    return timed
  end
else
  return {0, now}
end
if tonumber(ARGV[6]) >= (tonumber(call('GET', KEYS[2])) or 0) then
  call('SET', KEYS[2], ARGV[6], 'PX', FENCE_TTL + math.ceil(math.max(ARGV[6] - now, 0) / 1000))
end
return {1, now}
