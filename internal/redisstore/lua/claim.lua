-- claim makes an installation the owner of the table, or says who is. KEYS[1] the owner's record, ARGV[1] installation,
-- ARGV[2] epoch, ARGV[3] µs for which an owner who is silent keeps the table. The reply is the owner and the term.
-- Numbers of 16 digits are strings in the record: cjson writes 14.
local installation, epoch, hold = ARGV[1], ARGV[2], tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- number reads one of the record, 0 where there is no whole number of up to 53 bits: a record that somebody damaged must
-- not lock anybody out.
local function number(text)
  local n = tonumber(text)
  if n and n >= 0 and n <= 9007199254740991 and n == math.floor(n) then
    return n
  end
  return 0
end

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
  local seen = number(record.seen)
  local former = number(record.term)
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
