-- Positions and pieces of text. Bytes are Neovim's unit, UTF-16 code units are the protocol's.

local M = {}

local function units_of(byte)
  if byte >= 0xF0 then
    return 2 -- a character of four bytes is a surrogate pair
  elseif byte >= 0xC0 or byte < 0x80 then
    return 1
  end
  return 0 -- in the middle of a character
end

--- Length of a text in UTF-16 code units.
function M.utf16_length(text)
  local length = 0
  for at = 1, #text do
    length = length + units_of(text:byte(at))
  end
  return length
end

--- Bytes before a place that is so many UTF-16 code units into a line.
function M.byte_index(line, utf16)
  local units = 0
  for at = 1, #line do
    local more = units_of(line:byte(at))
    if more > 0 and units + more > utf16 then
      return at - 1
    end
    units = units + more
  end
  return #line
end

--- The first word of a text with what separates it from what is before; the whole of one that has
--- no more than one word.
function M.first_word(text)
  return text:match("^%s*[%w_\128-\255]+") or text:match("^%s*[^%w%s_]+") or text
end

--- The first line of a text; when the text starts with a line break, that and the line after it.
function M.first_line(text)
  return text:match("^\n*[^\n]*")
end

return M
