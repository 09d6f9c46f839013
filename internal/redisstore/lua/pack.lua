-- Fixed-width big-endian integers in binary strings, as the struct library of Redis packs them. A server without that
-- library gets the few formats that are used here.
local spread = unpack
local library = rawget(_G, 'struct')
local pack = library and library.pack or function(format, ...)
  local values, i, out = {...}, 0, {}
  for kind, size in string.gmatch(format, '([BI])(%d*)') do
    i = i + 1
    local value = values[i]
    local bytes = {}
    for place = kind == 'B' and 1 or tonumber(size), 1, -1 do
      bytes[place] = string.char(value % 256)
      value = math.floor(value / 256)
    end
    out[i] = table.concat(bytes)
  end
  return table.concat(out)
end
local unpack = library and library.unpack or function(format, data, position)
  local values = {}
  position = position or 1
  for kind, size in string.gmatch(format, '([BI])(%d*)') do
    local value = 0
    for _ = 1, kind == 'B' and 1 or tonumber(size) do
      value = value * 256 + string.byte(data, position)
      position = position + 1
    end
    values[#values + 1] = value
  end
  values[#values + 1] = position
  return spread(values)
end
