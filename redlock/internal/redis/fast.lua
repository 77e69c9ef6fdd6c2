-- Acquires several keys. KEYS locks, their fences, their queues | ARGV ttl_ms, and for each lock: token proposal_us
-- -> {time_us, and for each lock that isn't granted with its proposal: its position, and its fence, or 0 if acquire.lua must be called}
local n, ttl, time = #KEYS / 3, ARGV[1], call('TIME')
local now = time[1] * 1000000 + time[2]
local low, high = string.format('%.0f', now - SLACK), string.format('%.0f', now + SLACK) -- texts of the same length, so they compare like the numbers
local answer, long, quiet = {now}, tonumber(ttl) >= FENCE_TTL + SLACK / 1000, call('EXISTS', unpack(KEYS, n + 1)) == 0
-- take.lua
for i = 1, n do
  local proposal, done, fence = ARGV[2 * i + 1]
  if long and (quiet or call('EXISTS', KEYS[n + i], KEYS[2 * n + i]) == 0) then
    local near = #proposal == #low and proposal >= low and proposal <= high and proposal or low
    done, fence = pcall(take, KEYS[i], ARGV[2 * i], near, ttl, now) -- an error for one key must not hide that other keys are granted
  end
  if fence ~= proposal then
    answer[#answer + 1] = i
    answer[#answer + 1] = done and type(fence) == 'string' and tonumber(fence) or 0
  end
end
return answer
