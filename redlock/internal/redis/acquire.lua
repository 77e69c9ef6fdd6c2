-- KEYS lock fence queue leases [result] | ARGV token process ticket ttl_ms waits proposal_us [former]
-- -> time_us: granted with the proposal as fence, and nobody waits
--    {fence, time_us, former}: granted
--    {fence of the result, ms that it is remembered, time_us, former}: refused, because a result is remembered
--    {ms that the lease can last, holder's token or '', and a + if the holder polls, time_us, former}: refused
-- waits: 1 to join the queue if refused, + 2 for a process that polls
-- former: 1 released / 0 was free / -1 another's / 2 none was given
local time = call('TIME')
local now, proposal, former = time[1] * 1000000 + time[2], tonumber(ARGV[6]), 2
if ARGV[7] then
  -- lock.lua
  local held = holder()
  former = not held and 0 or held ~= ARGV[7] and -1 or call('LPOP', KEYS[1]) and 1
end

if KEYS[5] then
  local done = call('HGET', KEYS[5], 'fence')
  if done then
    return {tonumber(done), call('PTTL', KEYS[5]), now, former}
  end
end

-- Mostly the key is free, and nobody waits.
local ttl, polls = tonumber(ARGV[4]), ARGV[5] >= '2'
if not polls and ttl >= FENCE_TTL + SLACK / 1000 and call('EXISTS', KEYS[2], KEYS[3]) == 0 then
  -- take.lua
  local near = proposal >= now - SLACK and proposal <= now + SLACK
  local fence = take(KEYS[1], ARGV[1], near and ARGV[6] or string.format('%.0f', now - SLACK), ARGV[4], now)
  if fence == ARGV[6] and former == 2 then
    return now
  elseif fence then
    return type(fence) == 'table' and fence or {tonumber(fence), now, former}
  end
end

-- lock.lua
-- queue.lua
-- fence.lua
local held, marks = holder()
local alone = not held and call('EXISTS', KEYS[3]) == 0
if not alone then
  local left
  local awaited = marks == '++' -- the holder polls, and may wake nobody
  if held == token then
    return {lastFence(), now, former} -- the command came twice
  elseif held then
    left = call('PTTL', LOCK)
  else
    local name, number, ends
    repeat -- until no process is before this one, or the one that is was woken, or polls
      name, number, ends, awaited = oldest(process, now, 0)
      if name and (number > ticket or number == ticket and name > process) then
        name = nil
      end
    until not name or awaited or wake(name, number)
    if name then
      left = math.ceil((ends - now) / 1000)
    else
      leave(process)
    end
  end
  if left then
    if queued then
      join(now)
    end
    return {left, (held or '') .. (awaited and '+' or ''), now, former}
  end
end

local fence = math.max(lastFence() + 1, now - SLACK)
if proposal > fence and proposal <= now + SLACK then
  fence = proposal
end
local denied = grant(ARGV[1] .. (polls and '++' or alone and '' or '+'), fence, now, ttl)
if denied then
  return denied
end
return fence == proposal and alone and not polls and former == 2 and now or {fence, now, former}
