// Makes a payment with stripe-node, which repeats its request until it is answered: node payments.js <host> <port> <timeout in ms>
// It prints the payment's ID and the headers of the response, as JSON.
const stripe = require('stripe')

const [host, port, timeout] = process.argv.slice(2)
const client = new (stripe.default || stripe)('sk_test_x', { host, port, protocol: 'http', timeout: Number(timeout), maxNetworkRetries: 50, telemetry: false })
client.paymentIntents.create({ amount: 1130, currency: 'eur', description: 'Jürgen 😀' }).then(
  (payment) => console.log(JSON.stringify({ id: payment.id, headers: payment.lastResponse.headers })),
  (err) => { console.error(err); process.exit(1) })
