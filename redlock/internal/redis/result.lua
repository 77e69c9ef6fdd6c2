-- Returns the fence of the result, the ms that it is remembered and, if it is short, the result; or nothing if none is remembered.
local function remembered(key)
  local fence = call('HGET', key, 'fence')
  if fence then
    return tonumber(fence), call('PTTL', key), call('HSTRLEN', key, 'data') <= SHORT and call('HGET', key, 'data') or nil
  end
end
