-- Returns the last fence, and the last element of the list. A fence that must be remembered for longer than the lease isn't in the list,
-- but in a separate key, KEYS[2].
local function lastFence()
  local text = call('LINDEX', KEYS[1], -1)
  return tonumber(text) or tonumber(call('GET', KEYS[2])) or 0, text
end

local function fenceLife(fence, now)
  return FENCE_TTL + math.ceil(math.max(fence - now, 0) / 1000)
end

-- Gives the key this token, with its marks, and this fence. Returns an error if the user lacks the right to PEXPIRE. The command that needs
-- memory comes first: a server that lacks memory refuses a command only before the first write of a script.
local function grant(token, fence, now, ttl)
  local life, text = fenceLife(fence, now), string.format('%.0f', fence) -- tostring loses digits
  if life <= ttl then
    call('RPUSH', KEYS[1], token, text)
    call('LTRIM', KEYS[1], -2, -1)
    call('DEL', KEYS[2])
  else
    call('SET', KEYS[2], text, 'PX', life)
    call('RPUSH', KEYS[1], token)
    call('LTRIM', KEYS[1], -1, -1)
  end
  local timed = redis.pcall('PEXPIRE', KEYS[1], ttl)
  if type(timed) == 'table' then -- the user lacks the right: no lock without a TTL may be left
    call('DEL', KEYS[1])
    return timed
  end
end
