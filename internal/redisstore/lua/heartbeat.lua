-- heartbeat enters a member or keeps it, and tells the controller when the set or the member's report changed.
--
-- ARGV[1] member, ARGV[2] report, ARGV[3] ms until it is no longer live, ARGV[4] channel of the controller, ARGV[5]
-- workload. The reply is the member's rank, the number of members, the version of the set, the time in µs, and 1 if the
-- member is new.
local member, report, lifetime = ARGV[1], ARGV[2], tonumber(ARGV[3])

local changed = repair()
changed = expire() or changed
local new = redis.call('ZADD', KEYS[1], 'NX', now_ms, member)
if new == 1 or redis.call('EXISTS', KEYS[4]) == 0 then
  changed = true
end
redis.call('ZADD', KEYS[2], now_ms + lifetime, member)
local reported = redis.call('HGET', KEYS[3], member) ~= report
if reported then
  redis.call('HSET', KEYS[3], member, report)
end
if changed then
  raise()
end
for i = 1, 4 do
  redis.call('PEXPIRE', KEYS[i], math.max(KEEP, lifetime))
end
if changed or reported then
  redis.call('PUBLISH', ARGV[4], ARGV[5])
end
return {
  redis.call('ZRANK', KEYS[1], member),
  redis.call('ZCARD', KEYS[1]),
  redis.call('GET', KEYS[4]),
  string.format('%.0f', now),
  new,
}
