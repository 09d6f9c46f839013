-- of_type runs a command that reads a key, and returns false when the key is of another type than the command's.
local function of_type(...)
  local value = redis.pcall(...)
  if type(value) == 'table' and value.err then
    if string.find(value.err, 'WRONGTYPE', 1, true) then
      return false, true
    end
    error(value.err)
  end
  return value, false
end
-- claim makes an installation the owner of the table, or says who is. KEYS[1] the owner's record, ARGV[1] installation,
-- ARGV[2] epoch, ARGV[3] µs for which an owner who is silent keeps the table. The reply is the owner and the term.
-- Numbers of 16 digits are strings in the record: cjson writes 14.
local installation, epoch, hold = ARGV[1], ARGV[2], tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local record = nil
local held = of_type('GET', KEYS[1])
if held then
  local ok, decoded = pcall(cjson.decode, held)
  if ok and type(decoded) == 'table' and type(decoded.installation) == 'string' then
    record = decoded
  end
end

local term = now
if record then
  local seen = tonumber(record.seen) or 0
  local former = tonumber(record.term) or 0
  if record.installation ~= installation then
    if seen <= now and now - seen >= hold then
      if term <= former then
        term = former + 1
      end
    else
      -- A time in the future is from a clock that was set back: the silence is counted from now.
      if seen > now then
        record.seen = string.format('%.0f', now)
        redis.call('SET', KEYS[1], cjson.encode(record))
      end
      return {record.installation, string.format('%.0f', former)}
    end
  else
    term = former
    local last = record.epoch
    if type(last) == 'string' and (#last > #epoch or #last == #epoch and last > epoch) then
      epoch = last
    end
  end
end
redis.call('SET', KEYS[1], cjson.encode({
  installation = installation,
  epoch = epoch,
  term = string.format('%.0f', term),
  seen = string.format('%.0f', now),
}))
return {installation, string.format('%.0f', term)}
