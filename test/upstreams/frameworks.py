"""What FastAPI, Quart, CherryPy, WebOb, Pyramid and Twisted read of a request: python3 frameworks.py <framework> <port>"""
import json
import sys

from readings import json_id, scalar

framework, port = sys.argv[1], int(sys.argv[2])


def serve(app):
    import waitress
    waitress.serve(app, host="127.0.0.1", port=port, _quiet=True)


if framework == "fastapi":
    import uuid
    from typing import Optional, Union

    import uvicorn
    from fastapi import Cookie, FastAPI, Header, Query, Request

    app = FastAPI()

    async def answer(request: Request, id: Union[int, uuid.UUID, str, None] = None, query: Optional[str] = Query(None, alias="id"), nested: Optional[str] = Query(None, alias="order[id]"),
                     cart_id: Optional[str] = Cookie(None), x_customer: Optional[str] = Header(None)):
        body = await request.body()
        try:
            form = await request.form()
        except Exception:
            form = {}
        return dict(query=query, query_nested=nested, form=scalar(form.get("id")), form_nested=scalar(form.get("order[id]")), json=json_id(body),
                    cookie=cart_id, header=x_customer, path=scalar(id) if "id" in request.path_params else None)

    app.add_api_route("/orders/{id}/pay", answer, methods=["GET", "POST"])
    app.add_api_route("/{any:path}", answer, methods=["GET", "POST"])
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="critical")
elif framework == "quart":
    import logging

    from quart import Quart, jsonify, request

    logging.getLogger("quart.serving").disabled = True
    app = Quart(__name__)

    async def answer(id=None, any=None):
        form, body = await request.form, await request.get_data(cache=True, parse_form_data=False)
        values = await request.values
        return jsonify(query=request.args.get("id"), query_nested=request.args.get("order[id]"), form=form.get("id"), form_nested=form.get("order[id]"), both=values.get("id"),
                       json=json_id(body), cookie=request.cookies.get("cart_id"), header=request.headers.get("X-Customer"), path=scalar(id))

    for rule in ("/orders/<int:id>/pay", "/orders/<id>/pay", "/<path:any>", "/"):
        app.add_url_rule(rule, rule, answer, methods=["GET", "POST"])
    app.run(host="127.0.0.1", port=port, use_reloader=False)
elif framework == "cherrypy":
    import cherrypy

    class Root:
        @cherrypy.expose
        def default(self, *path, **both):
            request = cherrypy.request
            form = request.body.params if request.body.processors else {}
            cookie = request.cookie.get("cart_id")
            body = request.body.fp.read() if "json" in request.headers.get("Content-Type", "") else b""
            cherrypy.response.headers["Content-Type"] = "application/json"
            return json.dumps(dict(both=scalar(both.get("id")), form=scalar(form.get("id")), form_nested=scalar(form.get("order[id]")),
                                   query_nested=scalar(both.get("order[id]")), json=json_id(body), cookie=cookie and cookie.value, header=request.headers.get("X-Customer"),
                                   path=path[1] if len(path) == 3 and path[0] == "orders" and path[2] == "pay" else None)).encode()

    cherrypy.config.update({"server.socket_host": "127.0.0.1", "server.socket_port": port, "environment": "production", "log.screen": False})
    cherrypy.quickstart(Root())
elif framework in ("webob", "pyramid"):
    def answer(request, id=None):
        def read(what):
            try:
                return scalar(what())
            except Exception:
                return None
        body = request.body
        return dict(query=read(lambda: request.GET.getall("id")), query_nested=read(lambda: request.GET.get("order[id]")), form=read(lambda: request.POST.getall("id")),
                    form_nested=read(lambda: request.POST.get("order[id]")), both=read(lambda: request.params.get("id")), json=json_id(body),
                    cookie=read(lambda: request.cookies.get("cart_id")), header=request.headers.get("X-Customer"), path=scalar(id))

    if framework == "webob":
        from webob import Request, Response

        def app(environ, start):
            request = Request(environ)
            parts = request.path_info.split("/") if request.path_info.startswith("/orders/") else []
            return Response(json=answer(request, parts[2] if len(parts) == 4 and parts[3] == "pay" else None))(environ, start)
        serve(app)
    else:
        from pyramid.config import Configurator
        config = Configurator()
        config.add_route("pay", "/orders/{id}/pay")
        config.add_route("any", "/*any")
        config.add_view(lambda request: answer(request, request.matchdict["id"]), route_name="pay", renderer="json")
        config.add_view(lambda request: answer(request), route_name="any", renderer="json")
        serve(config.make_wsgi_app())
else:
    from twisted.internet import reactor
    from twisted.web import resource, server

    class Answer(resource.Resource):
        isLeaf = True

        def render(self, request):
            path = [part.decode("utf-8", "replace") for part in request.postpath]
            request.setHeader(b"Content-Type", b"application/json")
            body = request.content.read()
            return json.dumps(dict(both=scalar(request.args.get(b"id")), query_nested=scalar(request.args.get(b"order[id]")), form_nested=scalar(request.args.get(b"order[id]")),
                                   json=json_id(body), cookie=scalar(request.getCookie(b"cart_id")), header=request.getHeader("X-Customer"),
                                   path=path[1] if len(path) == 3 and path[0] == "orders" and path[2] == "pay" else None)).encode()

    reactor.listenTCP(port, server.Site(Answer()), interface="127.0.0.1")
    reactor.run()
