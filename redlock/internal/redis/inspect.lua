-- KEYS lock fence queue leases result
-- -> {time_us, holder's token or '', ms that the lease can last, fence or 0, a line for each of the first processes in the queue,
--     fence of the result or 0, its bytes, ms that it is remembered}
-- A line has the ticket, and the random end of the process's name.
local time = call('TIME')
-- lock.lua
-- fence.lua
local lines, waiting = {}, call('ZRANGE', KEYS[3], 0, MAX_WAITERS - 1, 'WITHSCORES')
for i = 1, #waiting, 2 do
  local ends = tonumber(call('HGET', KEYS[4], waiting[i])) or 0
  if ends > time[1] * 1000000 + time[2] then
    lines[#lines + 1] = string.format('%.0f %s', waiting[i + 1], string.sub(string.match(waiting[i], '^(.*)#%d+$') or waiting[i], -RANDOM_LEN))
  end
end
local held = holder()
local of, data = call('HGET', KEYS[5], 'fence'), call('HGET', KEYS[5], 'data')
return {time[1] * 1000000 + time[2], held or '', held and math.max(call('PTTL', KEYS[1]), 0) or 0, lastFence(), table.concat(lines, '\n'),
  tonumber(of or 0), data and #data or 0, call('PTTL', KEYS[5])}
