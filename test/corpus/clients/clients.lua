-- Sends the cases as Lua's client writes them: lua5.4 clients.lua <library> <address> <file of cases>
local http, ltn12, url = require 'socket.http', require 'ltn12', require 'socket.url'
local base = arg[2]

local function send(target, body, headers)
  headers = headers or {}
  if body then headers['Content-Length'] = tostring(#body) end
  http.request { url = base .. target, method = body and 'POST' or 'GET', headers = headers, source = body and ltn12.source.string(body), sink = ltn12.sink.null() }
end

for line in io.lines(arg[3]) do
  local c = {}
  for field in line:gmatch '[^\t]+' do c[#c + 1] = field end
  local format, n, id, text, link = table.unpack(c)
  local path = '/' .. format .. '/' .. n
  local fields = 'name=' .. url.escape(text) .. '&id=' .. url.escape(id) .. '&url=' .. url.escape(link)
  local nested = url.escape 'order[name]' .. '=' .. url.escape(text) .. '&' .. url.escape 'order[id]' .. '=' .. url.escape(id)
  local form = { ['Content-Type'] = 'application/x-www-form-urlencoded' }
  if format == 'query' then send(path .. '?' .. fields)
  elseif format == 'nested-query' then send(path .. '?' .. nested)
  elseif format == 'form' then send(path, fields, form)
  elseif format == 'nested-form' then send(path, nested, form)
  elseif format == 'json' then send(path, require 'cjson'.encode { id = id, name = text, url = link, items = { { id = 7 } } }, { ['Content-Type'] = 'application/json' })
  elseif format == 'cookie' then send(path, nil, { Cookie = 'theme=dark; cart_id=' .. url.escape(id) })
  elseif format == 'header' then send(path, fields, { ['Content-Type'] = 'text/plain', ['X-Order'] = id })
  else send(path .. '/' .. url.escape(id) .. '?' .. fields, '') end
end
