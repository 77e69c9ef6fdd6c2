// Sends requests on 42 as node's own client writes them: node clients.js <addresses by format, as JSON>
const to = JSON.parse(process.argv[2])
const send = (format, path, init) => fetch('http://' + to[format] + path, init)
const post = (format, body, headers) => send(format, '/x', { method: 'POST', body, headers })
const nested = (name) => ({ [`order[id]`]: '42', [`order[items][0][id]`]: '7', 'utf8': '✓', name })
Promise.all([
  send('query', '/x?' + new URLSearchParams({ id: 42, q: 'ü & [id]=1 #', page: 2 })),
  send('nested query', '/x?' + new URLSearchParams(nested('x'))),
  post('form', new URLSearchParams({ id: 42, name: 'Jürgen & Söhne; "x"', url: 'https://x.example/?id=9' })),
  post('nested form', require('qs').stringify({ order: { id: 42, items: [{ id: 7 }], name: 'ü' }, x: [1, 2] }), { 'Content-Type': 'application/x-www-form-urlencoded' }),
  post('json', JSON.stringify({ id: 42, name: 'ü', url: 'https://x.example/?a=1', items: [{ id: 7 }] }), { 'Content-Type': 'application/json' }),
  send('cookie', '/x', { headers: { Cookie: 'theme=dark; cart_id=42; mail=' + encodeURIComponent('a@b.example') } }),
  send('header', '/x', { headers: { 'X-Customer': '42' } }),
  send('path', '/orders/42/pay?x=' + encodeURIComponent('/'), { method: 'POST' }),
])
