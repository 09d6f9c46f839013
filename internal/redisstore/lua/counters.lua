-- The counters of one run of a script: read once, judged and charged here, written once at the end. The arithmetic is
-- that of package algorithm, function by function; states, times and waits are in µs.
local floor = math.floor
local byte = string.byte

local TOKEN_BUCKET, FIXED_WINDOW, SLIDING_COUNTER, SLIDING_LOG = 0, 1, 2, 3
local MAX_WAIT = 9007199254740991 -- 2^53 - 1
local FORMAT = 16 -- state format 1 in the high half of a state's first byte, the algorithm in the low half
local STATE = '>BI7I4I6' -- format and algorithm, at, used, carry
local STATE_BYTES = 18

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- Per key: the state as read or as last charged, the algorithm that it was read for (false: not understood), and, where
-- it has to be written, the wait until nothing weighs any more.
local values = {}
local algorithm, at, used, carry = {}, {}, {}, {}
local reset_in, changed = {}, {}

-- muldiv returns floor(a*b/m) and a*b mod m, exactly: a double holds 53 bits, so larger products are built from the
-- 10-bit digits of a. Needs a < 2^40 and 1024*m + 1023*b <= 2^53.
local function muldiv(a, b, m)
  local product = a * b
  if product <= MAX_WAIT then
    local rest = product % m
    return (product - rest) / m, rest
  end
  local quotient, rest, unit = 0, 0, 1073741824
  while true do
    local digit = floor(a / unit)
    a = a - digit * unit
    local x = rest * 1024 + digit * b
    rest = x % m
    quotient = quotient * 1024 + (x - rest) / m
    if unit == 1 then
      break
    end
    unit = unit / 1024
  end
  if quotient > MAX_WAIT then
    quotient = MAX_WAIT
  end
  return quotient, rest
end

-- read fetches the values of keys first to last. A key of another type reads as absent in MGET, so absent ones are
-- asked for.
local function read(first, last)
  for from = first, last, 1000 do
    local to = from + 999
    if to > last then
      to = last
    end
    local got = redis.call('MGET', spread(KEYS, from, to))
    local absent = {}
    for i = 1, to - from + 1 do
      values[from + i - 1] = got[i]
      if not got[i] then
        absent[#absent + 1] = KEYS[from + i - 1]
      end
    end
    if #absent > 0 and redis.call('EXISTS', spread(absent)) > 0 then
      for i = from, to do
        if not values[i] and redis.call('EXISTS', KEYS[i]) == 1 then
          values[i] = 'a key of another type'
        end
      end
    end
  end
end

-- understand reads key k for an algorithm, and says whether its state is one.
local function understand(k, a)
  if algorithm[k] ~= nil then
    return algorithm[k] == a
  end
  local value = values[k]
  if not value then
    algorithm[k], at[k], used[k], carry[k] = a, 0, 0, 0
    return true
  end
  if #value ~= STATE_BYTES or byte(value) ~= FORMAT + a then
    algorithm[k] = false
    return false
  end
  local _
  algorithm[k] = a
  _, at[k], used[k], carry[k] = unpack(STATE, value)
  return true
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

-- judged_at returns the time at which a state of that date is judged: up to one window ahead of now, its own.
local function judged_at(dated, w)
  local ahead = dated - now
  if ahead > 0 and ahead <= w then
    return dated
  end
  return now
end

-- age returns what still weighs of the state of key k, as t, used and carry, and whether it was dated so far ahead
-- that it has to be written as of now. A state dated t is at t in a bucket, at the window of t otherwise.
local function age(a, k, l, w)
  local dated, u, c = at[k], used[k], carry[k]
  if a == TOKEN_BUCKET then
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
  end
  local t = judged_at(dated * w, w)
  local window = floor(t / w)
  if a == FIXED_WINDOW then
    if dated < window then
      u = 0
    end
  elseif dated < window - 1 then
    u, c = 0, 0
  elseif dated == window - 1 then
    u, c = 0, u
  end
  return t, u, c, dated * w - now > w
end

-- room is the highest cost that fits, below zero when more than the capacity is in use.
local function room(a, t, u, c, l, w, capacity)
  if a == TOKEN_BUCKET then
    if l <= 0 then
      return 0
    elseif c > 0 then
      return capacity - u - 1
    end
    return capacity - u
  elseif a == SLIDING_COUNTER and c > 0 then
    local weight, rest = muldiv(c, w - t % w, w)
    if rest > 0 then
      weight = weight + 1
    end
    return l - u - weight
  end
  return l - u
end

-- drains is the time in which a debt of whole + parts/w tokens is gone.
local function drains(whole, parts, l, w)
  if whole == 0 and parts == 0 then
    return 0
  elseif l <= 0 then
    return MAX_WAIT
  end
  local quotient, rest = muldiv(whole, w, l)
  return quotient + floor((rest + parts + l - 1) / l)
end

-- later adds the time that a state is ahead to a wait, unless there is none.
local function later(wait, t)
  if wait == 0 then
    return 0
  end
  wait = wait + t - now
  if wait > MAX_WAIT then
    return MAX_WAIT
  end
  return wait
end

-- wait is the shortest time until a cost fits that does not fit now, but can.
local function wait(a, t, u, c, l, w, capacity, cost)
  if a == TOKEN_BUCKET then
    return later(drains(u + cost - capacity, c, l, w), t)
  end
  local left = w - t % w
  if a == SLIDING_COUNTER then
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
local function reset(a, t, u, c, l, w)
  if a == TOKEN_BUCKET then
    return later(drains(u, c, l, w), t)
  elseif u > 0 then
    local left = w - t % w
    if a == SLIDING_COUNTER then
      left = left + w
    end
    return later(left, t)
  elseif c > 0 then
    return later(w - t % w, t)
  end
  return 0
end

-- store keeps the state of key k, to be written at the end.
local function store(a, k, t, u, c, l, w)
  if not reset_in[k] then
    changed[#changed + 1] = k
  end
  if a ~= TOKEN_BUCKET then
    t = floor(t / w)
  end
  at[k], used[k], carry[k] = t, u, c
end

-- write puts all changed states into their keys, each with its time to live in the same command.
local function write()
  for i = 1, #changed do
    local k = changed[i]
    if reset_in[k] == 0 then
      redis.call('DEL', KEYS[k])
    else
      redis.call('SET', KEYS[k], pack(STATE, FORMAT + algorithm[k], at[k], used[k], carry[k]),
        'PX', floor((reset_in[k] + 999) / 1000) + 1)
    end
  end
end
