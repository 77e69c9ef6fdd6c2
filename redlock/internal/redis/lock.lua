-- A lock is a list of one entry, its token, so that a plain LREM frees it if it has that token. If a process may be
-- waiting, the token ends with a +, which LREM doesn't match: then release.lua is called, and wakes the waiter.
-- A second + means that the holder polls.
local function holder()
  local token = call('LINDEX', KEYS[1], 0)
  if token then
    return string.match(token, '([^+]*)(.*)')
  end
end
