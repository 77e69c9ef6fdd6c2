-- KEYS lock fence queue leases [result] | ARGV token process ticket ttl_ms waits proposal_us slots former or ''
-- -> time_us: granted with the proposal as fence, and nobody waits
--    {fence, time_us, former}: granted
--    {fence of the result, ms that it is remembered, time_us, former}: refused, because a result is remembered
--    {ms that the lease can last, holder's token or '', and a + if the holder polls, time_us, former, a slot to ask for or -1,
--     how many may hold the key in the view of another call in line or 0}: refused
-- waits: 1 to join the queue if refused, + 2 for a process that polls
-- former: 1 released / 0 was free / -1 another's / 2 none was given
-- Where a key has several slots, their tokens are always marked, and no key is free in silence: a grant wakes the next in line if one
-- more slot is free, which a refusal names.
local time = call('TIME')
local now, proposal, former = time[1] * 1000000 + time[2], tonumber(ARGV[6]), 2
SLOTS = tonumber(ARGV[7])
if ARGV[8] ~= '' then
  -- lock.lua
  local held = holder()
  former = not held and 0 or held ~= ARGV[8] and -1 or call('LPOP', KEYS[1]) and 1
end

if KEYS[5] then
  local done = call('HGET', KEYS[5], 'fence')
  if done then
    return {tonumber(done), call('PTTL', KEYS[5]), now, former}
  end
end

-- Mostly the key is free, and nobody waits.
local ttl, several, polls = tonumber(ARGV[4]), SLOTS > 1, ARGV[5] >= '2'
if not several and not polls and ttl >= FENCE_TTL + SLACK / 1000 and call('EXISTS', KEYS[2], KEYS[3]) == 0 then
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
-- others.lua
local function before(name, number)
  return name and (number < ticket or number == ticket and name < process)
end

local held, marks = holder()
if held == token then
  return {lastFence(), now, former} -- the command came twice
end
local alone, left, awaited = not held and call('EXISTS', QUEUE) == 0
if held then
  left, awaited = call('PTTL', LOCK), marks == '++' -- the holder polls, and may wake nobody
elseif not alone then
  local name, number, ends
  repeat -- until nobody is before this one, or the one that is was woken, or polls
    name, number, ends, awaited = oldest(process, now, 0)
    if not before(name, number) then
      name, awaited = nil, false
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
  return {left, (held or '') .. (awaited and '+' or ''), now, former, free(function(slot)
    local name, number = oldest(process, now, 0, slot)
    return not before(name, number)
  end), several and elsewhere(now) or 0}
end

local fence = math.max(lastFence() + 1, now - SLACK)
if proposal > fence and proposal <= now + SLACK then
  fence = proposal
end
local denied = grant(token .. (polls and '++' or alone and not several and '' or '+'), fence, now, ttl)
if denied then
  return denied
end
if several and not alone and call('EXISTS', QUEUE) == 1 then
  wakeForAnother(now)
end
return fence == proposal and alone and not several and not polls and former == 2 and now or {fence, now, former}
