-- KEYS lock fence queue leases | ARGV token process ticket ttl_ms queued proposal_us [former]
-- -> time_us granted, with the proposal as fence, and nobody waits / {fence, time_us, former} granted /
--    {ms that it can last, holder's token or '', time_us, former} refused
-- former: 1 released / 0 was free / -1 another's / 2 there is none
local time = call('TIME')
local now, proposal, former = time[1] * 1000000 + time[2], tonumber(ARGV[6]), 2
if ARGV[7] then
  -- lock.lua
  local held = holder()
  former = not held and 0 or held ~= ARGV[7] and -1 or call('DEL', KEYS[1])
end

-- Mostly the key is free, and nobody waits. Then no function is made.
local alone = call('EXISTS', KEYS[1], KEYS[3]) == 0
if not alone then
  -- lock.lua
  -- queue.lua
  local held, left = holder()
  if held == token then
    return {tonumber(call('GET', KEYS[2])) or 0, now, former} -- the command came twice
  elseif held then
    left = call('PTTL', LOCK)
  else
    local name, number, ends
    repeat -- until nobody is before us, or one is who has heard it
      name, number, ends = oldest(process, now)
      if name and (number > ticket or number == ticket and name > process) then
        name = nil
      end
    until not name or wake(name, number)
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
    return {left, held or '', now, former}
  end
end

local last = tonumber(call('SET', KEYS[2], ARGV[6], 'PX', FENCE_TTL, 'GET') or 0)
call('RPUSH', KEYS[1], alone and ARGV[1] or ARGV[1] .. '+')
call('PEXPIRE', KEYS[1], ARGV[4])
local fence = math.max(last + 1, now - SLACK)
if proposal < fence or proposal > now + SLACK then
  call('SET', KEYS[2], string.format('%.0f', fence), 'PX', FENCE_TTL) -- tostring loses digits
  return {fence, now, former}
end
return alone and former == 2 and now or {proposal, now, former}
