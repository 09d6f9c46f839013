-- The states of one run: read once, changed here, written once at the end. Per key index: the state as read or as last
-- charged, as in algorithm.State, and the algorithm that it is one of (false: it is not understood).
local FORMAT = 16 -- state format 1 in the high half of a state's first byte, the algorithm in the low half
local STATE, STATE_BYTES = '>BI7I4I6I6', 24 -- format and algorithm, at, used, carry, expiry of the key in ms

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
  elseif #value ~= STATE_BYTES or byte(value) ~= FORMAT + a then
    algorithm[k] = false
    return false
  end
  local _
  algorithm[k] = a
  _, at[k], used[k], carry[k], expiry[k] = unpack(STATE, value)
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
  local head, ttl, now_ms = FORMAT + algorithm[k], live_for(gone), floor(now / 1000)
  if values[k] and expiry[k] >= now_ms + ttl then
    redis.call('SETRANGE', KEYS[k], '0', pack(STATE, head, at[k], used[k], carry[k], expiry[k]))
    return
  end
  if algorithm[k] == TOKEN_BUCKET and ttl > 4000 then
    ttl = ttl + floor(ttl / 4)
  else
    ttl = ttl + 1000
  end
  redis.call('SET', KEYS[k], pack(STATE, head, at[k], used[k], carry[k], now_ms + ttl), 'PX', text(ttl))
end

-- heal gives a key that has outlived its own expiry a time to live: somebody left it without one.
local function heal(k, gone)
  if redis.call('PTTL', KEYS[k]) == -1 then
    redis.call('PEXPIRE', KEYS[k], text(live_for(gone)))
  end
end
