-- The members of one workload. KEYS[1] members by the time they joined, KEYS[2] the same by the time after which they
-- are no longer live, KEYS[3] their reports, KEYS[4] the version of the set; times in ms. All four expire when nobody
-- has been heard for an hour.
local KEEP = 3600000
local HIGHEST = 9007199254740991 -- whole number of 53 bits

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2] -- µs
local now_ms = math.floor(now / 1000)

-- damaged names the keys that hold something else than what belongs there: an application may write what it likes to
-- those of its own namespace.
local damaged = {}

-- intact says that a command that reads a key finds the type that it reads.
local function intact(name, ...)
  local _, other = of_type(...)
  if other then
    damaged[#damaged + 1] = name
  end
  return not other
end

-- version is that of the set, nil if there is none that can be read.
local function version()
  local held = of_type('GET', KEYS[4])
  local n = held and string.find(held, '^%d+$') and tonumber(held)
  if n and n < HIGHEST then
    return n
  end
end

-- repair deletes what is of another type, which reads like a loss from then on: enforcers enter themselves again with
-- their next heartbeats. PEXPIRE 0 deletes: the controller's user may not DEL. Members and deadlines go together, and
-- take the reports along: in one without the others would stay who is never heard again.
local function repair()
  local joined = intact('members', 'ZRANGEBYSCORE', KEYS[1], '-inf', '+inf', 'LIMIT', 0, 1)
  local heard = intact('deadlines', 'ZRANGEBYSCORE', KEYS[2], '-inf', '+inf', 'LIMIT', 0, 1)
  local reported = intact('reports', 'HGET', KEYS[3], '')
  if not (joined and heard) then
    redis.call('PEXPIRE', KEYS[1], 0)
    redis.call('PEXPIRE', KEYS[2], 0)
  end
  if not (joined and heard and reported) then
    redis.call('PEXPIRE', KEYS[3], 0)
  end
  local held, other = of_type('GET', KEYS[4])
  if other or held and not version() then
    damaged[#damaged + 1] = 'membership'
    redis.call('PEXPIRE', KEYS[4], 0)
  end
  return #damaged > 0
end

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
  local next = math.max(now, (version() or 0) + 1)
  redis.call('SET', KEYS[4], string.format('%.0f', next), 'PX', KEEP)
end
