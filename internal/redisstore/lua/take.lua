-- take answers a batch of entries, one after the other, each on the state that the former left.
--
-- ARGV[1] the time in µs, or '' for the server's clock. ARGV[2] how many of the last keys are logs. ARGV[3] the entries:
-- callers (0 peeks: nothing is written), number of counters, and per counter: its rule (0 enforced, else the shadow
-- rule), algorithm, index of its key (of logs, from the end), limit, window, capacity, cost of one caller.
--
-- The reply is the time, and per entry: 1 if a state was not understood, callers granted, then per counter: callers
-- that it was charged for, flags (1 allowed, 2 satisfiable), remaining, retry after, reset after, and by how much it was
-- judged ahead of the time.
local ENTRY_OUT, COUNTER_IN, COUNTER_OUT = '>BI4', '>BBI2I4I6I4I4', '>I4BI4I7I7I6'
local ONE_IN, ONE_OUT = '>I4I2BBI2I4I6I4I4', '>BI4I4BI4I7I7I6' -- an entry with one counter

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
    return granted, 0, free, MAX_WAIT, gone, t - now
  end
  return granted, 2, free, wait(a, k, t, u, c, l, w, capacity, cost), gone, t - now
end

local data, position = ARGV[3], 1
local out, lines = {pack('>I7', now)}, 1
local rules, algorithms, index, limits, windows, capacities, costs -- of the counters of one entry
local judged, debts, carries, rooms, shadow

read(#KEYS - ARGV[2])
while position <= #data do
  local callers, count, rule, a, k, l, w, capacity, cost, following = unpack(ONE_IN, data, position)
  if a == SLIDING_LOG then
    k = #KEYS + 1 - k
  end
  if count == 1 and rule == 0 then -- as most are, and then without the tables
    position = following
    local t, u, c, free, granted = judge(callers, a, k, l, w, capacity, cost)
    lines = lines + 1
    if not t then
      out[lines] = pack(ONE_OUT, 1, 0, 0, 0, 0, 0, 0, 0)
    else
      if granted > callers then
        granted = callers
      end
      out[lines] = pack(ONE_OUT, 0, granted, charge(callers, granted, a, k, l, w, capacity, cost, t, u, c, free))
    end
  else
    if not rules then
      rules, algorithms, index, limits, windows, capacities, costs = {}, {}, {}, {}, {}, {}, {}
      judged, debts, carries, rooms, shadow = {}, {}, {}, {}, {}
    end
    position = position + 6
    local granted, failed, shadows = callers, false, 0
    for j = 1, count do
      rule, a, k, l, w, capacity, cost, position = unpack(COUNTER_IN, data, position)
      if a == SLIDING_LOG then
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
    out[lines] = pack(ENTRY_OUT, failed and 1 or 0, granted)
    for j = 1, count do
      lines = lines + 1
      if failed or not judged[j] then
        out[lines] = pack(COUNTER_OUT, 0, 0, 0, 0, 0, 0)
      else
        local charged = rules[j] == 0 and granted or math.min(granted, shadow[rules[j]])
        out[lines] = pack(COUNTER_OUT, charge(callers, charged, algorithms[j], index[j], limits[j], windows[j],
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
