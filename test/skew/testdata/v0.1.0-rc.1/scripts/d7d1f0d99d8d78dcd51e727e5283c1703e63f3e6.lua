-- reset makes one counter full again, and remembers when, so that no replica fills it with what it used before. KEYS as
-- of a push, ARGV[1] the time in µs or '', ARGV[2] ms for which that is remembered.
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
redis.call('HSET', KEYS[3], 'reset', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[3], ARGV[2])
return 1
