-- KEYS - turns processes since | ARGV IDs, or empty for all; the hash of a key, or empty
-- -> {a line for each of these processes that is known: its ID, its name, how many ms ago it was seen, what it says about itself
-- and its set, and of a process that says nothing the first two; a line for each that tells of a turn on the key: its ID, the turn}
local time, lines, turns = call('TIME'), {}, {}
local now = time[1] * 1000000 + time[2]
local known = call('ZRANGE', KEYS[3], string.format('(%.0f', now), '+inf', 'BYSCORE', 'LIMIT', 0, MAX_PROCESSES, 'WITHSCORES')
for i = 1, #known, 2 do
  local process, ends = known[i], tonumber(known[i + 1])
  local id = string.match(process, '%S+')
  if ARGV[1] == '' or string.find(ARGV[1], id, 1, true) then
    local about = call('HGET', KEYS[4], process)
    local life = about and string.match(about, ' (%d+) {')
    local line = process
    if life then
      line = string.format('%s %.0f %s', process, math.max(0, math.floor((now - ends) / 1000) + life), about)
    end
    lines[#lines + 1] = line
    local told = ARGV[2] ~= '' and call('HGET', KEYS[2], process)
    local turn = told and string.match('\n' .. told, '\n' .. ARGV[2] .. ' ([^\n]*)')
    if turn then
      turns[#turns + 1] = id .. ' ' .. turn
    end
  end
end
return {table.concat(lines, '\n'), table.concat(turns, '\n')}
