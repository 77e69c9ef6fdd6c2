// A server that says, by the senders' own SDKs, whether a request is signed: node verdicts.js
// POST /<sdk> is answered with 200 or 401. The header Test-Secrets has the secrets, with spaces between.
// POST /sign/<sdk> is answered with the headers of the sender for this body, as JSON, where its SDK can sign.
const http = require('http')
const crypto = require('crypto')

const sdks = {}
async function init() {
  const stripe = require('stripe')
  const { webhooks } = new (stripe.default || stripe)('sk_test_x')
  const octokit = await import(process.env.NODE_PATH + '/@octokit/webhooks-methods/dist-node/index.js') // a module
  const { Webhook: Standard } = require('standardwebhooks')
  const { Webhook: Svix } = require('svix')
  const { isValidSlackRequest } = require(process.env.NODE_PATH + '/@slack/bolt/dist/receivers/verify-request.js')
  require('@shopify/shopify-api/adapters/node')
  const { shopifyApi, ApiVersion } = require('@shopify/shopify-api')
  const { hmacValidator: Adyen } = require('@adyen/api-library')
  const adyen = new Adyen()
  Object.assign(sdks, {
    stripe: {
      verify: (secret, body, req) => webhooks.constructEvent(body, req.headers['stripe-signature'], secret),
      sign: (secret, body) => ({ 'Stripe-Signature': webhooks.generateTestHeaderString({ payload: body.toString(), secret }) }),
    },
    github: {
      verify: async (secret, body, req) => {
        if (!await octokit.verify(secret, body.toString(), req.headers['x-hub-signature-256'])) throw new Error('refused')
      },
      sign: async (secret, body) => ({ 'X-Hub-Signature-256': await octokit.sign(secret, body.toString()) }),
    },
    'standard-webhooks': {
      verify: (secret, body, req) => new Standard(secret).verify(body, req.headers),
      sign: (secret, body) => {
        const now = new Date()
        return { 'Webhook-Id': 'msg_1', 'Webhook-Timestamp': String(Math.floor(now / 1000)), 'Webhook-Signature': new Standard(secret).sign('msg_1', now, body) }
      },
    },
    svix: {
      verify: (secret, body, req) => new Svix(secret).verify(body, req.headers),
      sign: (secret, body) => {
        const now = new Date()
        return { 'Svix-Id': 'msg_1', 'Svix-Timestamp': String(Math.floor(now / 1000)), 'Svix-Signature': new Svix(secret).sign('msg_1', now, body) }
      },
    },
    slack: {
      verify: (secret, body, req) => {
        if (!isValidSlackRequest({ signingSecret: secret, body: body.toString(), headers: req.headers })) throw new Error('refused')
      },
      sign: (secret, body) => { // as its documentation has it: the SDK only verifies
        const sent = Math.floor(Date.now() / 1000)
        return { 'X-Slack-Request-Timestamp': String(sent), 'X-Slack-Signature': 'v0=' + crypto.createHmac('sha256', secret).update(`v0:${sent}:`).update(body).digest('hex') }
      },
    },
    shopify: {
      verify: async (secret, body, req, res) => {
        const api = shopifyApi({ apiKey: 'x', apiSecretKey: secret, apiVersion: Object.values(ApiVersion).at(-1), hostName: 'x.example', isEmbeddedApp: false, logger: { level: 0, log: () => {} } })
        const verdict = await api.webhooks.validate({ rawBody: body.toString(), rawRequest: req, rawResponse: res })
        if (!verdict.valid) throw new Error(verdict.reason)
      },
      sign: (secret, body) => ({ 'X-Shopify-Hmac-Sha256': crypto.createHmac('sha256', secret).update(body).digest('base64') }),
    },
    adyen: {
      verify: (secret, body, req) => {
        if (req.headers['hmacsignature'] !== undefined) {
          if (!adyen.validateHMACSignature(secret, req.headers['hmacsignature'], body.toString())) throw new Error('refused')
          return
        }
        const items = JSON.parse(body.toString()).notificationItems
        if (!items.length || !items.every((i) => adyen.validateHMAC(i.NotificationRequestItem, secret))) throw new Error('refused')
      },
      sign: (secret, body) => ({ HmacSignature: adyen.calculateHmac(body.toString(), secret) }),
    },
    'adyen item': { // the signature of an item, which the sender puts into it
      sign: (secret, body) => ({ signature: adyen.calculateHmac(JSON.parse(body.toString()), secret) }),
    },
  })
}

const server = http.createServer((req, res) => {
  const chunks = []
  req.on('data', (chunk) => chunks.push(chunk))
  req.on('end', async () => {
    const [, name, signs] = /^\/([^?/]+)(\/sign)?/.exec(decodeURI(req.url))
    const body = Buffer.concat(chunks)
    const secrets = req.headers['test-secrets'].split(' ')
    try {
      if (signs) {
        res.end(JSON.stringify(await sdks[name].sign(secrets[0], body)))
        return
      }
      let verdict = new Error('no secret')
      for (const secret of secrets) {
        try {
          await sdks[name].verify(secret, body, req, res)
          verdict = undefined
          break
        } catch (err) {
          verdict = err
        }
      }
      if (verdict) throw verdict
      res.end('accepted')
    } catch (err) {
      res.statusCode = 401
      res.end(String(err.message))
    }
  })
})

init().then(() => server.listen(0, '127.0.0.1', () => console.log(server.address().port)), (err) => { console.error(err); process.exit(1) })
process.stdin.on('end', () => process.exit()).resume() // with the test
