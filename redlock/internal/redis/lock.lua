-- A lock is a list with its token and then its fence. So a plain LREM of the token releases the lock, and leaves the list of a free key,
-- which has only the fence. If a process may be waiting, the token ends with a +, so that LREM doesn't match it. Then release.lua is
-- called, which wakes the process. Returns the token and its marks, or nothing if the key is free.
local function holder(key)
  local token = call('LINDEX', key or KEYS[1], 0)
  if token and not tonumber(token) then
    return string.match(token, '([^+]*)(.*)')
  end
end
