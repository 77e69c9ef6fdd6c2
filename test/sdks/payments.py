"""Makes a payment with stripe-python, which repeats its request until it is answered: payments.py <host> <port> <timeout in ms>

It prints the payment's ID and the headers of the response, as JSON.
"""

import json
import sys

import stripe

host, port, timeout = sys.argv[1:]
stripe.api_key = "sk_test_x"
stripe.api_base = f"http://{host}:{port}"
stripe.max_network_retries = 50
stripe.enable_telemetry = False
stripe.default_http_client = stripe.http_client.RequestsClient(timeout=int(timeout) / 1000)

payment = stripe.PaymentIntent.create(amount=1130, currency="eur", description="Jürgen 😀")
headers = {name.lower(): value for name, value in payment.last_response.headers.items()}
print(json.dumps({"id": payment.id, "headers": headers}))
