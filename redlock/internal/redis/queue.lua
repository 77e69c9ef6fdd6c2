-- The processes that wait for a key. QUEUE has the ticket of each process, and LEASES the time until which the process counts as waiting.
-- All slots of a key share one queue. If a key has several slots, each call has a separate place; its name is that of its process, # and a number.
-- LEASES also has the number of slots of each call, because its ticket is for all slots below that number.
local LOCK, QUEUE, LEASES, LINE = KEYS[1], KEYS[3], KEYS[4], string.sub(KEYS[3], 1, -7)
local SLOT = tonumber(string.match(LOCK, ':slot:(%d+)$')) or 0
local token, process, ticket, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local queued = ARGV[5] % 2 == 1

local function leave(name)
  call('ZREM', QUEUE, name)
  call('HDEL', LEASES, name, name .. '/n')
end

-- Marks the token of a slot's holder, so that only a script can release it from now on.
local function mark(key)
  local held, marks = holder(key)
  if held and marks == '' then
    call('LSET', key, 0, held .. '+')
  end
end

local function join(now)
  local fresh = call('ZADD', QUEUE, ARGV[3], process) == 1
  local ends = string.format('%.0f', now + lease_ms * 1000)
  if SLOTS > 1 then
    call('HSET', LEASES, process, ends, process .. '/n', SLOTS)
    mark(LINE) -- the holder of slot 0 may be a process that allows one holder
  else
    call('HSET', LEASES, process, ends)
    if not fresh then
      call('HDEL', LEASES, process .. '/n') -- the process may have allowed more slots before
    end
  end
  mark(LOCK)
  if call('PTTL', QUEUE) < lease_ms then -- last, because PEXPIRE deletes a key if the server was suspended within PEXPIRE for the whole lease
    call('PEXPIRE', QUEUE, lease_ms)
    call('PEXPIRE', LEASES, lease_ms)
  end
end

-- Returns the process with the oldest ticket, except for the process but: its name, its ticket, and the time until which it counts as waiting.
-- Removes processes whose time is over. Skips calls that may not have the slot.
local function oldest(but, now, slot)
  local skip = 0
  slot = slot or SLOT
  while true do
    local first = call('ZRANGE', QUEUE, skip, skip + 1, 'WITHSCORES')
    local at = first[1] == but and 3 or 1
    local name = first[at]
    if not name then
      return nil
    end
    local ends = tonumber(call('HGET', LEASES, name)) or 0
    if ends <= now then
      leave(name)
    elseif slot > 0 and (tonumber(call('HGET', LEASES, name .. '/n')) or 1) <= slot then
      skip = skip + 1
    else
      return name, tonumber(first[at + 1]), ends
    end
  end
end

-- Sends a process the message that the key is free. A process that isn't subscribed any more loses its place, and the result is false. If the
-- server refuses PUBLISH, the script goes on.
local function wake(name, number, key)
  local channel, call = string.match(name, '^(.*)(#%d+)$')
  local heard = redis.pcall('PUBLISH', channel or name, string.format('%.0f', number) .. (call or '') .. ' ' .. (key or LOCK))
  if COUNTED and heard == 0 then
    leave(name)
    return false
  end
  return true
end
