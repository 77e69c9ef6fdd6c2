-- KEYS told turns ends kinds | ARGV id number life_ms kind since about turns shown_us ttl_ms asks
-- -> {time_us, mark_us, born_us, 1 if another process of this kind locks, a line for each process of another kind, and for those asked
-- for: its id, how many ms ago it told of itself, the number of that beat, since when it locks, what it says about itself}
-- A process is forgotten when its life has passed since it told of itself last: ends says when. Kinds has all by whether they lock and by
-- their kinds, so that those of one kind needn't be read. The server remembers since it was born: after a loss of its data, of which it
-- knows nothing, it is born again. The mark is the latest time that the clock of this server has shown while it was right. Turns are a
-- line for each key that the process has held, or waited for, for long, the key's hash first.
local time = call('TIME')
local us = time[1] * 1000000 + time[2]
local now = math.floor(us / 1000)
local id, kind = ARGV[1], ARGV[4]

local function read(id)
  return string.match(call('HGET', KEYS[1], id) or '', '^(%d+) (%d+) (%S+) (%S+) (.*)$')
end

local function place(since, kind, id)
  since = tonumber(since)
  return string.format('%d %s %s', since > 0 and 0 or since == 0 and 1 or 2, kind, id)
end

local function range(from, to, most)
  return call('ZRANGE', KEYS[4], from, to, 'BYLEX', 'LIMIT', 0, most)
end

local born = call('HGET', KEYS[1], 'born')
if not born then
  born = string.format('%.0f', us)
  call('HSET', KEYS[1], 'born', born)
end
local mark = call('HGET', KEYS[1], 'mark') or '0'
if tonumber(ARGV[8]) > tonumber(mark) then
  mark = ARGV[8]
  call('HSET', KEYS[1], 'mark', mark)
end

local _, number, since, its = read(id)
if not number or tonumber(number) < tonumber(ARGV[2]) then -- else it comes late
  if number then
    call('ZREM', KEYS[4], place(since, its, id))
  end
  call('HSET', KEYS[1], id, string.format('%.0f %s %s %s %s', now, ARGV[2], ARGV[5], kind, ARGV[6]))
  call('ZADD', KEYS[3], string.format('%.0f', now + ARGV[3]), id)
  call('ZADD', KEYS[4], 0, place(ARGV[5], kind, id))
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
  if call('PTTL', key) < ARGV[9] / 2 then
    call('PEXPIRE', key, ARGV[9])
  end
end

local lines = {}
local function add(other, same)
  local told, number, since, its, about = read(other)
  if told and (its == kind) == same then
    lines[#lines + 1] = string.format('%s %.0f %s %s %s', other, math.max(0, now - told), number, since, about)
  end
end
for class = 0, 2 do -- those that lock, that are about to, and the rest
  local own = string.format('(%d %s', class, kind)
  for _, part in ipairs({{string.format('[%d ', class), own .. ' '}, {own .. '!', string.format('(%d!', class)}}) do
    for _, other in ipairs(range(part[1], part[2], MAX_OTHERS - #lines)) do
      add(string.match(other, '^%d %S+ (%S+)'), false)
    end
  end
end
for other in string.gmatch(ARGV[10], '%S+') do
  add(other, true)
end
local shared = 0
for _, other in ipairs(range('(0 ' .. kind .. ' ', '(0 ' .. kind .. '!', 2)) do
  if other ~= '0 ' .. kind .. ' ' .. id then
    shared = 1
  end
end
return {us, tonumber(mark), tonumber(born), shared, table.concat(lines, '\n')}
