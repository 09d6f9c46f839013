-- of_type runs a command that reads a key, and returns false when the key is of another type than the command's.
local function of_type(...)
  local value = redis.pcall(...)
  if type(value) == 'table' and value.err then
    if string.find(value.err, 'WRONGTYPE', 1, true) then
      return false, true
    end
    error(value.err)
  end
  return value, false
end
-- Fixed-width big-endian integers in binary strings, as the struct library of Redis packs them. A server without that
-- library gets the few formats that are used here.
local spread = unpack
local library = rawget(_G, 'struct')
local pack = library and library.pack or function(format, ...)
  local values, i, out = {...}, 0, {}
  for kind, size in string.gmatch(format, '([BI])(%d*)') do
    i = i + 1
    local value = values[i]
    local bytes = {}
    for place = kind == 'B' and 1 or tonumber(size), 1, -1 do
      bytes[place] = string.char(value % 256)
      value = math.floor(value / 256)
    end
    out[i] = table.concat(bytes)
  end
  return table.concat(out)
end
local unpack = library and library.unpack or function(format, data, position)
  local values = {}
  position = position or 1
  for kind, size in string.gmatch(format, '([BI])(%d*)') do
    local value = 0
    for _ = 1, kind == 'B' and 1 or tonumber(size) do
      value = value * 256 + string.byte(data, position)
      position = position + 1
    end
    values[#values + 1] = value
  end
  values[#values + 1] = position
  return spread(values)
end
-- The arithmetic of package algorithm, in µs; see there for the meaning and the proofs.
local floor, byte = math.floor, string.byte


local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- muldiv returns floor(a*b/m) and a*b mod m, exactly: a double holds 53 bits, so larger products are built from the
-- 10-bit digits of a. Needs a < 2^40 and 1024*m + 1023*b <= 2^53.
local function muldiv(a, b, m)
  local product = a * b
  if product <= 9007199254740991 then
    local rest = product % m
    return (product - rest) / m, rest
  end
  local quotient, rest, unit = 0, 0, 1073741824
  while unit >= 1 do
    local digit = floor(a / unit)
    a = a - digit * unit
    local x = rest * 1024 + digit * b
    rest = x % m
    quotient = quotient * 1024 + (x - rest) / m
    unit = unit / 1024
  end
  if quotient > 9007199254740991 then
    quotient = 9007199254740991
  end
  return quotient, rest
end

-- judged_at returns the time at which a state of that date is judged: up to one window ahead of now, its own.
local function judged_at(dated, w)
  local ahead = dated - now
  if ahead > 0 and ahead <= w then
    return dated
  end
  return now
end

-- later adds the time that a state is ahead to a wait, unless there is none.
local function later(wait, t)
  if wait == 0 then
    return 0
  end
  wait = wait + (t - now) -- in this order: wait + t may have more than 53 bits
  if wait > 9007199254740991 then
    return 9007199254740991
  end
  return wait
end

-- earned is what a bucket earns in the time d: whole tokens and 1/w tokens, or only that it is more than most.
local function earned(d, most, l, w)
  if l <= 0 then
    return 0, 0, false
  end
  local windows = floor(d / w)
  if windows * l > most then
    return 0, 0, true
  end
  local whole, parts = muldiv(l, d - windows * w, w)
  return windows * l + whole, parts, false
end

-- drains is the time in which a debt of whole + parts/w tokens is gone.
local function drains(whole, parts, l, w)
  if whole == 0 and parts == 0 then
    return 0
  elseif l <= 0 then
    return 9007199254740991
  end
  local quotient, rest = muldiv(whole, w, l)
  return quotient + floor((rest + parts + l - 1) / l)
end
-- The states of one run: read once, changed here, written once at the end. Per key index: the state as read or as last
-- charged, as in algorithm.State, and the algorithm that it is one of (false: it is not understood).

local values = {} -- what was in the key
local algorithm, at, used, carry, expiry = {}, {}, {}, {}, {}
local reset_in, changed = {}, {} -- of changed keys: the wait until nothing weighs any more; and their indices

-- read fetches the values of the first keys, which are strings. A key of another type reads as absent in MGET.
local function read(count)
  for from = 1, count, 1000 do
    local to = from + 999 < count and from + 999 or count
    local got, absent = redis.call('MGET', spread(KEYS, from, to)), nil
    for i = from, to do
      local value = got[i - from + 1]
      values[i] = value
      if not value then
        absent = absent or {}
        absent[#absent + 1] = KEYS[i]
      end
    end
    if absent and redis.call('EXISTS', spread(absent)) > 0 then
      for i = from, to do
        if not values[i] and redis.call('EXISTS', KEYS[i]) == 1 then
          values[i] = 'another type'
        end
      end
    end
  end
end

-- parse takes a value as a state of algorithm a, and says whether it is one.
local function parse(k, a, value)
  if not value then
    algorithm[k], at[k], used[k], carry[k], expiry[k] = a, 0, 0, 0, 0
    return true
  elseif #value ~= 24 or byte(value) ~= 16 + a then
    algorithm[k] = false
    return false
  end
  local _
  algorithm[k] = a
  _, at[k], used[k], carry[k], expiry[k] = unpack('>BI7I4I6I6', value)
  return true
end

-- live_for is the time to live in ms that a state needs which is gone in a time.
local function live_for(gone)
  return floor((gone + 999) / 1000) + 1
end

-- text writes an integer. redis.call writes numbers with 17 digits, which takes longer than all the rest.
local function text(integer)
  return string.format('%d', integer)
end

-- write_state puts a changed state into key k. To set a time to live takes longer than all the rest, so it gets some
-- slack, and while it suffices only the bytes are written. The slack of a bucket lasts for many charges; the others end
-- with their window, and have it for keys that move to a node whose clock is behind.
local function write_state(k, gone)
  local head, ttl, now_ms = 16 + algorithm[k], live_for(gone), floor(now / 1000)
  if values[k] and expiry[k] >= now_ms + ttl then
    redis.call('SETRANGE', KEYS[k], '0', pack('>BI7I4I6I6', head, at[k], used[k], carry[k], expiry[k]))
    return
  end
  if algorithm[k] == 0 and ttl > 4000 then
    ttl = ttl + floor(ttl / 4)
  else
    ttl = ttl + 1000
  end
  redis.call('SET', KEYS[k], pack('>BI7I4I6I6', head, at[k], used[k], carry[k], now_ms + ttl), 'PX', text(ttl))
end

-- heal gives a key that has outlived its own expiry a time to live: somebody left it without one.
local function heal(k, gone)
  if redis.call('PTTL', KEYS[k]) == -1 then
    redis.call('PEXPIRE', KEYS[k], text(live_for(gone)))
  end
end
-- A SlidingWindowLog is a list of entries, oldest first: the time of a charge, its cost, and the sum of all costs before
-- it since the list began. So what was used between two entries is known from the two, and the entry at which a sum or
-- an age is reached is found by halving: no step here touches all entries, except a refund of an old charge.
local logs, parse_log, age_log, wait_log, write_log, refund_log

-- with_logs makes these functions. Every function and table that a script makes costs as much as a good part of a
-- decision, and most runs meet no log.
local function with_logs()
  logs = {}

  -- entry reads entry i of a log, counted from 0: time, cost, and the sum before it.
  local function entry(k, i)
    local _, time, cost, before = unpack('>BI7I4I6', redis.call('LINDEX', KEYS[k], i == 0 and '0' or text(i)))
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
  function parse_log(k)
    local value, other = of_type('LINDEX', KEYS[k], '-1')
    values[k] = value
    if not value and not other then
      algorithm[k], at[k], used[k], carry[k] = 3, 0, 0, 0
      logs[k] = {total = 0, before = 0}
      return true
    elseif other or #value ~= 18 or byte(value) ~= 19 then
      algorithm[k] = false
      return false
    end
    local _, time, cost, before = unpack('>BI7I4I6', value)
    algorithm[k], at[k], used[k], carry[k] = 3, time, cost, 0
    logs[k] = {newest = time, cost = cost, total = before + cost, before = before + cost}
    return true
  end

  -- age_log returns what still weighs of key k, as t and used, and whether it has to be written as of now. All of a run
  -- is at one time, so entries age once.
  function age_log(k, w)
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
  function wait_log(k, t, over, w)
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
  function write_log(k, gone)
    local log, key = logs[k], KEYS[k]
    local eighth = floor(log.window / 8)
    if log.rebased or not log.live then
      redis.call('DEL', key)
      redis.call('RPUSH', key, pack('>BI7I4I6', 19, at[k], used[k], 0))
    else
      if log.first > 0 then
        redis.call('LPOP', key, text(log.first))
      end
      local charged = used[k] - (log.total - log.before)
      if charged == 0 then
        -- only aged
      elseif at[k] == log.newest then
        redis.call('LSET', key, '-1', pack('>BI7I4I6', 19, at[k], log.cost + charged, log.total - log.cost))
      else
        redis.call('RPUSH', key, pack('>BI7I4I6', 19, at[k], charged, log.total))
      end
      if not log.rewritten and floor(at[k] / eighth) == floor(log.newest / eighth) then
        return
      end
    end
    redis.call('PEXPIRE', key, text(live_for(gone + eighth) + 1000))
  end

  -- refund_log gives back to the entry of the time taken, if there is one. The sums of all newer entries change with it,
  -- so they are written again; there are few, because refunds come soon.
  function refund_log(k, amount, taken)
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
      redis.call('RPUSH', key, pack('>BI7I4I6', 19, time, cost - amount, before))
    end
    for j = 1, #newer do
      local _, t, c, b = unpack('>BI7I4I6', newer[j])
      redis.call('RPUSH', key, pack('>BI7I4I6', 19, t, c, b - amount))
    end
    algorithm[k] = nil
    if parse_log(k) then
      logs[k].rewritten = true
    end
  end
end
-- One counter of any algorithm: a is the algorithm, k the index of the key, l the limit, w the window; t, u and c are
-- the time at which it is judged, and what is then used and carried.

-- understand reads key k for an algorithm, and says whether its state is one.
local function understand(a, k)
  if algorithm[k] ~= nil then
    return algorithm[k] == a
  elseif a == 3 then
    if not logs then
      with_logs()
    end
    return parse_log(k)
  end
  return parse(k, a, values[k])
end

-- age returns t, u and c of what still weighs, and whether the state was dated so far ahead that it has to be written
-- as of now.
local function age(a, k, l, w)
  local dated, u, c = at[k], used[k], carry[k]
  if a == 0 then
    local t = judged_at(dated, w)
    if t > dated and (u > 0 or c > 0) then
      local whole, parts, more = earned(t - dated, u, l, w)
      if more then
        return t, 0, 0, false
      end
      u = u - whole
      c = c - parts
      if c < 0 then
        c = c + w
        u = u - 1
      end
      if u < 0 then
        u, c = 0, 0
      end
    end
    return t, u, c, dated - now > w
  elseif a == 3 then
    return age_log(k, w)
  end
  local t = judged_at(dated * w, w)
  local window = floor(t / w)
  if dated < window then
    if a == 2 and dated == window - 1 then
      u, c = 0, u
    else
      u, c = 0, 0
    end
  end
  return t, u, c, dated * w - now > w
end

-- room is the highest cost that fits, below zero when more than the capacity is in use.
local function room(a, t, u, c, l, w, capacity)
  if a == 0 then
    if l <= 0 then
      return 0
    elseif c > 0 then
      return capacity - u - 1
    end
    return capacity - u
  elseif c > 0 then
    local weight, rest = muldiv(c, w - t % w, w)
    if rest > 0 then
      weight = weight + 1
    end
    return l - u - weight
  end
  return l - u
end

-- wait is the shortest time until a cost fits that does not fit now, but can.
local function wait(a, k, t, u, c, l, w, capacity, cost)
  if a == 0 then
    return later(drains(u + cost - capacity, c, l, w), t)
  elseif a == 3 then
    return wait_log(k, t, u + cost - l, w)
  end
  local left = w - t % w
  if a == 2 then
    local free = l - u - cost
    if free >= 0 then
      left = left - muldiv(free, w, c)
    else
      left = left + w - muldiv(l - cost, w, u)
    end
  end
  return later(left, t)
end

-- reset is the shortest time until nothing weighs any more.
local function reset(a, k, t, u, c, l, w)
  if a == 0 then
    return later(drains(u, c, l, w), t)
  elseif u == 0 and c == 0 then
    return 0
  elseif a == 3 then
    return later(at[k] - t + w, t)
  end
  local left = w - t % w
  if a == 2 and u > 0 then
    left = left + w
  end
  return later(left, t)
end

-- store keeps the state of key k for the end of the run, and returns the wait until nothing of it weighs any more.
local function store(a, k, t, u, c, l, w)
  if a == 1 or a == 2 then
    at[k] = floor(t / w)
  elseif a == 0 or u > used[k] then -- a log is dated by its newest entry
    at[k] = t
  end
  used[k], carry[k] = u, c
  if not reset_in[k] then
    changed[#changed + 1] = k
  end
  local gone = reset(a, k, t, u, c, l, w)
  reset_in[k] = gone
  return gone
end

-- write puts all changed states into their keys, each with its time to live in the same step.
local function write()
  for i = 1, #changed do
    local k = changed[i]
    local gone = reset_in[k]
    if gone == 0 then
      redis.call('DEL', KEYS[k])
    elseif algorithm[k] == 3 then
      write_log(k, gone)
    else
      write_state(k, gone)
    end
  end
end
-- take answers a batch of entries, one after the other, each on the state that the former left.
--
-- ARGV[1] the time in µs, or '' for the server's clock. ARGV[2] how many of the last keys are logs. ARGV[3] the entries:
-- callers (0 peeks: nothing is written), number of counters, and per counter: its rule (0 enforced, else the shadow
-- rule), algorithm, index of its key (of logs, from the end), limit, window, capacity, cost of one caller.
--
-- The reply is the time, and per entry: 1 if a state was not understood, callers granted, then per counter: callers
-- that it was charged for, flags (1 allowed, 2 satisfiable), remaining, retry after, reset after, and by how much it was
-- judged ahead of the time.

local unhealed -- keys that were not charged and should have expired, and the wait until nothing of them weighs

-- judge returns t, u, c and the room of a counter, and how many callers of its cost fit; nil if it is not understood.
local function judge(callers, a, k, l, w, capacity, cost)
  if not understand(a, k) then
    return nil
  end
  local t, u, c, rebased = age(a, k, l, w)
  if rebased and callers > 0 then
    store(a, k, t, u, c, l, w)
  end
  local free = room(a, t, u, c, l, w, capacity)
  return t, u, c, free, free < cost and 0 or floor(free / cost)
end

-- charge charges a counter for callers that were granted, of those that asked, and returns what it then says.
local function charge(asked, granted, a, k, l, w, capacity, cost, t, u, c, free)
  local gone
  if granted > 0 then
    u, free = u + granted * cost, free - granted * cost
    gone = store(a, k, t, u, c, l, w)
  else
    gone = reset(a, k, t, u, c, l, w)
    if asked > 0 and values[k] and expiry[k] * 1000 <= now then
      unhealed = unhealed or {}
      unhealed[k] = gone
    end
  end
  if free >= cost then
    return granted, 3, free, 0, gone, t - now
  end
  if free < 0 then
    free = 0
  end
  if cost > capacity then
    return granted, 0, free, 9007199254740991, gone, t - now
  end
  return granted, 2, free, wait(a, k, t, u, c, l, w, capacity, cost), gone, t - now
end

local data, position = ARGV[3], 1
local out, lines = {pack('>I7', now)}, 1
local rules, algorithms, index, limits, windows, capacities, costs -- of the counters of one entry
local judged, debts, carries, rooms, shadow

read(#KEYS - ARGV[2])
while position <= #data do
  local callers, count, rule, a, k, l, w, capacity, cost, following = unpack('>I4I2BBI2I4I6I4I4', data, position)
  if a == 3 then
    k = #KEYS + 1 - k
  end
  if count == 1 and rule == 0 then -- as most are, and then without the tables
    position = following
    local t, u, c, free, granted = judge(callers, a, k, l, w, capacity, cost)
    lines = lines + 1
    if not t then
      out[lines] = pack('>BI4I4BI4I7I7I6', 1, 0, 0, 0, 0, 0, 0, 0)
    else
      if granted > callers then
        granted = callers
      end
      out[lines] = pack('>BI4I4BI4I7I7I6', 0, granted, charge(callers, granted, a, k, l, w, capacity, cost, t, u, c, free))
    end
  else
    if not rules then
      rules, algorithms, index, limits, windows, capacities, costs = {}, {}, {}, {}, {}, {}, {}
      judged, debts, carries, rooms, shadow = {}, {}, {}, {}, {}
    end
    position = position + 6
    local granted, failed, shadows = callers, false, 0
    for j = 1, count do
      rule, a, k, l, w, capacity, cost, position = unpack('>BBI2I4I6I4I4', data, position)
      if a == 3 then
        k = #KEYS + 1 - k
      end
      rules[j], algorithms[j], index[j], limits[j], windows[j], capacities[j], costs[j] = rule, a, k, l, w, capacity, cost
      local fits
      judged[j], debts[j], carries[j], rooms[j], fits = judge(callers, a, k, l, w, capacity, cost)
      if rule > shadows then
        shadows, shadow[rule] = rule, callers
      end
      if rule > 0 then
        shadow[rule] = math.min(shadow[rule], fits or 0)
      elseif fits then
        granted = math.min(granted, fits)
      else
        failed = true
      end
    end
    if failed then
      granted = 0
    end
    lines = lines + 1
    out[lines] = pack('>BI4', failed and 1 or 0, granted)
    for j = 1, count do
      lines = lines + 1
      if failed or not judged[j] then
        out[lines] = pack('>I4BI4I7I7I6', 0, 0, 0, 0, 0, 0)
      else
        local charged = rules[j] == 0 and granted or math.min(granted, shadow[rules[j]])
        out[lines] = pack('>I4BI4I7I7I6', charge(callers, charged, algorithms[j], index[j], limits[j], windows[j],
          capacities[j], costs[j], judged[j], debts[j], carries[j], rooms[j]))
      end
    end
  end
end

write()
if unhealed then
  for k, gone in pairs(unhealed) do
    if not reset_in[k] then
      heal(k, gone)
    end
  end
end
return table.concat(out)
