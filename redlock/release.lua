-- KEYS lock fence queue leases | ARGV token process ticket ttl_ms queued told
-- -> 1 released / 0 was free / -1 another's
local holder, released = redis.call('GET', LOCK), 0
if holder == token then
  redis.call('DEL', LOCK)
  holder, released = false, 1
elseif holder then
  released = -1
end
if not queued and redis.call('EXISTS', QUEUE) == 0 then
  return released
end
local now = clock()
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
