-- Returns the fence of the result, the ms that it is remembered and, if it is short, the result; or nothing if none is remembered.
local function remembered(key)
  local fence = call('HGET', key, 'fence')
  if fence then
    local length = redis.pcall('HSTRLEN', key, 'data') -- a user who lacks the right must not find the work undone
    return tonumber(fence), call('PTTL', key), type(length) == 'number' and length <= SHORT and call('HGET', key, 'data') or nil
  end
end
