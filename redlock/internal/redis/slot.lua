-- KEYS slot fence queue leases | ARGV token process ticket ttl_ms waits proposal_us slots former or ''
-- -> {fence, time_us, former}: granted
--    {ms that the lease can last, holder's token or '', and a + if the holder polls, time_us, former, a slot to ask for or -1,
--     how many may hold the key in the view of another call in line or 0}: refused
-- This is acquire.lua for a key that may have more than one holder. Its tokens are always marked, and no key is free in silence: a grant
-- wakes the next in line if one more slot is free, which a refusal names.
local time = call('TIME')
local now, proposal, former = time[1] * 1000000 + time[2], tonumber(ARGV[6]), 2
SLOTS = tonumber(ARGV[7])
-- lock.lua
if ARGV[8] ~= '' then
  local held = holder()
  former = not held and 0 or held ~= ARGV[8] and -1 or call('LPOP', KEYS[1]) and 1
end
-- queue.lua
-- fence.lua
local polls = ARGV[5] >= '2'

-- Whether a ticket is before that of this process.
local function before(name, number)
  return name and (number < ticket or number == ticket and name < process)
end

-- others.lua
-- Returns how many may hold the key in the view of the first other call that waits.
local function others()
  local line = call('ZRANGE', QUEUE, 0, 1)
  local other = line[line[1] == process and 2 or 1]
  local waits = other and math.abs(tonumber(call('HGET', LEASES, other)) or 0) > now
  return waits and tonumber(call('HGET', LEASES, other .. '/n') or 1) or 0
end

local held, marks = holder()
local alone = call('EXISTS', QUEUE) == 0
if held == token then
  return {lastFence(), now, former} -- the command came twice
end
local left, awaited
if held then
  left, awaited = call('PTTL', LOCK), marks == '++'
elseif not alone then
  local name, number, ends
  repeat
    name, number, ends, awaited = oldest(process, now, 0)
    if not before(name, number) then
      name, awaited = nil, false
    end
  until not name or awaited or wake(name, number)
  left = name and math.ceil((ends - now) / 1000)
end
if left then
  if queued then
    join(now)
  end
  return {left, (held or '') .. (awaited and '+' or ''), now, former, free(function(slot)
    local name, number = oldest(process, now, 0, slot)
    return not before(name, number)
  end), others()}
end

if not alone then
  leave(process)
  alone = call('EXISTS', QUEUE) == 0
end
local fence = math.max(lastFence() + 1, now - SLACK)
if proposal > fence and proposal <= now + SLACK then
  fence = proposal
end
local denied = grant(token .. (polls and '++' or '+'), fence, now, lease_ms)
if denied then
  return denied
end
if not alone then
  wakeForAnother(now)
end
return {fence, now, former}
