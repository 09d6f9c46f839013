-- The states of one run: read once, changed here, written once at the end. Per key index: the state as read or as last
-- charged, as in algorithm.State, and the algorithm that it is one of (false: it is not understood).
local FORMAT = 16 -- state format 1 in the high half of a state's first byte, the algorithm in the low half
local STATE, STATE_BYTES = '>BI7I4I6', 18 -- format and algorithm, at, used, carry

local values = {} -- what was in the key
local algorithm, at, used, carry = {}, {}, {}, {}
local reset_in, changed = {}, {} -- of changed keys: the wait until nothing weighs any more; and their indices

-- read fetches the values of the first keys, which are strings. A key of another type reads as absent in MGET.
local function read(count)
  for from = 1, count, 1000 do
    local to = from + 999 < count and from + 999 or count
    local got, absent = redis.call('MGET', spread(KEYS, from, to)), {}
    for i = from, to do
      local value = got[i - from + 1]
      values[i] = value
      if not value then
        absent[#absent + 1] = KEYS[i]
      end
    end
    if #absent > 0 and redis.call('EXISTS', spread(absent)) > 0 then
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
    algorithm[k], at[k], used[k], carry[k] = a, 0, 0, 0
    return true
  end
  if type(value) ~= 'string' or #value ~= STATE_BYTES or byte(value) ~= FORMAT + a then
    algorithm[k] = false
    return false
  end
  local _
  algorithm[k] = a
  _, at[k], used[k], carry[k] = unpack(STATE, value)
  return true
end
