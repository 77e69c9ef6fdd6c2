-- KEYS - - processes since | ARGV IDs, or empty for all
-- -> a line for each of these processes that is known: its ID, its name, how many ms ago it was seen, what it says about itself
-- and its set. Of a process that says nothing, the first two.
local time, lines = call('TIME'), {}
local now = time[1] * 1000000 + time[2]
local known = call('ZRANGE', KEYS[3], string.format('(%.0f', now), '+inf', 'BYSCORE', 'LIMIT', 0, MAX_PROCESSES, 'WITHSCORES')
for i = 1, #known, 2 do
  local process, ends = known[i], tonumber(known[i + 1])
  if ARGV[1] == '' or string.find(ARGV[1], string.match(process, '%S+'), 1, true) then
    local about = call('HGET', KEYS[4], process)
    local life = about and string.match(about, ' (%d+) {')
    if life then
      process = string.format('%s %.0f %s', process, math.max(0, math.floor((now - ends) / 1000) + life), about)
    end
    lines[#lines + 1] = process
  end
end
return table.concat(lines, '\n')
