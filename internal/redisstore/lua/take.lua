-- take answers a batch of entries, one after the other, each on the state that the former left.
--
-- ARGV[1] the time in µs, or '' for the server's clock. ARGV[2] how many of the last keys are logs. ARGV[3] the entries:
-- callers (0 peeks: nothing is written), number of counters, and per counter: its rule (0 enforced, else the shadow
-- rule), algorithm, index of its key (of logs, from the end), limit, window, capacity, cost of one caller.
--
-- The reply is the time, and per entry: 1 if a state was not understood, callers granted, then for each shadow rule
-- the callers that it charged (none if a state was not understood), then per counter: flags (1 allowed, 2 satisfiable),
-- remaining, retry after, reset after, and by how much it was judged ahead of the time.
local data = ARGV[3]

local rules, algorithms, index, limits, windows, capacities, costs = {}, {}, {}, {}, {}, {}, {}
local judged, debts, carries, rooms, shadow = {}, {}, {}, {}, {}
local unhealed = {}
local out, lines, position = {pack('>I7', now)}, 1, 1

read(#KEYS - ARGV[2])
while position <= #data do
  local callers, count
  callers, count, position = unpack('>I4I2', data, position)
  local granted, failed, shadows = callers, false, 0

  for j = 1, count do
    local rule, a, k, l, w, capacity, cost
    rule, a, k, l, w, capacity, cost, position = unpack('>BBI2I4I6I4I4', data, position)
    if a == SLIDING_LOG then
      k = #KEYS + 1 - k
    end
    if rule > shadows then
      shadows, shadow[rule] = rule, callers
    end
    rules[j], algorithms[j], index[j], limits[j], windows[j], capacities[j], costs[j] = rule, a, k, l, w, capacity, cost
    if understand(a, k) then
      local t, u, c, rebased = age(a, k, l, w)
      if rebased and callers > 0 then
        store(a, k, t, u, c, l, w)
      end
      local free = room(a, t, u, c, l, w, capacity)
      judged[j], debts[j], carries[j], rooms[j] = t, u, c, free
      local fits = free < cost and 0 or floor(free / cost)
      if rule > 0 then
        if fits < shadow[rule] then
          shadow[rule] = fits
        end
      elseif fits < granted then
        granted = fits
      end
    elseif rule > 0 then
      shadow[rule] = 0
    else
      failed = true
    end
  end

  if failed then
    granted = 0
  end
  lines = lines + 1
  out[lines] = pack('>BI4', failed and 1 or 0, granted)
  for rule = 1, shadows do
    if granted < shadow[rule] then
      shadow[rule] = granted
    end
    lines = lines + 1
    out[lines] = pack('>I4', shadow[rule])
  end

  for j = 1, count do
    local rule, a, k = rules[j], algorithms[j], index[j]
    lines = lines + 1
    if failed or algorithm[k] ~= a then
      out[lines] = pack('>BI4I7I7I6', 0, 0, 0, 0, 0)
    else
      local l, w, capacity, cost = limits[j], windows[j], capacities[j], costs[j]
      local t, u, c, free = judged[j], debts[j], carries[j], rooms[j]
      local charge, gone = cost * (rule == 0 and granted or shadow[rule]), nil
      if charge > 0 then
        u, free = u + charge, free - charge
        gone = store(a, k, t, u, c, l, w)
      else
        gone = reset(a, k, t, u, c, l, w)
        if callers > 0 and values[k] then
          unhealed[k] = gone
        end
      end
      local flags, retry = 3, 0
      if free >= cost then
        -- one more would be allowed
      elseif cost > capacity then
        flags, retry = 0, MAX_WAIT
      else
        flags, retry = 2, wait(a, k, t, u, c, l, w, capacity, cost)
      end
      out[lines] = pack('>BI4I7I7I6', flags, free < 0 and 0 or free, retry, gone, t - now)
    end
  end
end

write()
-- A state that somebody left without a time to live gets one when it denies; a charge sets it anyway.
for k, gone in pairs(unhealed) do
  if not reset_in[k] and redis.call('PTTL', KEYS[k]) == -1 then
    redis.call('PEXPIRE', KEYS[k], to_live(gone))
  end
end
return table.concat(out)
