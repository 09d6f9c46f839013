-- A SlidingWindowLog is a list of entries, oldest first: the time of a charge, its cost, and the sum of all costs before
-- it since the list began. So what was used between two entries is known from the two, and the entry at which a sum or
-- an age is reached is found by halving: no step here touches all entries, except a refund of an old charge.
local ENTRY, ENTRY_BYTES = '>BI7I4I6', 18 -- format and algorithm, time, cost, sum before
local LOG = FORMAT + SLIDING_LOG
local logs = {}

-- entry reads entry i of a log, counted from 0: time, cost, and the sum before it.
local function entry(k, i)
  local _, time, cost, before = unpack(ENTRY, redis.call('LINDEX', KEYS[k], i == 0 and '0' or text(i)))
  return time, cost, before
end

-- search returns the first entry from i on for which holds(time, cost, before), with those three. It must hold for the
-- newest. The one that is looked for is near i, mostly i itself.
local function search(k, i, holds)
  local below, step, last = i - 1, 1, nil
  local time, cost, before = entry(k, i)
  while not holds(time, cost, before) do
    last = last or redis.call('LLEN', KEYS[k]) - 1
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
  local value, other = of_type('LINDEX', KEYS[k], '-1')
  values[k] = value
  if not value and not other then
    algorithm[k], at[k], used[k], carry[k] = SLIDING_LOG, 0, 0, 0
    logs[k] = {total = 0, before = 0}
    return true
  elseif other or #value ~= ENTRY_BYTES or byte(value) ~= LOG then
    algorithm[k] = false
    return false
  end
  local _, time, cost, before = unpack(ENTRY, value)
  algorithm[k], at[k], used[k], carry[k] = SLIDING_LOG, time, cost, 0
  logs[k] = {newest = time, cost = cost, total = before + cost, before = before + cost}
  return true
end

-- age_log returns what still weighs of key k, as t and used, and whether it has to be written as of now. All of a run
-- is at one time, so entries age once.
local function age_log(k, w)
  local log = logs[k]
  local dated = at[k]
  local t = judged_at(dated, w)
  expiry[k] = floor((dated + w) / 1000)
  log.window = w
  if not log.aged and values[k] then
    local edge = (dated > t and dated or t) - w -- entries of this time and older ones no longer count
    log.live = dated > edge
    if log.live then
      log.first, log.oldest, log.goes, log.before = search(k, 0, function(time)
        return time > edge
      end)
    end
    log.rebased = dated - now > w
    if log.rebased then
      at[k] = t
    end
    used[k] = log.total - log.before
  end
  log.aged = true
  return t, used[k], 0, log.rebased
end

-- wait_log is the shortest time until a cost fits: the oldest entries have to go until it does.
local function wait_log(k, t, over, w)
  local log = logs[k]
  if log.rebased or over > log.total - log.before then
    return later(w, t) -- the entry that is charged in this run, at t
  end
  local time = log.oldest
  if over > log.goes then
    local _
    _, time = search(k, log.first + 1, function(_, cost, before)
      return before + cost - log.before >= over
    end)
  end
  return later(time - t + w, t)
end

-- write_log drops what no longer counts of key k, adds what was charged, and sees to the time to live. That one is set
-- with the first charge of each eighth of a window, and lasts for all of them.
local function write_log(k, gone)
  local log, key = logs[k], KEYS[k]
  local eighth = floor(log.window / 8)
  if log.rebased or not log.live then
    redis.call('DEL', key)
    redis.call('RPUSH', key, pack(ENTRY, LOG, at[k], used[k], 0))
  else
    if log.first > 0 then
      redis.call('LPOP', key, text(log.first))
    end
    local charged = used[k] - (log.total - log.before)
    if charged == 0 then
      -- only aged
    elseif at[k] == log.newest then
      redis.call('LSET', key, '-1', pack(ENTRY, LOG, at[k], log.cost + charged, log.total - log.cost))
    else
      redis.call('RPUSH', key, pack(ENTRY, LOG, at[k], charged, log.total))
    end
    if not log.rewritten and floor(at[k] / eighth) == floor(log.newest / eighth) then
      return
    end
  end
  redis.call('PEXPIRE', key, text(live_for(gone + eighth) + 1000))
end

-- refund_log gives back to the entry of the time taken, if there is one. The sums of all newer entries change with it,
-- so they are written again; there are few, because refunds come soon.
local function refund_log(k, amount, taken)
  local key = KEYS[k]
  if at[k] < taken then
    return
  end
  local i, time, cost, before = search(k, 0, function(time)
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
    redis.call('RPUSH', key, pack(ENTRY, LOG, time, cost - amount, before))
  end
  for j = 1, #newer do
    local _, t, c, b = unpack(ENTRY, newer[j])
    redis.call('RPUSH', key, pack(ENTRY, LOG, t, c, b - amount))
  end
  algorithm[k] = nil
  if parse_log(k) then
    logs[k].rewritten = true
  end
end
