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
