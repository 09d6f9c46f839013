-- The fence of one workload says who wrote for it last: fields owner, term and epoch of the hash KEYS[1]. The term is
-- the store's time at which an installation took the table, so that one which lost it in the meantime is known by its
-- lower term. ARGV[1] owner, ARGV[2] term, ARGV[3] epoch of this write, ARGV[4] channel of the enforcers.
local owner, term, epoch = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local fence = redis.call('HMGET', KEYS[1], 'owner', 'term', 'epoch')

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
  redis.call('HSET', KEYS[1], 'owner', owner, 'term', ARGV[2], 'epoch', epoch)
end
-- replicas writes the live count of one workload. KEYS[2] replicas, ARGV[5] the count. The reply is the reason why it
-- was refused, '' if it was not. Beside a tombstone it expires as the fence does.
if outranked(fence[1]) then
  return 'owner'
end
if fence[3] and older(epoch, fence[3]) then
  return 'revision'
end
hold()
local keep = redis.call('PTTL', KEYS[1])
if keep > 0 then
  redis.call('SET', KEYS[2], ARGV[5], 'PX', keep)
else
  redis.call('SET', KEYS[2], ARGV[5])
end
redis.call('PUBLISH', ARGV[4], 'replicas')
return ''
