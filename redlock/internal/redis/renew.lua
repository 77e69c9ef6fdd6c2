-- Renews several leases. KEYS locks, and the keys that mark their release by force | ARGV ttl_ms, and for each lock: token fence
-- -> {time_us, and the position of each lock for which extend.lua must be called}
local n, ttl, time, try = #KEYS / 2, tonumber(ARGV[1]), call('TIME'), redis.pcall
local now = time[1] * 1000000 + time[2]
local latest = string.format('%.0f', now + (ttl - FENCE_TTL) * 1000) -- a larger fence must be remembered for longer than the lease
local answer, long, quiet = {now}, ttl >= FENCE_TTL, call('EXISTS', unpack(KEYS, n + 1)) == 0
for i = 1, n do
  local key, token, fence, held = KEYS[i], ARGV[2 * i], ARGV[2 * i + 1]
  if long and (quiet or call('EXISTS', KEYS[n + i]) == 0) and (#fence < #latest or #fence == #latest and fence <= latest) and try('LINDEX', key, -1) == fence then
    held = try('LINDEX', key, 0)
  end
  if not held or held ~= token and held ~= token .. '+' and held ~= token .. '++' or try('PEXPIRE', key, ARGV[1]) ~= 1 then
    answer[#answer + 1] = i
  end
end
return answer
