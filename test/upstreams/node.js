// What Express, Koa, Fastify, hapi, Polka, restify and node itself read of a request: node node.js <framework> <port>
const [framework, port] = process.argv.slice(2)
const scalars = (v) => (v === undefined || v === null ? null : Array.isArray(v) ? v.map(scalars) : typeof v === 'object' ? null : String(v))
const at = (v, ...names) => scalars(names.reduce((o, n) => (o === undefined || o === null ? undefined : o[n]), v))

function readings(query, body, cookies, header, path, type) {
  const json = /json/.test(type || '')
  return {
    query: at(query, 'id'), query_nested: at(query, 'order', 'id'),
    form: json ? null : at(body, 'id'), form_nested: json ? null : at(body, 'order', 'id'),
    json: json ? at(body, 'id') : null,
    cookie: at(cookies, 'cart_id'), header: scalars(header), path: scalars(path),
  }
}

const order = (path) => { // as a router that decodes the segments
  const found = /^\/orders\/([^/]+)\/pay\/?$/.exec(path)
  try { return found ? decodeURIComponent(found[1]) : undefined } catch { return undefined }
}

if (framework === 'express' || framework === 'express4') {
  const express = require(framework)
  const app = express()
  app.set('query parser', 'extended')
  app.use(require('cookie-parser')(), express.urlencoded({ extended: true }), express.json())
  const answer = (path) => (req, res) => res.json(readings(req.query, req.body, req.cookies, req.get('X-Customer'), path(req), req.get('Content-Type')))
  app.all('/orders/:id/pay', answer((req) => req.params.id))
  app.use(answer(() => undefined))
  app.use((err, req, res, next) => res.status(err.status || 500).json({}))
  app.listen(port, '127.0.0.1')
} else if (framework === 'koa') {
  const Koa = require('koa')
  const app = new Koa()
  app.on('error', () => {})
  app.use(require('koa-body').koaBody())
  app.use((ctx) => {
    const cookies = { cart_id: ctx.cookies.get('cart_id') }
    const path = /^\/orders\/([^/]+)\/pay\/?$/.exec(ctx.path)
    ctx.body = readings(ctx.query, ctx.request.body, cookies, ctx.get('X-Customer') || undefined, path ? decodeURIComponent(path[1]) : undefined, ctx.get('Content-Type'))
  })
  app.listen(port, '127.0.0.1')
} else if (framework === 'hapi') {
  const server = require('@hapi/hapi').server({ port, host: '127.0.0.1', state: { strictHeader: false, ignoreErrors: true } })
  server.route({ method: '*', path: '/{any*}', handler: (req) => readings(req.query, req.payload, req.state, req.headers['x-customer'], order(req.path), req.headers['content-type']) })
  server.route({ method: '*', path: '/orders/{id}/pay', handler: (req) => readings(req.query, req.payload, req.state, req.headers['x-customer'], req.params.id, req.headers['content-type']) })
  server.start()
} else if (framework === 'polka') {
  const body = require('express4')
  const answer = (req, res) => {
    res.setHeader('Content-Type', 'application/json')
    res.end(JSON.stringify(readings(req.query, req.body, {}, req.headers['x-customer'], req.params.id, req.headers['content-type'])))
  }
  require('polka')({ onError: (err, req, res) => { res.statusCode = 400; res.end('{}') } })
    .use(body.urlencoded({ extended: false }), body.json({ strict: false }))
    .all('/orders/:id/pay', answer).all('*', answer).listen(port, '127.0.0.1')
} else if (framework === 'restify') {
  const restify = require('restify')
  const server = restify.createServer()
  server.use(restify.plugins.queryParser({ mapParams: false }), restify.plugins.bodyParser({ mapParams: false }))
  const answer = (req, res, next) => {
    res.json(readings(req.query, req.body, {}, req.headers['x-customer'], req.params.id, req.headers['content-type']))
    next()
  }
  for (const method of ['get', 'post']) server[method]('/orders/:id/pay', answer), server[method]('/*', answer)
  server.listen(port, '127.0.0.1')
} else if (framework === 'node') {
  require('http').createServer((req, res) => {
    let text = ''
    req.setEncoding('utf8').on('data', (more) => { text += more }).on('end', () => {
      const [path, ...query] = req.url.split('?')
      const parse = require('querystring').parse
      let json
      try { json = JSON.parse(text) } catch {}
      const both = { ...parse(query.join('?')), 'order': { id: new URLSearchParams(query.join('?')).getAll('order[id]') } }
      const form = { ...parse(text), 'order': { id: parse(text)['order[id]'] } }
      res.setHeader('Content-Type', 'application/json')
      res.end(JSON.stringify({ ...readings(both, form, {}, req.headers['x-customer'], order(path)), json: at(json, 'id') }))
    })
  }).listen(port, '127.0.0.1')
} else {
  const app = require('fastify')()
  app.register(require('@fastify/formbody'), { parser: (text) => require('qs').parse(text) })
  app.register(require('@fastify/cookie'))
  const answer = (path) => async (req) => readings(req.query, req.body, req.cookies, req.headers['x-customer'], path(req), req.headers['content-type'])
  app.all('/orders/:id/pay', answer((req) => req.params.id))
  app.setNotFoundHandler(answer(() => undefined))
  app.listen({ port: Number(port), host: '127.0.0.1' })
}
