-- A lock is a list of one entry, its token: then a plain LREM frees it if it has that token. Where somebody may
-- wait the token is marked by a +, which LREM doesn't match, so that release.lua is called and wakes the waiter.
local function holder()
  local token = call('LINDEX', KEYS[1], 0)
  return token and string.match(token, '[^+]*')
end
