local time = call('TIME')
local us = time[1] * 1000000 + time[2]
local born = call('HGET', KEYS[1], 'born')
if not born then
  born = string.format('%.0f', us)
  call('HSET', KEYS[1], 'born', born)
  call('PEXPIRE', KEYS[1], BEAT_MEMORY)
end
