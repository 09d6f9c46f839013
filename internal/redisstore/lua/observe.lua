-- observe is what the controller reads of one workload, after it has deleted what is of another type than ours: that
-- holds nothing, and to read it would fail for ever. KEYS[5] row, KEYS[6] replicas, KEYS[7] fence. The reply is the row,
-- the replicas, the highest epoch that wrote (each '' if there is none), the version of the members, the kinds of keys
-- that were deleted, with blanks between them, and then each live member and its report.
local changed = repair()
changed = expire() or changed

-- read is what a command reads of a key, '' if that is nothing.
local function read(name, command, key, ...)
  if not intact(name, command, key, ...) then
    redis.call('PEXPIRE', key, 0)
  end
  return redis.call(command, key, ...) or ''
end

if changed then
  raise()
end
local reply = {
  read('row', 'GET', KEYS[5]),
  read('replicas', 'GET', KEYS[6]),
  read('fence', 'HGET', KEYS[7], 'epoch'),
  redis.call('GET', KEYS[4]) or '0',
  table.concat(damaged, ' '),
}
local reports = redis.call('HGETALL', KEYS[3])
for i = 1, #reports do
  reply[#reply + 1] = reports[i]
end
return reply
