-- One counter of any algorithm: a is the algorithm, k the index of the key, l the limit, w the window; t, u and c are
-- the time at which it is judged, and what is then used and carried.

-- understand reads key k for an algorithm, and says whether its state is one.
local function understand(a, k)
  if algorithm[k] ~= nil then
    return algorithm[k] == a
  elseif a == SLIDING_LOG then
    return parse_log(k)
  end
  return parse(k, a, values[k])
end

-- age returns t, u and c of what still weighs, and whether the state was dated so far ahead that it has to be written
-- as of now.
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
  elseif a == SLIDING_LOG then
    return age_log(k, w)
  end
  local t = judged_at(dated * w, w)
  local window = floor(t / w)
  if dated < window then
    if a == SLIDING_COUNTER and dated == window - 1 then
      u, c = 0, u
    else
      u, c = 0, 0
    end
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
  if a == TOKEN_BUCKET then
    return later(drains(u + cost - capacity, c, l, w), t)
  elseif a == SLIDING_LOG then
    return wait_log(k, t, u + cost - l, w)
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
local function reset(a, k, t, u, c, l, w)
  if a == TOKEN_BUCKET then
    return later(drains(u, c, l, w), t)
  elseif u == 0 and c == 0 then
    return 0
  elseif a == SLIDING_LOG then
    return later(at[k] - t + w, t)
  end
  local left = w - t % w
  if a == SLIDING_COUNTER and u > 0 then
    left = left + w
  end
  return later(left, t)
end

-- store keeps the state of key k for the end of the run, and returns the wait until nothing of it weighs any more.
local function store(a, k, t, u, c, l, w)
  if a == FIXED_WINDOW or a == SLIDING_COUNTER then
    at[k] = floor(t / w)
  elseif a == TOKEN_BUCKET or u > used[k] then -- a log is dated by its newest entry
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
    elseif algorithm[k] == SLIDING_LOG then
      write_log(k, gone)
    else
      write_state(k, gone)
    end
  end
end
