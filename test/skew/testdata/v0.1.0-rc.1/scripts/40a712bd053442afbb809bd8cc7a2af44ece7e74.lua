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
-- observe is what the controller reads of one workload. KEYS[5] row, KEYS[6] replicas, KEYS[7] fence. The reply is the
-- row, the replicas, the highest epoch that wrote (each '' if there is none), the version of the members, and then
-- each live member and its report.
if expire() then
  raise()
end
local reply = {
  redis.call('GET', KEYS[5]) or '',
  redis.call('GET', KEYS[6]) or '',
  redis.call('HGET', KEYS[7], 'epoch') or '',
  redis.call('GET', KEYS[4]) or '0',
}
local reports = redis.call('HGETALL', KEYS[3])
for i = 1, #reports do
  reply[#reply + 1] = reports[i]
end
return reply
