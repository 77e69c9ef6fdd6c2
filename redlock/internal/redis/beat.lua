-- KEYS told turns ends kinds | ARGV id number life_ms kind since about turns shown_us ttl_ms asked
-- -> {time_us, mark_us, born_us, 1 if another process of this kind locks, a line for each process of another kind: its id, how many
-- ms ago it told of itself, the number of that beat, since when it locks, what it says about itself}
-- A process is forgotten when its life has passed since it told of itself last: ends says when. Kinds are those of all processes: while
-- there is one, nobody else has to be read. A field for a kind says until when one that locks is remembered. The server remembers since
-- it was born: after a loss of its data, of which it knows nothing, it is born again. The mark is the latest time that the clock
-- of this server has shown while it was right. Turns are a line for each key that the process has held, or waited for, for long, the
-- key's hash first.
local time = call('TIME')
local us = time[1] * 1000000 + time[2]
local now = math.floor(us / 1000)
local id, kind, since = ARGV[1], ARGV[4], tonumber(ARGV[5])
local ends, locks = string.format('%.0f', now + ARGV[3]), 'locks ' .. kind

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

local former, locked = string.match(call('HGET', KEYS[1], id) or '', '^%d+ (%d+) (%S+)')
locked = locked and tonumber(locked) > 0
local shared = not locked and tonumber(call('HGET', KEYS[1], locks) or 0) > now
if not former or tonumber(former) < tonumber(ARGV[2]) then -- else it comes late
  call('HSET', KEYS[1], id, string.format('%.0f %s %s %s %s', now, ARGV[2], ARGV[5], kind, ARGV[6]))
  call('ZADD', KEYS[3], ends, id)
  call('ZADD', KEYS[4], ends, kind)
  if since > 0 then
    call('HSET', KEYS[1], locks, ends)
  elseif locked then
    call('HDEL', KEYS[1], locks) -- others that lock say so with their next beat
  end
  if ARGV[7] ~= '' then
    call('HSET', KEYS[2], id, ARGV[7])
  else
    call('HDEL', KEYS[2], id)
  end
end

for _, gone in ipairs(call('ZRANGE', KEYS[3], '-inf', now, 'BYSCORE', 'LIMIT', 0, 10)) do
  call('ZREM', KEYS[3], gone)
  call('HDEL', KEYS[1], gone)
  call('HDEL', KEYS[2], gone)
end
for _, key in ipairs(KEYS) do
  if call('PTTL', key) < ARGV[9] / 2 then
    call('PEXPIRE', key, ARGV[9])
  end
end

local function read(other)
  local told, number, since, its, about = string.match(call('HGET', KEYS[1], other) or '', '^(%d+) (%d+) (%S+) (%S+) (.*)$')
  return told and string.format('%s %.0f %s %s %s', other, math.max(0, now - told), number, since, about), its, since
end

local lines, rest, seen = {}, {}, {}
local kinds = call('ZRANGE', KEYS[4], 0, -1)
local mixed = #kinds > 1 or kinds[1] ~= kind
for _, other in ipairs(mixed and call('ZRANGE', KEYS[3], 0, -1) or {}) do
  local line, its, since = read(other)
  seen[its or ''] = true
  if line and its ~= kind then
    local to = since == '-1' and rest or lines
    to[#to + 1] = line
  end
end
for _, its in ipairs(mixed and kinds or {}) do
  if not seen[its] then
    call('ZREM', KEYS[4], its)
    call('HDEL', KEYS[1], 'locks ' .. its)
  end
end
for i = 1, #rest do
  lines[#lines + 1] = rest[i]
end
for i = MAX_OTHERS + 1, #lines do
  lines[i] = nil
end
for other in string.gmatch(ARGV[10], '%S+') do
  local line, its = read(other)
  if line and its == kind then
    lines[#lines + 1] = line
  end
end
return {us, tonumber(mark), tonumber(born), shared and 1 or 0, table.concat(lines, '\n')}
