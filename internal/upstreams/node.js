// What Express, Koa and Fastify read of a request: node node.js <framework> <port>
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

if (framework === 'express') {
  const express = require('express')
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
} else {
  const app = require('fastify')()
  app.register(require('@fastify/formbody'), { parser: (text) => require('qs').parse(text) })
  app.register(require('@fastify/cookie'))
  const answer = (path) => async (req) => readings(req.query, req.body, req.cookies, req.headers['x-customer'], path(req), req.headers['content-type'])
  app.all('/orders/:id/pay', answer((req) => req.params.id))
  app.setNotFoundHandler(answer(() => undefined))
  app.listen({ port: Number(port), host: '127.0.0.1' })
}
