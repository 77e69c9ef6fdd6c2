-- KEYS told turns ends kinds | ARGV id number life_ms kind since about turns shown_us asks knew_us
-- -> {time_us, mark_us, born_us, a line for one other process of each kind, and for each process asked for: its id, how many ms ago its
-- last beat came, the number of that beat, the time since which it locks, its about}
-- Of each kind, the reply has the process that has locked for longest, one that is about to lock, and one that does neither: kinds is in
-- this order. The server forgets a process when its life has passed since its last beat: ends has these times. born is the beginning of
-- the server's memory. If the server loses its data, it doesn't notice, and born is set again. A process that knew the server earlier sends
-- the earlier born, and the server then notes the present born as lost. mark is the latest time that this server's clock has shown while
-- it was right. Turns has a line for each key that calls of the process have held, or waited for, for long; a line begins with the key's hash.
-- born.lua
local now = math.floor(us / 1000)
local id, kind = ARGV[1], ARGV[4]

local function read(id)
  return string.match(call('HGET', KEYS[1], id) or '', '^(%d+) (%d+) (%S+) (%S+) (.*)$')
end

local function place(since, kind, id)
  since = tonumber(since)
  return string.format('%d %s %016.0f %s', since > 0 and 0 or since == 0 and 1 or 2, kind, math.max(0, since), id)
end

-- Bound to the beginning: otherwise Lua would try a match anew at each character of a long kind.
local function whose(place)
  return string.match(place, '^%d %S+ %d+ (.*)$')
end

if ARGV[10] ~= '0' and ARGV[10] ~= born then
  call('HSET', KEYS[1], 'lost', born)
end
local mark = call('HGET', KEYS[1], 'mark') or '0'
if tonumber(ARGV[8]) > tonumber(mark) then
  mark = ARGV[8]
  call('HSET', KEYS[1], 'mark', mark)
end

local _, number, since, its = read(id)
if not number or tonumber(number) < tonumber(ARGV[2]) then -- otherwise the beat is late
  call('HSET', KEYS[1], id, string.format('%.0f %s %s %s %s', now, ARGV[2], ARGV[5], kind, ARGV[6]))
  call('ZADD', KEYS[3], string.format('%.0f', now + ARGV[3]), id)
  local new, former = place(ARGV[5], kind, id), number and place(since, its, id)
  if new ~= former then
    call('ZADD', KEYS[4], 0, new)
    if former then
      call('ZREM', KEYS[4], former)
    end
  end
  if ARGV[7] ~= '' then
    call('HSET', KEYS[2], id, ARGV[7])
  else
    call('HDEL', KEYS[2], id)
  end
end

for _, gone in ipairs(call('ZRANGE', KEYS[3], '-inf', now, 'BYSCORE', 'LIMIT', 0, 10)) do
  local _, _, since, its = read(gone)
  if its then
    call('ZREM', KEYS[4], place(since, its, gone))
  end
  call('ZREM', KEYS[3], gone)
  call('HDEL', KEYS[1], gone)
  call('HDEL', KEYS[2], gone)
end
for _, key in ipairs(KEYS) do
  local left = call('PTTL', key)
  if left > -2 and left < BEAT_MEMORY / 2 then
    call('PEXPIRE', key, BEAT_MEMORY)
  end
end

local named, from = {}, '-'
while #named < MAX_OTHERS do
  local first, second = unpack(call('ZRANGE', KEYS[4], from, '+', 'BYLEX', 'LIMIT', 0, 2))
  if not first then
    break
  end
  local its = string.match(first, '^%d %S+ ')
  if whose(first) == id then
    first = second or ''
  end
  if string.sub(first, 1, #its) == its then
    named[#named + 1] = whose(first)
  end
  from = '(' .. its .. '~' -- the next kind
end
for other in string.gmatch(ARGV[9], '%S+') do
  named[#named + 1] = other
end
-- If the clock was set back, earlier beats would be remembered for longer, so they count as sent now.
local function age()
  for _, other in ipairs(call('ZRANGE', KEYS[3], 0, -1)) do
    local told, number, since, its, about = read(other)
    if told and told - now > 1000 then
      call('HSET', KEYS[1], other, string.format('%.0f %s %s %s %s', now, number, since, its, about))
      call('ZADD', KEYS[3], 'INCR', string.format('%.0f', now - told), other)
    end
  end
end

local lines, ahead = {}, false
for _, other in ipairs(named) do
  local told, number, since, _, about = read(other)
  if told then
    ahead = ahead or told - now > 1000
    lines[#lines + 1] = string.format('%s %.0f %s %s %s', other, math.max(0, now - told), number, since, about)
  end
end
if ahead then
  age()
end
return {us, tonumber(mark), tonumber(born), table.concat(lines, '\n')}
