"""Sends requests on 42 as Python's own client writes them: python3 clients.py <addresses by format, as JSON>"""
import json
import sys
from http.cookies import SimpleCookie
from urllib.parse import urlencode
from urllib.request import Request, urlopen

to = json.loads(sys.argv[1])


def send(format, path="/x", data=None, **headers):
    url = "http://" + to[format] + path
    urlopen(Request(url, None if data is None else data.encode(), {name.replace("_", "-"): value for name, value in headers.items()}))


send("query", "/x?" + urlencode({"id": 42, "q": "ü & [id]=1 #", "page": 2}))
send("nested query", "/x?" + urlencode({"order[id]": 42, "order[name]": "x"}))
send("form", data=urlencode({"id": 42, "name": 'Jürgen & Söhne; "x"', "url": "https://x.example/?id=9"}))
send("nested form", data=urlencode([("order[id]", 42), ("order[items][][id]", 7), ("utf8", "✓"), ("x[]", 1), ("x[]", 2)]))
send("json", data=json.dumps({"id": 42, "name": "ü", "url": "https://x.example/?a=1"}), Content_Type="application/json")
cookie = SimpleCookie({"theme": "dark", "cart_id": "42", "mail": "a@b.example"})
send("cookie", Cookie="; ".join(morsel.OutputString() for morsel in cookie.values()))
send("header", X_Customer="42")
send("path", "/orders/42/pay", data="")
