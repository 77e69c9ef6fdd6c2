-- KEYS locks, their fences, their queues | ARGV ttl_ms, and for each lock: token proposal_us
-- -> {time_us, and for each lock that isn't granted with its proposal: its place, and its fence, or 0 if acquire.lua must be called}
local n, time = #KEYS / 3, call('TIME')
local now = time[1] * 1000000 + time[2]
local answer, quiet = {now}, call('EXISTS', unpack(KEYS, n + 1)) == 0
-- take.lua
for i = 1, n do
  local proposal, done, fence = ARGV[2 * i + 1]
  if quiet or call('EXISTS', KEYS[n + i], KEYS[2 * n + i]) == 0 then
    done, fence = pcall(take, KEYS[i], ARGV[2 * i], proposal, ARGV[1], now) -- an error of one must not hide that others are granted
  end
  if fence ~= tonumber(proposal) then
    answer[#answer + 1] = i
    answer[#answer + 1] = done and type(fence) == 'number' and fence or 0
  end
end
return answer
