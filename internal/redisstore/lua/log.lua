-- A SlidingWindowLog is a list of states, oldest first, of which at is the time of a charge, used its cost and carry
-- the sum of all costs before it since the list began. So what was used between two entries is known from the two, and
-- the entry at which a sum or an age is reached is found by halving: no step here touches all entries, except a refund
-- of an old charge.
local logs = {}

-- entry reads entry i of a log, counted from 0: time, cost, and the sum before it.
local function entry(k, i)
  local _, time, cost, before = unpack(STATE, redis.call('LINDEX', KEYS[k], i))
  return time, cost, before
end

-- search returns the first entry from i to last for which holds(time, cost, before), with those three. It must hold
-- for the last. The one that is looked for is near i, mostly i itself.
local function search(k, i, last, holds)
  local below, step = i - 1, 1
  local time, cost, before = entry(k, i)
  while not holds(time, cost, before) do
    below = i
    i = i + step < last and i + step or last
    step = step * 2
    time, cost, before = entry(k, i)
  end
  while i - below > 1 do
    local middle = floor((below + i) / 2)
    local t, c, b = entry(k, middle)
    if holds(t, c, b) then
      i, time, cost, before = middle, t, c, b
    else
      below = middle
    end
  end
  return i, time, cost, before
end

-- parse_log reads the newest entry of key k, and says whether it is one.
local function parse_log(k)
  local value = redis.pcall('LINDEX', KEYS[k], -1)
  values[k] = value
  if not parse(k, SLIDING_LOG, value) then
    return false
  end
  logs[k] = {newest = at[k], cost = used[k], total = carry[k] + used[k], first = 0, count = 0, before = 0}
  carry[k] = 0
  return true
end

-- age_log returns what still weighs of key k, as t and used, and whether it has to be written as of now. All of a run
-- is at one time, so entries age once.
local function age_log(k, w)
  local log = logs[k]
  local dated = at[k]
  local t = judged_at(dated, w)
  if not log.aged and values[k] then
    local edge = (dated > t and dated or t) - w -- entries of this time and older ones no longer count
    if dated > edge then
      local _
      log.count = redis.call('LLEN', KEYS[k])
      log.first, _, _, log.before = search(k, 0, log.count - 1, function(time)
        return time > edge
      end)
    end
    log.rebased = dated - now > w
    if log.rebased then
      at[k] = t
    end
    used[k] = log.count > 0 and log.total - log.before or 0
  end
  log.aged = true
  return t, used[k], 0, log.rebased
end

-- wait_log is the shortest time until a cost fits: the oldest entries have to go until it does.
local function wait_log(k, t, over, w)
  local log = logs[k]
  if log.rebased or log.count == 0 or over > log.total - log.before then
    return later(w, t) -- the entry that is charged in this run, at t
  end
  local _, time = search(k, log.first, log.count - 1, function(_, cost, before)
    return before + cost - log.before >= over
  end)
  return later(time - t + w, t)
end

-- write_log drops what no longer counts of key k, and adds what was charged.
local function write_log(k)
  local log, key = logs[k], KEYS[k]
  if log.rebased or log.count == 0 then
    redis.call('DEL', key)
    redis.call('RPUSH', key, pack(STATE, FORMAT + SLIDING_LOG, at[k], used[k], 0))
    return
  end
  if log.first > 0 then
    redis.call('LPOP', key, log.first)
  end
  local charged = used[k] - (log.total - log.before)
  if charged == 0 then
    return
  elseif at[k] == log.newest then
    redis.call('LSET', key, -1, pack(STATE, FORMAT + SLIDING_LOG, at[k], log.cost + charged, log.total - log.cost))
  else
    redis.call('RPUSH', key, pack(STATE, FORMAT + SLIDING_LOG, at[k], charged, log.total))
  end
end

-- refund_log gives back to the entry of the time taken, if there is one. The sums of all newer entries change with it,
-- so they are written again; there are few, because refunds come soon.
local function refund_log(k, amount, taken)
  local key = KEYS[k]
  if at[k] < taken then
    return
  end
  local last = redis.call('LLEN', key) - 1
  local i, time, cost, before = search(k, 0, last, function(time)
    return time >= taken
  end)
  if time ~= taken then
    return
  end
  if amount > cost then
    amount = cost
  end
  local newer = redis.call('LRANGE', key, i + 1, -1)
  if i == 0 then
    redis.call('DEL', key)
  else
    redis.call('LTRIM', key, 0, i - 1)
  end
  if cost > amount then
    redis.call('RPUSH', key, pack(STATE, FORMAT + SLIDING_LOG, time, cost - amount, before))
  end
  for j = 1, #newer do
    local _, t, c, b = unpack(STATE, newer[j])
    redis.call('RPUSH', key, pack(STATE, FORMAT + SLIDING_LOG, t, c, b - amount))
  end
  algorithm[k] = nil
  parse_log(k)
end
