local function slotKey(slot)
  return slot == 0 and LINE or LINE .. ':slot:' .. slot
end

-- Returns the first further slot that is free and satisfies a condition.
local function free(suits)
  for i = 1, SLOTS - 1 do
    local slot = (SLOT + i) % SLOTS
    local token = call('LINDEX', slotKey(slot), 0)
    if (not token or tonumber(token)) and suits(slot) then -- as holder()
      return slot
    end
  end
  return -1
end

-- Wakes the next in line for a further slot that is free.
local function wakeForAnother(now)
  free(function(slot)
    local skip, name, number, ends, waits = 0
    repeat -- as release.lua
      skip = waits and skip + 1 or skip
      name, number, ends, waits, skip = oldest('', now, skip, slot)
    until not name or name == process or not waits and wake(name, number, slotKey(slot))
    return name
  end)
end

-- Returns how many may hold the key in the view of the first other call that waits, or 0.
local function elsewhere(now)
  local line = call('ZRANGE', QUEUE, 0, 1)
  local other = line[line[1] == process and 2 or 1]
  local waits = other and math.abs(tonumber(call('HGET', LEASES, other)) or 0) > now
  return waits and tonumber(call('HGET', LEASES, other .. '/n') or 1) or 0
end
