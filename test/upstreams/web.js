// What Hono, h3, formidable and koa-bodyparser read of a request: node web.js <framework> <port>
const [framework, port] = process.argv.slice(2)
const scalars = (v) => (v === undefined || v === null ? null : Array.isArray(v) ? v.map(scalars) : typeof v === 'object' ? null : String(v))
const at = (v, ...names) => scalars(names.reduce((o, n) => (o === undefined || o === null ? undefined : o[n]), v))
const order = (path) => { // as a router that decodes the segments
  const found = /^\/orders\/([^/]+)\/pay\/?$/.exec(path)
  try { return found ? decodeURIComponent(found[1]) : undefined } catch { return undefined }
}
const orNothing = async (read) => { try { return await read() } catch { return undefined } }

if (framework === 'hono') {
  const { Hono } = require('hono')
  const { getCookie } = require('hono/cookie')
  const answer = async (c) => {
    const form = await orNothing(() => c.req.raw.clone().formData())
    return c.json({
      query: scalars(c.req.queries('id')), query_nested: scalars(c.req.queries('order[id]')),
      form: form ? scalars(form.getAll('id')) : null, form_nested: form ? scalars(form.getAll('order[id]')) : null,
      json: at(await orNothing(() => c.req.json()), 'id'), cookie: scalars(getCookie(c, 'cart_id')),
      header: scalars(c.req.header('X-Customer')), path: scalars(c.req.param('id')),
    })
  }
  const app = new Hono()
  app.all('/orders/:id/pay', answer)
  app.all('*', answer)
  require('@hono/node-server').serve({ fetch: app.fetch, port: Number(port), hostname: '127.0.0.1' })
} else if (framework === 'h3') {
  const { H3, toNodeHandler, getQuery, readBody, getCookie, getRouterParam } = require('h3')
  const answer = async (event) => {
    const query = getQuery(event)
    const form = await orNothing(() => event.req.clone().formData())
    const body = await orNothing(() => readBody(event))
    const json = /json/.test(event.req.headers.get('Content-Type') || '')
    return {
      query: at(query, 'id'), query_nested: at(query, 'order[id]'),
      form: form ? scalars(form.getAll('id')) : json ? null : at(body, 'id'), form_nested: form ? scalars(form.getAll('order[id]')) : null,
      json: json ? at(body, 'id') : null, cookie: scalars(getCookie(event, 'cart_id')),
      header: scalars(event.req.headers.get('X-Customer')), path: scalars(getRouterParam(event, 'id', { decode: true })),
    }
  }
  const app = new H3()
  app.all('/orders/:id/pay', answer)
  app.all('/**', answer)
  require('http').createServer(toNodeHandler(app)).listen(port, '127.0.0.1')
} else if (framework === 'koa-bodyparser') {
  const Koa = require('koa')
  const app = new Koa()
  app.on('error', () => {})
  app.use(require('koa-bodyparser')())
  app.use((ctx) => {
    const { body } = ctx.request
    const json = ctx.is('json')
    ctx.body = {
      query: at(ctx.query, 'id'), query_nested: at(ctx.query, 'order[id]'),
      form: json ? null : at(body, 'id'), form_nested: json ? null : at(body, 'order', 'id'), json: json ? at(body, 'id') : null,
      cookie: scalars(ctx.cookies.get('cart_id')), header: scalars(ctx.get('X-Customer') || undefined), path: scalars(order(ctx.path)),
    }
  })
  app.listen(port, '127.0.0.1')
} else {
  const { formidable } = require('formidable')
  require('http').createServer(async (req, res) => {
    const url = new URL(req.url, 'http://x')
    const [fields] = await formidable({}).parse(req).catch(() => [{}])
    const json = /json/.test(req.headers['content-type'] || '')
    res.setHeader('Content-Type', 'application/json')
    res.end(JSON.stringify({
      query: url.searchParams.getAll('id'), query_nested: url.searchParams.getAll('order[id]'),
      form: json ? null : at(fields, 'id'), form_nested: json ? null : at(fields, 'order[id]'), json: json ? at(fields, 'id') : null,
      header: scalars(req.headers['x-customer']), path: scalars(order(url.pathname)),
      cookie: /(?:^|; )cart_id=([^;]*)/.exec(req.headers.cookie || '')?.[1],
    }))
  }).listen(port, '127.0.0.1')
}
