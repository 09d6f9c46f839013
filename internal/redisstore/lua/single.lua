-- single answers what take does where each entry has one enforced counter of its own, and none is a log. Most batches
-- are like that. Every function and table that a script makes costs as much as a good part of a decision, so all is in
-- one loop here; the arithmetic is that of arithmetic.lua and counters.lua.
--
-- ARGV[1] the time in µs, or '' for the server's clock. ARGV[2] per key: callers (0 peeks: nothing is written),
-- algorithm, limit, window, capacity, cost of one caller. The reply is that of take.
local TOKEN_BUCKET, FIXED_WINDOW, SLIDING_COUNTER = 0, 1, 2
local MAX_WAIT = 9007199254740991 -- 2^53 - 1
local FORMAT = 16
local STATE, STATE_BYTES = '>BI7I4I6I6', 24
local COUNTER_IN, COUNTER_BYTES = '>I4BI4I6I4I4', 23
local ONE_OUT, FIRST_OUT = '>BI4I4BI4I7I7I6', '>I7BI4I4BI4I7I7I6'

local call = redis.call
local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- muldiv returns floor(a*b/m) and a*b mod m of products that a double does not hold.
local function muldiv(a, b, m)
  local quotient, rest, unit = 0, 0, 1073741824
  while unit >= 1 do
    local digit = math.floor(a / unit)
    a = a - digit * unit
    local x = rest * 1024 + digit * b
    rest = x % m
    quotient = quotient * 1024 + (x - rest) / m
    unit = unit / 1024
  end
  return quotient > MAX_WAIT and MAX_WAIT or quotient, rest
end

