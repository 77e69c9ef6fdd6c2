-- KEYS lock fence queue leases | ARGV token process ticket ttl_ms queued
-- -> 1 released / 0 was free / -1 another's
-- lock.lua
local held, released = holder(), 0
if held == ARGV[1] then
  call('DEL', KEYS[1])
  held, released = false, 1
elseif held then
  released = -1
end

-- Mostly nobody waits.
if ARGV[5] == '0' and call('EXISTS', KEYS[3]) == 0 then
  return released
end

-- queue.lua

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
if queued then
  join(now)
elseif (tonumber(call('ZSCORE', QUEUE, process)) or ticket + 1) <= ticket then
  leave(process)
end
if not held then
  local name, number
  repeat -- nobody wakes himself
    name, number = oldest('', now)
  until not name or name == process or wake(name, number)
end
return released
