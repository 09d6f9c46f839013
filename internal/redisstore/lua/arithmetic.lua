-- The arithmetic of package algorithm, in µs; see there for the meaning and the proofs.
local floor, byte = math.floor, string.byte

local TOKEN_BUCKET, FIXED_WINDOW, SLIDING_COUNTER, SLIDING_LOG = 0, 1, 2, 3
local MAX_WAIT = 9007199254740991 -- 2^53 - 1

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- muldiv returns floor(a*b/m) and a*b mod m, exactly: a double holds 53 bits, so larger products are built from the
-- 10-bit digits of a. Needs a < 2^40 and 1024*m + 1023*b <= 2^53.
local function muldiv(a, b, m)
  local product = a * b
  if product <= MAX_WAIT then
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
  if quotient > MAX_WAIT then
    quotient = MAX_WAIT
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
  if wait > MAX_WAIT then
    return MAX_WAIT
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
    return MAX_WAIT
  end
  local quotient, rest = muldiv(whole, w, l)
  return quotient + floor((rest + parts + l - 1) / l)
end
