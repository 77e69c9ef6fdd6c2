-- KEYS lock fence queue leases [result] | ARGV token process ticket ttl_ms waits [keep_ms fence result anyway, or slots]
-- -> 1 released / 0 was free / -1 another's
-- waits: 1 to stay in the queue, + 2 for a process that polls
-- lock.lua
local held, released = holder(), 0
if held == ARGV[1] then
  call('LPOP', KEYS[1])
  held, released = false, 1
elseif held then
  released = -1
end
if KEYS[5] and (released == 1 or ARGV[9] == '1') and (tonumber(call('HGET', KEYS[5], 'fence')) or 0) < tonumber(ARGV[7]) then
  call('HSET', KEYS[5], 'fence', ARGV[7], 'data', ARGV[8])
  local timed = redis.pcall('PEXPIRE', KEYS[5], ARGV[6])
  if type(timed) == 'table' then -- denied: no result may be left without an end
    call('DEL', KEYS[5])
    return timed
  end
end

-- Mostly nobody waits.
if ARGV[5] == '0' and call('EXISTS', KEYS[3]) == 0 then
  return released
end

-- queue.lua

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local idle = false -- nothing has become free, and nobody goes on: those that wait would wake each other in turns
if queued then
  SLOTS = not KEYS[5] and tonumber(ARGV[6]) or 1
  idle = SLOTS > 1 and released == 0
  join(now)
elseif (tonumber(call('ZSCORE', QUEUE, process)) or ticket + 1) <= ticket then
  leave(process)
  SLOTS = not KEYS[5] and tonumber(ARGV[6]) or 1
end
local name
if not held and not idle then
  local skip, number, ends, polls = 0
  repeat -- a process doesn't wake itself; one that polls comes by itself, and the next one finds out if it doesn't
    skip = polls and skip + 1 or skip
    name, number, ends, polls, skip = oldest('', now, skip)
  until not name or name == process or not polls and wake(name, number)
end
if SLOTS > 1 and not queued and not name then -- others may have been refused a further slot because of the ticket
  -- others.lua
  wakeForAnother(now)
end
return released
