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
-- leave takes a member out. ARGV[1] member, ARGV[2] channel of the controller, ARGV[3] workload.
if remove({ARGV[1]}) then
  raise()
  redis.call('PUBLISH', ARGV[2], ARGV[3])
end
return 1