local data, keys, out = ARGV[2], #KEYS, nil
local values
if keys > 1 then
  values, out = {}, {pack('>I7', now)}
  for from = 1, keys, 1000 do
    local to = from + 999 < keys and from + 999 or keys
    local got, absent = call('MGET', spread(KEYS, from, to)), nil
    for i = from, to do
      local value = got[i - from + 1]
      values[i] = value
      if not value then
        absent = absent or {}
        absent[#absent + 1] = KEYS[i]
      end
    end
    if absent and call('EXISTS', spread(absent)) > 0 then -- MGET reads a key of another type as absent
      for i = from, to do
        if not values[i] and call('EXISTS', KEYS[i]) == 1 then
          values[i] = 'another type'
        end
      end
    end
  end
end

for k = 1, keys do
  local callers, a, l, w, capacity, cost = unpack(COUNTER_IN, data, k * COUNTER_BYTES - COUNTER_BYTES + 1)
  local value
  if values then
    value = values[k]
  else
    value = redis.pcall('GET', KEYS[1])
    if value and type(value) == 'table' then
      if not string.find(value.err, 'WRONGTYPE', 1, true) then
        error(value.err)
      end
      value = 'another type'
    end
  end
  local _, dated, u, c, expiry = nil, 0, 0, 0, 0
  local understood = true
  if value then
    understood = #value == STATE_BYTES and string.byte(value) == FORMAT + a
    if understood then
      _, dated, u, c, expiry = unpack(STATE, value)
    end
  end

  if not understood then
    if not out then
      return pack(FIRST_OUT, now, 1, 0, 0, 0, 0, 0, 0, 0)
    end
    out[k + 1] = pack(ONE_OUT, 1, 0, 0, 0, 0, 0, 0, 0)
  else
    -- What weighs at t, the time at which the counter is judged: its own, if that is up to one window ahead.
    local t, rebased, free = now, false, nil
    if a == TOKEN_BUCKET then
      local passed = now - dated
      if passed < 0 then
        rebased = -passed > w
        if not rebased then
          t = dated
        end
      elseif passed > 0 and (u > 0 or c > 0) and l > 0 then
        local whole, parts = 0, passed
        if passed >= w then
          whole = (passed - passed % w) / w * l
          parts = passed % w
        end
        if whole > u then
          u, c = 0, 0
        else
          local product = l * parts
          if product <= MAX_WAIT then
            parts = product % w
            whole = whole + (product - parts) / w
          else
            local more
            more, parts = muldiv(l, parts, w)
            whole = whole + more
          end
          u, c = u - whole, c - parts
          if c < 0 then
            u, c = u - 1, c + w
          end
          if u < 0 then
            u, c = 0, 0
          end
        end
      end
      free = l <= 0 and 0 or c > 0 and capacity - u - 1 or capacity - u
    else
      local ahead = dated * w - now
      rebased = ahead > w
      if ahead > 0 and not rebased then
        t = dated * w
      end
      local window = (t - t % w) / w
      if dated < window then
        if a == SLIDING_COUNTER and dated == window - 1 then
          u, c = 0, u
        else
          u, c = 0, 0
        end
      end
      dated = window
      free = l - u
      if c > 0 then
        local left = w - t % w
        local product = c * left
        local weight, rest
        if product <= MAX_WAIT then
          rest = product % w
          weight = (product - rest) / w
        else
          weight, rest = muldiv(c, left, w)
        end
        free = free - weight - (rest > 0 and 1 or 0)
      end
    end

    local granted = callers
    if granted * cost > free then
      granted = free < cost and 0 or math.floor(free / cost)
    end
    u, free = u + granted * cost, free - granted * cost

    -- gone is the wait until nothing weighs any more, retry that until one more caller fits.
    local flags, retry, gone = 3, 0, 0
    if free < cost then
      flags, free = 2, free < 0 and 0 or free
      if cost > capacity then
        flags, retry = 0, MAX_WAIT
      end
    end
    if a == TOKEN_BUCKET then
      for round = 1, flags == 2 and 2 or 1 do
        local whole, wait = round == 1 and u or u + cost - capacity, 0
        if whole ~= 0 or c ~= 0 then
          wait = MAX_WAIT
          if l > 0 then
            local product, rest = whole * w, nil
            if product <= MAX_WAIT then
              rest = product % l
              wait = (product - rest) / l
            else
              wait, rest = muldiv(whole, w, l)
            end
            rest = rest + c + l - 1
            wait = wait + (rest - rest % l) / l
          end
          wait = wait + (t - now)
          if wait > MAX_WAIT then
            wait = MAX_WAIT
          end
        end
        if round == 1 then
          gone = wait
        else
          retry = wait
        end
      end
    else
      local left = w - t % w
      if u > 0 or c > 0 then
        gone = (a == SLIDING_COUNTER and u > 0 and left + w or left) + (t - now)
        if gone > MAX_WAIT then
          gone = MAX_WAIT
        end
      end
      if flags == 2 then
        if a == SLIDING_COUNTER then
          local room = l - u - cost
          local of, over = c, left
          if room < 0 then
            room, of, over = l - cost, u, left + w
          end
          local product = room * w
          if product <= MAX_WAIT then
            left = over - (product - product % of) / of
          else
            left = over - muldiv(room, w, of)
          end
        end
        retry = left == 0 and 0 or left + (t - now)
        if retry > MAX_WAIT then
          retry = MAX_WAIT
        end
      end
    end

    if granted > 0 or rebased and callers > 0 then
      if a == TOKEN_BUCKET then
        dated = t
      end
      local key, now_ms = KEYS[k], (now - now % 1000) / 1000
      local ttl = gone + 999
      ttl = (ttl - ttl % 1000) / 1000 + 1
      if gone == 0 then
        call('DEL', key)
      elseif value and expiry >= now_ms + ttl then
        call('SETRANGE', key, '0', pack(STATE, FORMAT + a, dated, u, c, expiry))
      else
        if a == TOKEN_BUCKET and ttl > 4000 then
          ttl = ttl + (ttl - ttl % 4) / 4
        else
          ttl = ttl + 1000
        end
        call('SET', key, pack(STATE, FORMAT + a, dated, u, c, now_ms + ttl), 'PX', string.format('%d', ttl))
      end
    elseif callers > 0 and value and expiry * 1000 <= now and call('PTTL', KEYS[k]) == -1 then
      local ttl = gone + 999 -- somebody left it without a time to live
      call('PEXPIRE', KEYS[k], string.format('%d', (ttl - ttl % 1000) / 1000 + 1))
    end
    if not out then
      return pack(FIRST_OUT, now, 0, granted, granted, flags, free, retry, gone, t - now)
    end
    out[k + 1] = pack(ONE_OUT, 0, granted, granted, flags, free, retry, gone, t - now)
  end
end
return table.concat(out)
