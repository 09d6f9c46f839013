-- The members of one workload. KEYS[1] members by the time they joined, KEYS[2] the same by the time after which they
-- are no longer live, KEYS[3] their reports, KEYS[4] the version of the set; times in ms. All four expire when nobody
-- has been heard for an hour.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2] -- µs
local now_ms = math.floor(now / 1000)

-- remove takes members out of the set and says whether one was in it.
local function remove(names)
  if #names == 0 then
    return false
  end
  redis.call('ZREM', KEYS[2], unpack(names))
  redis.call('HDEL', KEYS[3], unpack(names))
  return redis.call('ZREM', KEYS[1], unpack(names)) > 0
end

-- expire removes members that have not been heard for too long, up to 1000 at once.
local function expire()
  return remove(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', string.format('(%.0f', now_ms), 'LIMIT', 0, 1000))
end

-- raise gives the set a new version, which is higher than every version before, even if that one was lost: the time.
local function raise()
  local version = tonumber(redis.call('GET', KEYS[4]) or 0) or 0
  if version < now then
    version = now
  else
    version = version + 1
  end
  redis.call('SET', KEYS[4], string.format('%.0f', version), 'PX', 3600000)
end
-- heartbeat enters a member or keeps it, and tells the controller when the set or the member's report changed.
--
-- ARGV[1] member, ARGV[2] report, ARGV[3] ms until it is no longer live, ARGV[4] channel of the controller, ARGV[5]
-- workload. The reply is the member's rank, the number of members, the version of the set, the time in µs, and 1 if the
-- member is new.
local member, report, lifetime = ARGV[1], ARGV[2], tonumber(ARGV[3])

local changed = expire()
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
  redis.call('PEXPIRE', KEYS[i], math.max(3600000, lifetime))
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
