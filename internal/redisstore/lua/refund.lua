-- refund gives back what was charged and still weighs.
--
-- ARGV[1] and ARGV[2] as in take. ARGV[3] the refunds: algorithm, index of the key, limit, window, capacity, amount, and
-- the time of the charge. The reply is the number of refunds whose state was not understood.
local data = ARGV[3]
local position, failed = 1, 0

-- refund_bucket gives back what of the amount has not drained since: the debt drains as a whole, and only if all that
-- drained is held to be this amount's is nothing given back twice.
local function refund_bucket(k, amount, taken, l, w)
  local t, u, c = age(TOKEN_BUCKET, k, l, w)
  local whole, parts, more = earned(t > taken and t - taken or 0, amount, l, w)
  if not more and whole < amount then
    u, c = u - (amount - whole), c + parts
    if c >= w then
      u, c = u + 1, c - w
    end
    if u < 0 then
      u, c = 0, 0
    end
  end
  at[k], used[k], carry[k] = t, u, c
end

read(#KEYS - ARGV[2])
while position <= #data do
  local a, k, l, w, _, amount, taken
  a, k, l, w, _, amount, taken, position = unpack('>BI2I4I6I4I4I7', data, position)
  if a == SLIDING_LOG then
    k = #KEYS + 1 - k
  end
  if not understand(a, k) then
    failed = failed + 1
  elseif values[k] then
    if a == TOKEN_BUCKET then
      refund_bucket(k, amount, taken, l, w)
    elseif a == SLIDING_LOG then
      refund_log(k, amount, taken)
    else
      local window = floor(taken / w)
      if window == at[k] then
        used[k] = used[k] > amount and used[k] - amount or 0
      elseif a == SLIDING_COUNTER and window == at[k] - 1 then
        carry[k] = carry[k] > amount and carry[k] - amount or 0
      end
    end
    local t, u, c = age(a, k, l, w)
    store(a, k, t, u, c, l, w)
  end
end
write()
return failed
