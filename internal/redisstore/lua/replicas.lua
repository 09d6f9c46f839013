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
