-- Acquires several keys. KEYS locks, their fences, their queues[, their results] | ARGV ttl_ms, and for each lock: token proposal_us
-- -> {time_us, and for each lock that isn't granted with its proposal: its position, and its fence, or 0 if acquire.lua must be called;
--     if a result is remembered: its position, minus the fence of the result, the ms that it is remembered, and the result, or 0 if it is long}
local n, ttl, time = (#ARGV - 1) / 2, ARGV[1], call('TIME')
local now = time[1] * 1000000 + time[2]
local low, high = string.format('%.0f', now - SLACK), string.format('%.0f', now + SLACK) -- texts of the same length, so they compare like the numbers
local answer, long, quiet = {now}, tonumber(ttl) >= FENCE_TTL + SLACK / 1000, call('EXISTS', unpack(KEYS, n + 1)) == 0
-- take.lua
-- result.lua
for i = 1, n do
  local proposal, result, done, fence, ms, data = ARGV[2 * i + 1], not quiet and KEYS[3 * n + i], true
  if result then
    done, fence, ms, data = pcall(remembered, result) -- an error for one key must not hide that other keys are granted
  end
  if ms then
    fence, data = -fence, data or 0
  elseif done and long and (quiet or call('EXISTS', KEYS[n + i], KEYS[2 * n + i]) == 0) then
    local near = #proposal == #low and proposal >= low and proposal <= high and proposal or low
    done, fence = pcall(take, KEYS[i], ARGV[2 * i], near, ttl, now)
  end
  if fence ~= proposal then
    for _, told in ipairs({i, done and tonumber(fence) or 0, ms, data}) do
      answer[#answer + 1] = told
    end
  end
end
return answer
