-- KEYS - - processes - | ARGV IDs
-- -> a line for each of these processes that is known: its ID and its name
local time, lines = call('TIME'), {}
for _, process in ipairs(call('ZRANGE', KEYS[3], string.format('(%.0f', time[1] * 1000000 + time[2]), '+inf', 'BYSCORE')) do
  if string.find(ARGV[1], string.match(process, '%S+'), 1, true) then
    lines[#lines + 1] = process
  end
end
return table.concat(lines, '\n')
