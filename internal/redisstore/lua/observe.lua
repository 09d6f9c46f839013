-- observe is what the controller reads of one workload. KEYS[5] row, KEYS[6] replicas, KEYS[7] fence. The reply is the
-- row, the replicas, the highest epoch that wrote (each '' if there is none), the version of the members, and then
-- each live member and its report.
if expire() then
  raise()
end
local reply = {
  redis.call('GET', KEYS[5]) or '',
  redis.call('GET', KEYS[6]) or '',
  redis.call('HGET', KEYS[7], 'epoch') or '',
  redis.call('GET', KEYS[4]) or '0',
}
local reports = redis.call('HGETALL', KEYS[3])
for i = 1, #reports do
  reply[#reply + 1] = reports[i]
end
return reply
