-- Frees several keys, each with a result. KEYS locks, their results | ARGV for each lock: token fence result keep_ms
-- -> {0, and the position of each lock for which release.lua must be called. Nothing of that lock has changed}
-- The result comes before the release, because a server that lacks memory refuses a command only before the first write of a script.
local n, answer, try = #KEYS / 2, {0}, redis.pcall -- an error for one key must not hide that other keys are free
for i = 1, n do
  local result, at, freed = KEYS[n + i], 4 * i
  if call('EXISTS', result) == 0 then
    try('HSET', result, 'fence', ARGV[at - 2], 'data', ARGV[at - 1])
    freed = try('PEXPIRE', result, ARGV[at]) == 1 and try('LREM', KEYS[i], 1, ARGV[at - 3]) == 1
    if not freed then
      try('DEL', result)
    end
  end
  if not freed then
    answer[#answer + 1] = i
  end
end
return answer
