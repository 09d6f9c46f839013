-- take answers a batch of entries, one after the other, each on the state that the former left.
--
-- ARGV[1] the time in µs, or '' for the server's clock
-- ARGV[2] the entries: callers (0 peeks: nothing is written), number of counters, and per counter: rule (0 enforced,
--         else the shadow rule), algorithm, index of its key, limit, window, capacity, cost of one caller
--
-- The reply is the time, and per entry: 1 if a state was not understood, callers granted, then for each shadow rule
-- the callers that it would have granted (2^32-1: its state was not understood), then per counter: flags (1 allowed,
-- 2 satisfiable), remaining, retry after, reset after, and by how much it was judged ahead of the time.
local entries = ARGV[2]
local UNKNOWN = 4294967295

local rules, algorithms, index, limits, windows, capacities, costs = {}, {}, {}, {}, {}, {}, {}
local judged, debts, carries, rooms, shadow = {}, {}, {}, {}, {}
local unhealed = {}
local out, lines, position, length = {pack('>I7', now)}, 1, 1, #entries

read(1, #KEYS)
while position <= length do
  local callers, count
  callers, count, position = unpack('>I4I2', entries, position)
  local granted, failed, shadows = callers, 0, 0

  for j = 1, count do
    local rule, a, k, l, w, capacity, cost
    rule, a, k, l, w, capacity, cost, position = unpack('>BBI2I4I6I4I4', entries, position)
    rules[j], algorithms[j], index[j], limits[j], windows[j], capacities[j] = rule, a, k, l, w, capacity
    costs[j] = cost
    if rule > shadows then
      shadows, shadow[rule] = rule, callers
    end
    if understand(k, a) then
      local t, u, c, rebased = age(a, k, l, w)
      if rebased and callers > 0 then
        store(a, k, t, u, c, l, w)
        reset_in[k] = reset(a, t, u, c, l, w)
      end
      local free = room(a, t, u, c, l, w, capacity)
      judged[j], debts[j], carries[j], rooms[j] = t, u, c, free
      local fits = free < cost and 0 or floor(free / cost)
      if rule == 0 then
        if fits < granted then
          granted = fits
        end
      elseif fits < shadow[rule] then
        shadow[rule] = fits
      end
    elseif rule == 0 then
      failed = 1
    else
      shadow[rule] = -1
    end
  end

  if failed == 1 then
    granted = 0
  end
  lines = lines + 1
  out[lines] = pack('>BI4', failed, granted)
  for rule = 1, shadows do
    if granted < shadow[rule] then
      shadow[rule] = granted
    end
    lines = lines + 1
    out[lines] = pack('>I4', shadow[rule] < 0 and UNKNOWN or shadow[rule])
  end

  for j = 1, count do
    local rule = rules[j]
    lines = lines + 1
    if failed == 1 or rule > 0 and shadow[rule] < 0 then
      out[lines] = pack('>BI4I7I7I6', 0, 0, 0, 0, 0)
    else
      local a, k, l, w, capacity = algorithms[j], index[j], limits[j], windows[j], capacities[j]
      local cost = costs[j]
      local t, u, c, free = judged[j], debts[j], carries[j], rooms[j]
      local charge = cost * (rule == 0 and granted or shadow[rule])
      if charge > 0 then
        u = u + charge
        free = free - charge
        store(a, k, t, u, c, l, w)
      end
      local gone = reset(a, t, u, c, l, w)
      if charge > 0 then
        reset_in[k] = gone
      elseif callers > 0 and values[k] then
        unhealed[k] = gone
      end
      local flags, retry = 3, 0
      if free < cost then
        if cost > capacity then
          flags, retry = 0, MAX_WAIT
        else
          flags, retry = 2, wait(a, t, u, c, l, w, capacity, cost)
        end
      end
      out[lines] = pack('>BI4I7I7I6', flags, free < 0 and 0 or free, retry, gone, t - now)
    end
  end
end

write()
-- A state that somebody left without a time to live gets one when it denies; charging sets it anyway.
for k, gone in pairs(unhealed) do
  if not reset_in[k] and redis.call('PTTL', KEYS[k]) == -1 then
    redis.call('PEXPIRE', KEYS[k], floor((gone + 999) / 1000) + 1)
  end
end
return table.concat(out)
