-- KEYS - - - - result | -> {fence of the result, ms that it is remembered, time_us, result}; the fence is 0 if there is none
local time = call('TIME')
local fence, data = call('HGET', KEYS[5], 'fence'), call('HGET', KEYS[5], 'data')
return {tonumber(fence or 0), call('PTTL', KEYS[5]), time[1] * 1000000 + time[2], data or ''}
