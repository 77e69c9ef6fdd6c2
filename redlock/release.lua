-- KEYS lock fence queue leases | ARGV token process ticket ttl_ms queued
-- -> 1 released / 0 was free / -1 another's
local holder, released = redis.call('GET', KEYS[1]), 0
if holder == ARGV[1] then
  redis.call('DEL', KEYS[1])
  holder, released = false, 1
elseif holder then
  released = -1
end

-- Mostly nobody waits.
if ARGV[5] == '0' and redis.call('EXISTS', KEYS[3]) == 0 then
  return released
end

-- queue.lua

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if queued then
  join(now)
elseif (tonumber(redis.call('ZSCORE', QUEUE, process)) or ticket + 1) <= ticket then
  leave(process)
end
if not holder then
  local name, number
  repeat -- nobody wakes himself
    name, number = oldest('', now)
  until not name or name == process or wake(name, number)
end
return released
