-- Takes a key for which no process waits, and whose last fence isn't in a separate key (see fence.lua). Stores the given fence or, if that isn't
-- larger than the last one, the last fence + 1. Returns the stored fence as text; false if the key is held, or if the fence must be remembered
-- for longer than the lease; or an error. If the key isn't taken, nothing has changed. The length of the list after RPUSH shows the key's state:
-- 2 for a free key; 3 for a free key with its last fence, or for a held key whose fence is in a separate key. Numbers stay text, because the
-- conversion of one takes a server a twentieth of the time of the whole script.
local try = redis.pcall
local function take(key, token, fence, ttl, now)
  local length, last = try('RPUSH', key, token, fence)
  local free = length == 2
  if length == 3 then
    last = call('LPOP', key)
    free = tonumber(last)
    if free and (last >= fence or #last ~= #fence) and free >= tonumber(fence) then
      fence = string.format('%.0f', free + 1)
      call('LSET', key, 1, fence)
      free = free < now + (ttl - FENCE_TTL) * 1000
    end
  elseif type(length) == 'table' then
    return length
  end
  local timed = free and try('PEXPIRE', key, ttl)
  if timed == 1 then
    return fence
  end
  if last then
    call('RPUSH', key, last)
    call('LTRIM', key, -1, -1)
  else
    call('LTRIM', key, 0, -3)
  end
  return timed
end
