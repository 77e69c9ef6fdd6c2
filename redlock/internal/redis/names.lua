-- KEYS told turns ends kinds | ARGV IDs, or empty for all; the hash of a key, or empty
-- -> {a line for each of these processes that is known: its ID, how many ms ago its last beat came, the number of that beat, the time
-- since which it locks, its about; a line for each process with a turn on the key: its ID, the turn}
local time, lines, turns = call('TIME'), {}, {}
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, id in ipairs(call('ZRANGE', KEYS[3], string.format('(%.0f', now), '+inf', 'BYSCORE', 'LIMIT', 0, MAX_PROCESSES)) do
  local told, number, since, about = string.match(call('HGET', KEYS[1], id) or '', '^(%d+) (%d+) (%S+) %S+ (.*)$')
  if told and (ARGV[1] == '' or string.find(ARGV[1], id, 1, true)) then
    lines[#lines + 1] = string.format('%s %.0f %s %s %s', id, math.max(0, now - told), number, since, about)
    local all = ARGV[2] ~= '' and call('HGET', KEYS[2], id)
    local turn = all and string.match('\n' .. all, '\n' .. ARGV[2] .. ' ([^\n]*)')
    if turn then
      turns[#turns + 1] = id .. ' ' .. turn
    end
  end
end
return {table.concat(lines, '\n'), table.concat(turns, '\n')}
