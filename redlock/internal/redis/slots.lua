-- The slots of a key that may have several holders. One master leads: it offers free slots to the first calls in the queue, so that each call
-- asks all masters for a slot for which no other call asks. FREE has the time until which each slot is taken, or offered to a call. It is only
-- a hint for the search: the lists of the slots decide. OFFERS has the slot that each call is offered, and the end of the offer.
local FREE, OFFERS = LINE .. ':slots', LINE .. ':offers'

local function slotKey(slot)
  return slot == 0 and LINE or LINE .. ':slot:' .. slot
end

-- Reports whether a name in the queue is that of a call for a key with several slots.
local function isCall(name)
  return string.find(name, '#%d+$')
end

-- Notes the time until which a slot is taken, if the slots are watched.
local function note(slot, till)
  call('ZADD', FREE, 'XX', string.format('%.0f', till), slot)
end

-- Returns the slot that is offered to a call, or nil.
local function offered(name, now)
  local slot, till = string.match(call('HGET', OFFERS, name) or '', '^(%d+) (%d+)$')
  if slot and tonumber(till) > now and tonumber(call('ZSCORE', FREE, slot)) == tonumber(till) then
    return tonumber(slot)
  end
end

-- Removes a call from the queue, and takes back its offer.
local function forgo(name, now)
  local slot = offered(name, now)
  if slot then
    note(slot, 0)
  end
  leave(name)
  call('HDEL', OFFERS, name)
end

-- Keeps FREE, with all slots of the key, for WATCH ms. note and offer need it.
local function watch(now)
  if not call('ZSCORE', FREE, SLOTS - 1) then
    mark(LINE)
    for slot = 0, SLOTS - 1 do
      local key = slotKey(slot)
      call('ZADD', FREE, 'NX', holder(key) and string.format('%.0f', now + call('PTTL', key) * 1000) or 0, slot)
    end
  end
  call('PEXPIRE', FREE, WATCH)
end

-- Offers each free slot to the first call in the queue that may have it and, if slots are left, to the call asks. Wakes these calls, except for
-- asks.
local function offer(now, asks)
  local at, till, unanswered = 0, string.format('%.0f', now + OFFER * 1000), asks
  while unanswered or call('EXISTS', QUEUE) == 1 do
    local first = call('ZRANGE', FREE, at, at, 'WITHSCORES')
    local slot = tonumber(first[1])
    if not slot or tonumber(first[2]) > now then
      return
    end
    local key = slotKey(slot)
    local name, number = oldest('', now, slot)
    name = name or slot < SLOTS and unanswered
    if holder(key) then
      mark(key)
      note(slot, now + math.max(call('PTTL', key), 1) * 1000)
    elseif not name then
      at = at + 1
    else
      note(slot, till)
      call('HSET', OFFERS, name, slot .. ' ' .. till)
      call('PEXPIRE', OFFERS, OFFER)
      if isCall(name) then -- a process that allows one holder keeps its place until it is granted the slot
        leave(name)
      end
      if name == asks then
        unanswered = nil
      elseif not wake(name, number, key) then
        call('HDEL', OFFERS, name)
        note(slot, 0)
      end
    end
  end
end

-- Returns the number of holders that the first other call in the queue allows, or 0 if no other call waits.
local function elsewhere(now)
  local line = call('ZRANGE', QUEUE, 0, 1)
  local other = line[line[1] == process and 2 or 1]
  local waits = other and (tonumber(call('HGET', LEASES, other)) or 0) > now
  return waits and tonumber(call('HGET', LEASES, other .. '/n') or 1) or 0
end
