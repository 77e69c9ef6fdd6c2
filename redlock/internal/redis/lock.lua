-- A lock is a list: its token and, behind that, its fence. So a plain LREM frees it if it has that token, and leaves the fence: the
-- list of a free key. If a process may be waiting, the token ends with a +, which LREM doesn't match: then release.lua is called, and
-- wakes the waiter.
local function holder(key)
  local token = call('LINDEX', key or KEYS[1], 0)
  if token and not tonumber(token) then
    return string.match(token, '([^+]*)(.*)')
  end
end
