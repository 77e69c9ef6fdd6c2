"""Sends the cases as Python's clients write them: python3 clients.py <library> <address> <file of cases>"""
import asyncio
import json
import sys
from http.cookies import SimpleCookie
from urllib.parse import quote, urlencode

library, base, file = sys.argv[1:]
cases = [line.rstrip("\n").split("\t") for line in open(file, encoding="utf-8")]


def pairs(id, text, url):
    return [("name", text), ("id", id), ("url", url), ("page", 2), ("tags", "a"), ("tags", "b c")]


def nested(id, text):
    return [("order[name]", text), ("order[id]", id), ("order[items][0][id]", 7), ("utf8", "✓")]


def document(id, text, url):
    return {"name": text, "id": int(id) if id.isdigit() else id, "url": url, "items": [{"id": 7, "price": 12.5}], "ok": True, "none": None}


def requests_of():
    """Yields method, path, query, form, json and headers."""
    for format, n, id, text, url in cases:
        path = f"/{format}/{n}"
        if format == "query":
            yield "GET", path, pairs(id, text, url), None, None, {}
        elif format == "nested-query":
            yield "GET", path, nested(id, text), None, None, {}
        elif format == "form":
            yield "POST", path, None, pairs(id, text, url), None, {}
        elif format == "nested-form":
            yield "POST", path, None, nested(id, text), None, {}
        elif format == "json":
            yield "POST", path, None, None, document(id, text, url), {}
        elif format == "cookie":
            cookie = SimpleCookie({"theme": "dark", "cart_id": id, "seen": quote(text)})
            yield "GET", path, None, None, None, {"Cookie": "; ".join(m.OutputString() for m in cookie.values())}
        elif format == "header":
            yield "POST", path, None, None, {"name": text}, {"X-Order": id}
        else:
            yield "POST", f"{path}/{quote(id)}", pairs(id, text, url), None, None, {}


def body(form, document):
    if form is not None:
        return urlencode(form).encode(), {"Content-Type": "application/x-www-form-urlencoded"}
    if document is not None:
        return json.dumps(document).encode(), {"Content-Type": "application/json"}
    return None, {}


if library == "urllib":
    from urllib.request import Request, urlopen
    for method, path, query, form, document_, headers in requests_of():
        data, more = body(form, document_)
        urlopen(Request(base + path + ("?" + urlencode(query) if query else ""), data, {**headers, **more}, method=method)).read()
elif library in ("requests", "httpx"):
    session = __import__(library).Session() if library == "requests" else __import__(library).Client()
    for method, path, query, form, document_, headers in requests_of():
        if library == "httpx" and form is not None:
            fields = {}
            for name, value in form:
                fields[name] = [*fields[name], value] if isinstance(fields.get(name), list) else [fields[name], value] if name in fields else value
            form = fields
        session.request(method, base + path, params=query, data=form, json=document_, headers=headers)
elif library == "httplib2":
    import httplib2
    http = httplib2.Http()
    for method, path, query, form, document_, headers in requests_of():
        data, more = body(form, document_)
        http.request(base + path + ("?" + urlencode(query) if query else ""), method, body=data, headers={**headers, **more})
elif library == "pycurl":
    from io import BytesIO

    import pycurl
    for method, path, query, form, document_, headers in requests_of():
        data, more = body(form, document_)
        curl = pycurl.Curl()
        curl.setopt(pycurl.URL, base + path + ("?" + urlencode(query) if query else ""))
        curl.setopt(pycurl.WRITEDATA, BytesIO())
        curl.setopt(pycurl.HTTPHEADER, [f"{name}: {value}" for name, value in {**headers, **more}.items()])
        if method == "POST":
            curl.setopt(pycurl.POSTFIELDS, data or "")
        curl.perform()
elif library == "aiohttp":
    import aiohttp

    async def main():
        async with aiohttp.ClientSession() as session:
            for method, path, query, form, document_, headers in requests_of():
                async with session.request(method, base + path, params=[(n, str(v)) for n, v in query] if query else None, data=[(n, str(v)) for n, v in form] if form else None,
                                           json=document_, headers=headers) as response:
                    await response.read()

    asyncio.run(main())
