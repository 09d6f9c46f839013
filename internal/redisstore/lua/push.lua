-- push takes over what one replica tells of counters; enforcer.Ledger.Apply says what that does and why.
--
-- Three keys for each counter: its state, the sum of the round, and what was told by whom: a hash with the fields
-- round, reset, and for each member, behind "m:", its last push and its round. ARGV[1] the time in µs, or '' for the
-- server's clock, ARGV[2] unused, ARGV[4] the member. ARGV[3] the pushes: algorithm, limit, window, capacity, 1 if a
-- loss is suspected, number of the push, since when use is counted, the last round that the member joined, and the
-- states untold, fresh and used: at, used, carry, or for a log the number of its entries and their times and costs.
--
-- The reply is the time, and per push: 1 if a state was not understood, the round joined, the last reset if that voids
-- the push.
local ROUND_LIFE = 60000000 -- µs
local KEEP = 600000 -- ms for which at least it is remembered who told

local data, member = ARGV[3], 'm:' .. ARGV[4]
local out, position = {pack('>I7', now)}, 1

-- join_logs adds or, of equal times, joins the costs of two lists of {time, cost}, oldest first.
local function join_logs(a, b, join)
  local i, j, merged = 1, 1, {}
  while a[i] or b[j] do
    if not b[j] or a[i] and a[i][1] < b[j][1] then
      merged[#merged + 1] = a[i]
      i = i + 1
    elseif not a[i] or b[j][1] < a[i][1] then
      merged[#merged + 1] = b[j]
      j = j + 1
    else
      merged[#merged + 1] = {a[i][1], join(a[i][2], b[j][2])}
      i, j = i + 1, j + 1
    end
  end
  return merged
end

local function sum(a, b)
  return a + b
end

-- weighing_log returns the entries that still weigh. All of a log that is dated too far ahead are one entry of now.
local function weighing_log(entries, w)
  local newest = #entries > 0 and entries[#entries][1] or 0
  local kept, total = {}, 0
  for i = 1, #entries do
    total = total + entries[i][2]
    if judged_at(newest, w) - entries[i][1] < w then
      kept[#kept + 1] = entries[i]
    end
  end
  if newest - now > w then
    return {{now, total}}
  end
  return kept
end

-- load_log reads a whole log, nil if it is none.
local function load_log(key, w)
  local list, other = of_type('LRANGE', key, '0', '-1')
  if other then
    return nil
  end
  local entries = {}
  for i = 1, #list do
    if #list[i] ~= ENTRY_BYTES or byte(list[i]) ~= LOG then
      return nil
    end
    local _, time, cost = unpack(ENTRY, list[i])
    entries[i] = {time, cost}
  end
  return weighing_log(entries, w)
end

local function save_log(key, entries, w)
  redis.call('DEL', key)
  if #entries == 0 then
    return
  end
  local before = 0
  for i = 1, #entries do
    redis.call('RPUSH', key, pack(ENTRY, LOG, entries[i][1], entries[i][2], before))
    before = before + entries[i][2]
  end
  redis.call('PEXPIRE', key, text(live_for(entries[#entries][1] + w - now)))
end

-- told reads a state of a push: what weighs of it, as {t, u, c}, or of a log its entries.
local function told(a, l, w)
  if a == SLIDING_LOG then
    local count, entries
    count, position = unpack('>I4', data, position)
    entries = {}
    for i = 1, count do
      local time, cost
      time, cost, position = unpack('>I7I4', data, position)
      entries[i] = {time, cost}
    end
    return weighing_log(entries, w)
  end
  at.told, used.told, carry.told, position = unpack('>I7I4I6', data, position)
  return {age(a, 'told', l, w)}
end

-- load_state reads a state as {t, u, c}, nil if it is none.
local function load_state(a, k, l, w)
  local value, other = of_type('GET', KEYS[k])
  values[k] = value
  if other or not parse(k, a, value) then
    return nil
  end
  return {age(a, k, l, w)}
end

local function add_states(a, s, o, w)
  if a == SLIDING_LOG then
    return join_logs(s, o, sum)
  end
  local u, c = s[2] + o[2], s[3] + o[3]
  if a == TOKEN_BUCKET and c >= w then
    u, c = u + 1, c - w
  end
  return {s[1], u, c}
end

local function max_states(a, s, o)
  if a == SLIDING_LOG then
    return join_logs(s, o, math.max)
  elseif a == TOKEN_BUCKET then
    if o[2] > s[2] or o[2] == s[2] and o[3] > s[3] then
      return o
    end
    return s
  end
  return {s[1], math.max(s[2], o[2]), math.max(s[3], o[3])}
end

local function save_state(a, k, s, l, w)
  if a == SLIDING_LOG then
    save_log(KEYS[k], s, w)
  else
    store(a, k, s[1], s[2], s[3], l, w)
  end
end

for i = 1, #KEYS, 3 do
  local a, l, w, _, suspect, seq, since, joined
  a, l, w, _, suspect, seq, since, joined, position = unpack('>BI4I6I4BI7I7I7', data, position)
  local untold, fresh, whole = told(a, l, w), told(a, l, w), told(a, l, w)
  local load = a == SLIDING_LOG and function(k) return load_log(KEYS[k], w) end
    or function(k) return load_state(a, k, l, w) end
  local state, alt = load(i), load(i + 1)
  local ledger = redis.call('HMGET', KEYS[i + 2], 'round', 'reset', member)
  local round, reset = tonumber(ledger[1] or 0), tonumber(ledger[2] or 0)
  local seen, seen_round = string.match(ledger[3] or '', '^(%d+) (%d+)$')
  seen, seen_round = tonumber(seen or -1), tonumber(seen_round or -1)

  if not state or not alt then
    out[#out + 1] = pack('>BI7I7', 1, 0, 0)
  elseif reset > since then
    out[#out + 1] = pack('>BI7I7', 0, 0, reset)
  elseif seen >= seq then
    out[#out + 1] = pack('>BI7I7', 0, seen_round, 0)
  else
    if suspect == 1 and (round <= joined or now - round > 2 * ROUND_LIFE) then
      round = math.max(now, round + 1, joined + 1)
      seen_round = -1
      alt = a == SLIDING_LOG and {} or {alt[1], 0, 0}
    end
    state = add_states(a, state, untold, w)
    if round > 0 then
      alt = add_states(a, alt, seen_round == round and fresh or whole, w)
      state = max_states(a, state, alt)
      save_state(a, i + 1, alt, l, w)
    end
    save_state(a, i, state, l, w)
    redis.call('HSET', KEYS[i + 2], 'round', string.format('%.0f', round), member, string.format('%.0f %.0f', seq, round))
    local live = math.max(KEEP, redis.call('PTTL', KEYS[i + 2]))
    if a ~= SLIDING_LOG and reset_in[i] then
      live = math.max(live, math.ceil(reset_in[i] / 1000))
    elseif a == SLIDING_LOG then
      live = math.max(live, math.ceil(w / 1000))
    end
    redis.call('PEXPIRE', KEYS[i + 2], string.format('%.0f', live))
    out[#out + 1] = pack('>BI7I7', 0, round, 0)
  end
end
write()
return table.concat(out)
