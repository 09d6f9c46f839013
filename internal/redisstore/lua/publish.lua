-- publish writes the row of one workload unless that would take it back. KEYS[2] row, KEYS[3] replicas. ARGV[5] the
-- row, ARGV[6] ms after which it expires, 0 for never. The reply is the reason why it was refused, '' if it was not.
local body, keep = ARGV[5], tonumber(ARGV[6])
local row = cjson.decode(body)

-- What is no row is replaced like a row that was lost.
local held_body, held = of_type('GET', KEYS[2]), nil
if held_body then
  local ok, decoded = pcall(cjson.decode, held_body)
  if ok and type(decoded) == 'table' and type(decoded.v) == 'number' and type(decoded.revision) == 'table'
    and type(decoded.revision.epoch) == 'string' and type(decoded.revision.n) == 'number' then
    held = decoded
  end
end

local writer = fence[1] or held and held.owner
if outranked(writer) then
  return 'owner'
end
if held and held.v > row.v then
  return 'version'
end
if fence[3] and older(epoch, fence[3]) then
  return 'revision'
end
if held then
  local a, b = row.revision, held.revision
  if older(a.epoch, b.epoch) or a.epoch == b.epoch and (a.n < b.n or a.n == b.n and body ~= held_body) then
    return 'revision'
  end
  -- Lists and generations of another installation are another cluster's. A row without a list is the leader's word
  -- that this one's may go back: its API server was restored from a backup.
  if held.owner == row.owner and (row.policyList or '') ~= '' then
    if type(held.policyList) == 'string' and older(row.policyList, held.policyList) then
      return 'stale'
    end
    local generations = {}
    for _, policy in ipairs(type(held.policies) == 'table' and held.policies or {}) do
      if type(policy) == 'table' and type(policy.uid) == 'string' then
        generations[policy.uid] = tonumber(policy.generation)
      end
    end
    for _, policy in ipairs(type(row.policies) == 'table' and row.policies or {}) do
      if policy.generation < (generations[policy.uid] or 0) then
        return 'stale'
      end
    end
  end
end

hold()
if keep > 0 then
  redis.call('SET', KEYS[2], body, 'PX', keep)
  redis.call('PEXPIRE', KEYS[3], keep)
  redis.call('PEXPIRE', KEYS[1], 2 * keep)
else
  redis.call('SET', KEYS[2], body)
  redis.call('PERSIST', KEYS[3])
  redis.call('PERSIST', KEYS[1])
end
redis.call('PUBLISH', ARGV[4], 'row')
return ''
