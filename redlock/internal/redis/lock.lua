-- A lock is a list: its token and, behind that, its fence. So a plain LREM of the token frees the lock, and leaves the fence: the list
-- of a free key. If a process may be waiting, the token ends with a +, which LREM doesn't match. Then release.lua is called, which wakes
-- the process.
local function holder(key)
  local token = call('LINDEX', key or KEYS[1], 0)
  if token and not tonumber(token) then
    return string.match(token, '([^+]*)(.*)')
  end
end
