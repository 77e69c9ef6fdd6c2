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
  former = not held and 0 or held ~= ARGV[7] and -1 or call('DEL', KEYS[1])
end

if KEYS[5] then
  local done = call('HGET', KEYS[5], 'fence')
  if done then
    return {tonumber(done), call('PTTL', KEYS[5]), now, former}
  end
end

-- Mostly the key is free, and nobody waits. Then no function needs to be created.
local alone = call('EXISTS', KEYS[1], KEYS[3]) == 0
local polls = ARGV[5] >= '2'
if not alone then
  -- lock.lua
  -- queue.lua
  local held, marks = holder()
  local left
  local awaited = marks == '++' -- the holder polls, and may wake nobody
  if held == token then
    return {tonumber(call('GET', KEYS[2])) or 0, now, former} -- the command came twice
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

local last = tonumber(call('SET', KEYS[2], ARGV[6], 'PX', FENCE_TTL, 'GET') or 0)
call('RPUSH', KEYS[1], ARGV[1] .. (polls and '++' or alone and '' or '+'))
local timed = redis.pcall('PEXPIRE', KEYS[1], ARGV[4])
if type(timed) == 'table' then -- denied: no lock may be left without an end
  call('DEL', KEYS[1])
  return timed
end
local fence = math.max(last + 1, now - SLACK)
if proposal < fence or proposal > now + SLACK then
  call('SET', KEYS[2], string.format('%.0f', fence), 'PX', FENCE_TTL + math.ceil(math.max(fence - now, 0) / 1000)) -- tostring loses digits
  return {fence, now, former}
end
return alone and not polls and former == 2 and now or {proposal, now, former}
