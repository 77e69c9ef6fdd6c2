-- KEYS lock fence queue leases | ARGV token process ticket ttl_ms waits fence refill_until_us
-- -> {1 held by the token now / 0 free / -1 another's / -2 released by force, time_us, for -2 by whom}
local time = call('TIME')
local now, ttl, fence = time[1] * 1000000 + time[2], tonumber(ARGV[4]), tonumber(ARGV[6])
-- lock.lua
-- fence.lua
local by = call('GET', KEYS[1] .. ':forced:' .. ARGV[1])
if by then -- even if the token has the key again, because the server may have read its acquire late
  return {-2, now, by}
end
local held, marks = holder()
local last, text = lastFence()
if held == ARGV[1] then
  -- First renew the key that the server has: a later command may need memory, which the server may lack. The list may be gone after that: PEXPIRE
  -- deletes it if the server was suspended within PEXPIRE for the whole TTL.
  call('PEXPIRE', KEYS[1], ttl)
  if fenceLife(fence, now) <= ttl and text == ARGV[6] then
    return {1, now}
  end
elseif held then
  return {-1, now}
elseif now >= tonumber(ARGV[7]) then
  return {0, now}
end
-- The server must store a fence, or lacks the key although the lease is valid.
return grant(ARGV[1] .. (marks or '+'), math.max(last, fence), now, ttl) or {1, now}
