-- KEYS lock fence queue leases | ARGV token process ticket ttl_ms waits fence refill_until_us
-- -> {1 the token holds the key now / 0 the key is free / -1 another token has it / -2 released by force, time_us, for -2 the operator}
local time = call('TIME')
local now, ttl, fence = time[1] * 1000000 + time[2], tonumber(ARGV[4]), tonumber(ARGV[6])
-- lock.lua
-- fence.lua
local by = call('GET', KEYS[1] .. ':forced:' .. ARGV[1])
if by then -- checked first, because the token may have the key again: the server may have read its acquire late
  return {-2, now, by}
end
local held, marks = holder()
local last, text = lastFence()
if held == ARGV[1] then
  -- Renew the existing key first, because a later command may need memory, which the server may lack. The key may be gone after that: PEXPIRE
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
-- The server must store a larger fence, or it has lost the key although the lease is valid.
return grant(ARGV[1] .. (marks or '+'), math.max(last, fence), now, ttl) or {1, now}
