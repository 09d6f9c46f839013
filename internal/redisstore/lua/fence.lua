-- The fence of one workload says who wrote for it last: fields owner, term and epoch of the hash KEYS[1]. The term is
-- the store's time at which an installation took the table, so that one which lost it in the meantime is known by its
-- lower term. ARGV[1] owner, ARGV[2] term, ARGV[3] epoch of this write, ARGV[4] channel of the enforcers. What is no hash
-- holds no epoch: it is like a fence that was lost with the store, and the row's own revision still counts.
local owner, term, epoch = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local fence, no_fence = of_type('HMGET', KEYS[1], 'owner', 'term', 'epoch')
fence = fence or {}

-- older says that decimal a is below decimal b, however long they are: longer wins, then bytes.
local function older(a, b)
  if #a ~= #b then
    return #a < #b
  end
  return a < b
end

-- outranked says that another installation wrote, and took the table later than this one.
local function outranked(writer)
  return writer and writer ~= owner and term <= (tonumber(fence[2] or 0) or 0)
end

-- hold raises the fence to this write.
local function hold()
  if no_fence then
    redis.call('PEXPIRE', KEYS[1], 0)
  end
  redis.call('HSET', KEYS[1], 'owner', owner, 'term', ARGV[2], 'epoch', epoch)
end
