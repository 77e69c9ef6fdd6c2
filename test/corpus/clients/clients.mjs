// Sends the cases as node's clients write them: node clients.mjs <library> <address> <file of cases>
import { readFileSync } from 'node:fs'
import { request as plain } from 'node:http'
import { createRequire } from 'node:module'

const require = createRequire(process.env.NODE_PATH + '/x.js')
const [library, base, file] = process.argv.slice(2)
const cases = readFileSync(file, 'utf8').trimEnd().split('\n').map((line) => line.split('\t'))
const pairs = (id, text, url) => [['name', text], ['id', id], ['url', url], ['page', '2'], ['tags', 'a'], ['tags', 'b c']]
const nested = (id, text) => [['order[name]', text], ['order[id]', id], ['order[items][0][id]', '7'], ['utf8', '✓']]
const json = (id, text, url) => ({ name: text, id: /^\d{1,15}$/.test(id) ? Number(id) : id, url, items: [{ id: 7, price: 12.5 }], ok: true, none: null })

const requestOf = ([format, n, id, text, url]) => {
  const path = `/${format}/${n}`
  switch (format) {
    case 'query': return { path, query: pairs(id, text, url) }
    case 'nested-query': return { path, query: nested(id, text) }
    case 'form': return { path, form: pairs(id, text, url) }
    case 'nested-form': return { path, form: nested(id, text) }
    case 'json': return { path, json: json(id, text, url) }
    case 'cookie': return { path, headers: { Cookie: `theme=dark; cart_id=${encodeURIComponent(id)}; seen=${encodeURIComponent(text)}` } }
    case 'header': return { path, json: { name: text }, headers: { 'X-Order': id } }
  }
  return { path: `${path}/${encodeURIComponent(id)}`, query: pairs(id, text, url), json: {} }
}

const fetchWith = (fetch) => (r) => fetch(base + r.path + (r.query ? '?' + new URLSearchParams(r.query) : ''), {
  method: r.form || r.json ? 'POST' : 'GET',
  headers: { ...r.headers, ...(r.json && { 'Content-Type': 'application/json' }) },
  body: r.form ? new URLSearchParams(r.form) : r.json && JSON.stringify(r.json),
}).then((response) => response.text())

const senders = {
  fetch: () => fetchWith(fetch),
  'node-fetch': async () => fetchWith((await import(require.resolve('node-fetch'))).default),
  undici: () => fetchWith(require('undici').fetch),
  http: () => (r) => new Promise((resolve, reject) => {
    const query = r.query && require('qs').stringify(Object.fromEntries(r.query))
    const body = r.form ? require('qs').stringify(Object.fromEntries(r.form)) : r.json && JSON.stringify(r.json)
    const type = r.form ? 'application/x-www-form-urlencoded' : 'application/json; charset=utf-8'
    const request = plain(base + r.path + (query ? '?' + query : ''), { method: body ? 'POST' : 'GET', headers: { ...r.headers, ...(body && { 'Content-Type': type, 'Content-Length': Buffer.byteLength(body) }) } }, (response) => response.resume().on('end', resolve))
    request.on('error', reject).end(body)
  }),
  axios: () => (r) => require('axios').request({
    url: base + r.path, method: r.form || r.json ? 'post' : 'get', headers: r.headers, params: r.query && Object.fromEntries(r.query.filter(([name]) => name !== 'tags')),
    data: r.form ? new URLSearchParams(r.form) : r.json,
  }),
  got: async () => {
    const module = await import(require.resolve('got'))
    const got = module.got ?? module.default
    return (r) => got(base + r.path, { method: r.form || r.json ? 'POST' : 'GET', headers: r.headers, searchParams: r.query && new URLSearchParams(r.query), form: r.form && Object.fromEntries(r.form), json: r.json })
  },
  ky: async () => {
    const ky = (await import(require.resolve('ky'))).default
    return (r) => ky(base + r.path, { method: r.form || r.json ? 'POST' : 'GET', headers: r.headers, searchParams: r.query && new URLSearchParams(r.query), body: r.form && new URLSearchParams(r.form), json: r.json }).text()
  },
  superagent: () => (r) => {
    const agent = require('superagent')
    const request = (r.form || r.json ? agent.post(base + r.path) : agent.get(base + r.path)).set(r.headers ?? {})
    if (r.query) request.query(Object.fromEntries(r.query))
    return r.form ? request.type('form').send(Object.fromEntries(r.form)) : r.json ? request.send(r.json) : request
  },
}

const send = await senders[library]()
for (const one of cases) await send(requestOf(one))
