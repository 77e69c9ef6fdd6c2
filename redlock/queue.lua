-- The waiters of a key. QUEUE has a ticket for each process that waits, LEASES until when it is believed to.
local LOCK, QUEUE, LEASES = KEYS[1], KEYS[3], KEYS[4]
local token, process, ticket, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local queued = ARGV[5] == '1'

local function leave(name)
  call('ZREM', QUEUE, name)
  call('HDEL', LEASES, name)
end

local function join(now)
  call('ZADD', QUEUE, ARGV[3], process)
  call('HSET', LEASES, process, string.format('%.0f', now + lease_ms * 1000))
  if call('PTTL', QUEUE) < lease_ms then
    call('PEXPIRE', QUEUE, lease_ms)
    call('PEXPIRE', LEASES, lease_ms)
  end
  local held = holder()
  if held then
    call('LSET', LOCK, 0, held .. '+')
  end
end

-- The oldest that waits, its ticket and the end of its lease. Those whose lease is over are passed over.
local function oldest(but, now)
  while true do
    local first = call('ZRANGE', QUEUE, 0, 1, 'WITHSCORES')
    local at = first[1] == but and 3 or 1
    local name = first[at]
    if not name then
      return nil
    end
    local ends = tonumber(call('HGET', LEASES, name)) or 0
    if ends > now then
      return name, tonumber(first[at + 1]), ends
    end
    leave(name)
  end
end

-- Tells a process that the key is free; one that doesn't listen any more has left. A refused PUBLISH undoes nothing.
local function wake(name, number)
  local heard = redis.pcall('PUBLISH', name, string.format('%.0f ', number) .. LOCK)
  if TOLD and heard == 0 then
    leave(name)
    return false
  end
  return true
end
