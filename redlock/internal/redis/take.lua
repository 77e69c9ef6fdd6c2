-- Takes a key for which nobody waits, and whose last fence isn't beside the list. Returns its fence, or false if it is held, or the fence
-- must be remembered for longer than the lease, or an error. If it isn't taken, nothing has changed. The length of the list after RPUSH
-- says how it was: 2 is a free key; 3 a free one with its last fence, or one that is held and whose fence is beside the list.
-- The TTL is text as it came: a number would be written as text for PEXPIRE, which costs a server a tenth of all this.
local function take(key, token, proposal, ttl, now)
  local fence, text, last = tonumber(proposal), proposal
  if fence < now - SLACK or fence > now + SLACK then
    fence = now - SLACK
    text = string.format('%.0f', fence)
  end
  local length = redis.pcall('RPUSH', key, token, text)
  if type(length) == 'table' then
    return length
  end
  local free = length == 2
  if length == 3 then
    last = call('LPOP', key)
    free = tonumber(last)
    if free and free >= fence then
      fence = free + 1
      call('LSET', key, 1, string.format('%.0f', fence))
    end
  end
  local spare = ttl - FENCE_TTL
  free = free and spare >= 0 and fence <= now + spare * 1000
  local timed = free and redis.pcall('PEXPIRE', key, ttl)
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
