-- KEYS sets turns processes since | ARGV set process shown_us ttl_ms - age_us former about turns
-- -> {time_us, mark_us, born_us, a line for each set: since when it is in use and when it was seen last, in us, and the set,
-- a line for each other set whose process is known: the name of that which has registered it last, and the set}
-- A set begins with the ms after which it is forgotten. It takes the place of the former one of this process. It has been in use
-- for the age, and for longer if this server says so. The server remembers sets since it was born: after a loss of its data, of
-- which it knows nothing, it is born again. The mark is the latest time that the clock of this server has shown while it was
-- right. That is known to processes that have compared it with other clocks: shown_us, or 0. A process is its ID and its name, or
-- empty; it is forgotten with its set, and with what names.lua tells about it: turns are
-- a line for each key that it has held, or waited for, for long, the key's hash first.
local time = call('TIME')
local now, mark = time[1] * 1000000 + time[2], 0
local own, former, lines, others = ARGV[1], ARGV[7], {}, {}
local function put(set, at)
  call('ZADD', KEYS[1], string.format('%.0f', at), set)
end

local function ends(set, seen)
  return seen + string.match(set, '^%d+') * 1000
end

local function drop(set)
  call('ZREM', KEYS[1], set)
  call('HDEL', KEYS[4], set, 'by ' .. set)
end

local born = call('HGET', KEYS[4], 'born')
if not born then
  born = string.format('%.0f', now)
  call('HSET', KEYS[4], 'born', born)
end
if former ~= '' and former ~= own then
  drop(former)
end
local last = tonumber(call('ZSCORE', KEYS[1], own) or 0)
if last > 0 or #call('ZRANGE', KEYS[1], 0, -1) < MAX_SETS then
  local since = tonumber(call('HGET', KEYS[4], own) or now)
  if ends(own, last) < now then
    since = now
  end
  call('HSET', KEYS[4], own, string.format('%.0f', math.min(since, now - ARGV[6])))
  put(own, now)
end
local sets = call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 1, #sets, 2 do
  local set, seen = sets[i], tonumber(sets[i + 1])
  if set == 'mark' then
    mark = seen
  elseif ends(set, seen) < now then
    drop(set)
  else
    lines[#lines + 1] = string.format('%s %.0f %s', call('HGET', KEYS[4], set) or 0, seen, set)
    local by = set ~= own and call('HGET', KEYS[4], 'by ' .. set)
    if by then
      others[#others + 1] = by .. ' ' .. set
    end
  end
end
local shown = tonumber(ARGV[3])
if shown > mark then
  put('mark', shown)
  mark = shown
end
if ARGV[2] ~= '' then
  call('ZADD', KEYS[3], string.format('%.0f', ends(own, now)), ARGV[2])
  call('HSET', KEYS[4], ARGV[2], ARGV[8] .. ' ' .. own)
  if ARGV[9] ~= '' then
    call('HSET', KEYS[2], ARGV[2], ARGV[9])
    call('PEXPIRE', KEYS[2], ARGV[4])
  else
    call('HDEL', KEYS[2], ARGV[2])
  end
  if call('ZSCORE', KEYS[1], own) then
    call('HSET', KEYS[4], 'by ' .. own, string.match(ARGV[2], '%S+$'))
  end
  local gone = call('ZRANGE', KEYS[3], 0, 9, 'WITHSCORES')
  for i = 1, #gone, 2 do
    if tonumber(gone[i + 1]) <= now then
      call('ZREM', KEYS[3], gone[i])
      call('HDEL', KEYS[4], gone[i])
      call('HDEL', KEYS[2], gone[i])
    end
  end
  if call('PTTL', KEYS[3]) < ARGV[4] / 2 then
    call('PEXPIRE', KEYS[3], ARGV[4])
  end
end
if call('PTTL', KEYS[1]) < ARGV[4] / 2 then
  call('PEXPIRE', KEYS[1], ARGV[4])
  call('PEXPIRE', KEYS[4], ARGV[4])
end
return {now, mark, tonumber(born), table.concat(lines, '\n'), table.concat(others, '\n')}
