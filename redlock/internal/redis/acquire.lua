-- KEYS lock fence queue leases [result] | ARGV token process ticket ttl_ms waits proposal_us slots former or ''
-- -> time_us: granted with the proposal as fence, and no process waits
--    {fence, time_us, former}: granted
--    {fence of the result, ms that it is remembered, time_us, former[, result, if it is short]}: refused, because a result is remembered
--    {ms that the lease can last, holder's token or '', time_us, former, the slot that is offered or -1,
--     the number of holders that another call in the queue allows or 0}: refused. The leader returns the ms until a slot may be free.
-- waits: 1 to join the queue if refused; + 2 if this server is the leader of the slots, + 4 if the leader has offered this slot
-- former: 1 the former token was released / 0 the key was free / -1 another token has the key / 2 no former token was given
-- If a key has several slots, the token of each slot has the mark +, so that only a script can release it.
local time = call('TIME')
local now, proposal, former = time[1] * 1000000 + time[2], tonumber(ARGV[6]), 2
SLOTS = tonumber(ARGV[7])
if ARGV[8] ~= '' then
  -- lock.lua
  local held = holder()
  former = not held and 0 or held ~= ARGV[8] and -1 or call('LPOP', KEYS[1]) and 1
end

if KEYS[5] then
  -- result.lua
  local fence, ms, data = remembered(KEYS[5])
  if fence then
    return {fence, ms, now, former, data}
  end
end

-- Mostly the key is free, and no process waits.
local ttl, several = tonumber(ARGV[4]), SLOTS > 1
if not several and ttl >= FENCE_TTL + SLACK / 1000 and call('EXISTS', KEYS[2], KEYS[3], string.sub(KEYS[3], 1, -6) .. 'slots') == 0 then
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
-- slots.lua
local function before(name, number)
  return name and (number < ticket or number == ticket and name < process)
end

local leads, wanted = ARGV[5] % 4 >= 2, tonumber(ARGV[5]) >= 4 -- wanted: this call takes the slot, even if other calls wait
local held = holder()
if held == token then
  return {lastFence(), now, former} -- the command has come twice
end
if former == 1 then
  note(SLOT, 0)
end
local alone, left = not held and call('EXISTS', QUEUE) == 0
if held then
  left = call('PTTL', LOCK)
elseif not alone and not wanted then
  local name, number, ends
  repeat -- until no process is before this one, or a process before it was woken
    name, number, ends = oldest(process, now)
    if not before(name, number) then
      name = nil
    end
  until not name or several or wake(name, number)
  if name then
    left = math.ceil((ends - now) / 1000)
  end
end
if not left and not wanted then
  local till = tonumber(call('ZSCORE', FREE, SLOT)) or 0
  if till > now and till <= now + OFFER * 1000 and offered(process, now) ~= SLOT then -- the leader has offered the slot to another call
    left = math.ceil((till - now) / 1000)
  end
end
if left then
  local slot = several and leads and not wanted and offered(process, now)
  if queued and not slot then
    join(now)
  end
  if several and leads then
    watch(now)
    offer(now, not slot and process)
    slot = offered(process, now)
    local first = call('ZRANGE', FREE, 0, 0, 'WITHSCORES')
    if tonumber(first[2]) > now then
      left = math.ceil((first[2] - now) / 1000)
    end
  end
  return {left, held or '', now, former, slot or -1, several and elsewhere(now) or 0}
end

local fence = math.max(lastFence() + 1, now - SLACK)
if proposal > fence and proposal <= now + SLACK then
  fence = proposal
end
local denied = grant(token .. (alone and not several and '' or '+'), fence, now, ttl)
if denied then
  return denied
end
if not several and not alone then
  leave(process)
elseif several then
  forgo(process, now)
  note(SLOT, now + ttl * 1000)
  if leads then
    offer(now)
  end
end
return fence == proposal and alone and not several and former == 2 and now or {fence, now, former}
