-- KEYS lock fence queue leases [result] | ARGV token process ticket ttl_ms waits [keep_ms fence result anyway, or slots]
-- -> 1 released / 0 the key was free / -1 another token has the key
-- waits: 1 to stay in the queue; + 2 if this server is the leader of the slots
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
  if type(timed) == 'table' then -- the user lacks the right: no result without a TTL may be left
    call('DEL', KEYS[5])
    return timed
  end
end

SLOTS = not KEYS[5] and tonumber(ARGV[6]) or 1

-- Mostly no process waits.
if ARGV[5] == '0' and SLOTS == 1 and call('EXISTS', KEYS[3], string.sub(KEYS[3], 1, -6) .. 'slots') == 0 then
  return released
end

-- queue.lua
-- slots.lua

local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local at = tonumber(call('ZSCORE', QUEUE, process))
if queued then
  if SLOTS > 1 then
    forgo(process, now)
  end
  join(now)
elseif SLOTS > 1 and ticket > 0 and (at or ticket) <= ticket then
  forgo(process, now)
elseif at and at <= ticket then
  leave(process)
end
local watched = SLOTS > 1 or call('EXISTS', FREE) == 1
if watched and released == 1 then
  note(SLOT, 0)
end
if SLOT == 0 and SLOTS == 1 and not held then
  local name, number
  repeat -- a process doesn't wake itself
    name, number = oldest('', now)
  until not name or name == process or isCall(name) or wake(name, number)
end
if watched and (SLOTS == 1 or ARGV[5] % 4 >= 2) then
  offer(now)
end
return released
