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
-- single answers what take does where each entry has one enforced counter of its own, and none is a log. Most batches
-- are like that. Every function and table that a script makes costs as much as a good part of a decision, so all is in
-- one loop here; the arithmetic is that of arithmetic.lua and counters.lua.
--
-- ARGV[1] the time in µs, or '' for the server's clock. ARGV[2] per key: callers (0 peeks: nothing is written),
-- algorithm, limit, window, capacity, cost of one caller. The reply is that of take.

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
  return quotient > 9007199254740991 and 9007199254740991 or quotient, rest
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
  local callers, a, l, w, capacity, cost = unpack('>I4BI4I6I4I4', data, k * 23 - 23 + 1)
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
    understood = #value == 24 and string.byte(value) == 16 + a
    if understood then
      _, dated, u, c, expiry = unpack('>BI7I4I6I6', value)
    end
  end

  if not understood then
    if not out then
      return pack('>I7BI4I4BI4I7I7I6', now, 1, 0, 0, 0, 0, 0, 0, 0)
    end
    out[k + 1] = pack('>BI4I4BI4I7I7I6', 1, 0, 0, 0, 0, 0, 0, 0)
  else
    -- What weighs at t, the time at which the counter is judged: its own, if that is up to one window ahead.
    local t, rebased, free = now, false, nil
    if a == 0 then
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
          if product <= 9007199254740991 then
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
        if a == 2 and dated == window - 1 then
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
        if product <= 9007199254740991 then
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
        flags, retry = 0, 9007199254740991
      end
    end
    if a == 0 then
      for round = 1, flags == 2 and 2 or 1 do
        local whole, wait = round == 1 and u or u + cost - capacity, 0
        if whole ~= 0 or c ~= 0 then
          wait = 9007199254740991
          if l > 0 then
            local product, rest = whole * w, nil
            if product <= 9007199254740991 then
              rest = product % l
              wait = (product - rest) / l
            else
              wait, rest = muldiv(whole, w, l)
            end
            rest = rest + c + l - 1
            wait = wait + (rest - rest % l) / l
          end
          wait = wait + (t - now)
          if wait > 9007199254740991 then
            wait = 9007199254740991
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
        gone = (a == 2 and u > 0 and left + w or left) + (t - now)
        if gone > 9007199254740991 then
          gone = 9007199254740991
        end
      end
      if flags == 2 then
        if a == 2 then
          local room = l - u - cost
          local of, over = c, left
          if room < 0 then
            room, of, over = l - cost, u, left + w
          end
          local product = room * w
          if product <= 9007199254740991 then
            left = over - (product - product % of) / of
          else
            left = over - muldiv(room, w, of)
          end
        end
        retry = left == 0 and 0 or left + (t - now)
        if retry > 9007199254740991 then
          retry = 9007199254740991
        end
      end
    end

    if granted > 0 or rebased and callers > 0 then
      if a == 0 then
        dated = t
      end
      local key, now_ms = KEYS[k], (now - now % 1000) / 1000
      local ttl = gone + 999
      ttl = (ttl - ttl % 1000) / 1000 + 1
      if gone == 0 then
        call('DEL', key)
      elseif value and expiry >= now_ms + ttl then
        call('SETRANGE', key, '0', pack('>BI7I4I6I6', 16 + a, dated, u, c, expiry))
      else
        if a == 0 and ttl > 4000 then
          ttl = ttl + (ttl - ttl % 4) / 4
        else
          ttl = ttl + 1000
        end
        call('SET', key, pack('>BI7I4I6I6', 16 + a, dated, u, c, now_ms + ttl), 'PX', string.format('%d', ttl))
      end
    elseif callers > 0 and value and expiry * 1000 <= now and call('PTTL', KEYS[k]) == -1 then
      local ttl = gone + 999 -- somebody left it without a time to live
      call('PEXPIRE', KEYS[k], string.format('%d', (ttl - ttl % 1000) / 1000 + 1))
    end
    if not out then
      return pack('>I7BI4I4BI4I7I7I6', now, 0, granted, granted, flags, free, retry, gone, t - now)
    end
    out[k + 1] = pack('>BI4I4BI4I7I7I6', 0, granted, granted, flags, free, retry, gone, t - now)
  end
end
return table.concat(out)
