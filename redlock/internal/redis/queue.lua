-- The processes that wait for a key. QUEUE has the ticket of each, LEASES the time until which it is believed to wait:
-- below zero for a process that polls, which can't be woken.
local LOCK, QUEUE, LEASES = KEYS[1], KEYS[3], KEYS[4]
local token, process, ticket, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local queued, polling = ARGV[5] % 2 == 1, ARGV[5] >= '2'

local function leave(name)
  call('ZREM', QUEUE, name)
  call('HDEL', LEASES, name)
end

local function join(now)
  local lease = polling and math.min(lease_ms, POLL_LEASE) or lease_ms
  call('ZADD', QUEUE, ARGV[3], process)
  call('HSET', LEASES, process, string.format('%.0f', (now + lease * 1000) * (polling and -1 or 1)))
  if call('PTTL', QUEUE) < lease then
    call('PEXPIRE', QUEUE, lease)
    call('PEXPIRE', LEASES, lease)
  end
  local held, marks = holder()
  if held and marks == '' then
    call('LSET', LOCK, 0, held .. '+')
  end
end

-- Returns the process with the oldest ticket, behind as many as are skipped: its name and ticket, the end of its lease,
-- and whether it polls. Processes whose lease is over lose their place.
local function oldest(but, now, skip)
  while true do
    local first = call('ZRANGE', QUEUE, skip, skip + 1, 'WITHSCORES')
    local at = first[1] == but and 3 or 1
    local name = first[at]
    if not name then
      return nil
    end
    local ends = tonumber(call('HGET', LEASES, name)) or 0
    if math.abs(ends) > now then
      return name, tonumber(first[at + 1]), math.abs(ends), ends < 0
    end
    leave(name)
  end
end

-- Sends a process the message that the key is free. One that isn't subscribed any more loses its place. If PUBLISH is
-- refused, nothing of the script is undone.
local function wake(name, number)
  local heard = redis.pcall('PUBLISH', name, string.format('%.0f ', number) .. LOCK)
  if COUNTED and heard == 0 then
    leave(name)
    return false
  end
  return true
end
