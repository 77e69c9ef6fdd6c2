"""What aiohttp, Falcon and Starlette read of a request: python3 async.py <framework> <port>"""
import sys

from readings import json_id, scalar

framework, port = sys.argv[1], int(sys.argv[2])


if framework == "aiohttp":
    from aiohttp import web

    async def answer(request):
        body = await request.read()
        try:
            form = await request.post()
        except Exception:
            form = {}
        return web.json_response(dict(
            query=request.query.get("id"), query_nested=request.query.get("order[id]"), form=scalar(form.get("id")), form_nested=scalar(form.get("order[id]")),
            json=json_id(body), cookie=request.cookies.get("cart_id"), header=request.headers.get("X-Customer"), path=request.match_info.get("id")))

    app = web.Application()
    app.router.add_route("*", "/orders/{id}/pay", answer)
    app.router.add_route("*", "/{any:.*}", answer)
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)
elif framework == "falcon":
    import falcon
    from werkzeug.serving import run_simple
    import logging
    logging.getLogger("werkzeug").disabled = True

    class Answer:
        def on_get(self, req, resp, id=None):
            query = falcon.uri.parse_query_string(req.query_string, keep_blank=True, csv=req.options.auto_parse_qs_csv)
            try:
                form, body = (req.get_media(default_when_empty={}), None) if "form" in (req.content_type or "") else ({}, req.bounded_stream.read())
            except falcon.HTTPError:
                form, body = {}, None
            resp.media = dict(
                query=scalar(query.get("id")), query_nested=scalar(query.get("order[id]")), form=scalar(form.get("id")), form_nested=scalar(form.get("order[id]")),
                json=json_id(body or b""), cookie=scalar(req.get_cookie_values("cart_id")), header=req.get_header("X-Customer"), path=scalar(id))
        on_post = on_get

    app = falcon.App()
    app.add_route("/orders/{id}/pay", Answer())
    app.add_sink(lambda req, resp: Answer().on_get(req, resp))
    run_simple("127.0.0.1", port, app, threaded=True)
else:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def answer(request):
        body = await request.body()
        try:
            form = await request.form()
        except Exception:
            form = {}
        return JSONResponse(dict(
            query=request.query_params.get("id"), query_nested=request.query_params.get("order[id]"), form=scalar(form.get("id")), form_nested=scalar(form.get("order[id]")),
            json=json_id(body), cookie=request.cookies.get("cart_id"), header=request.headers.get("X-Customer"), path=scalar(request.path_params.get("id"))))

    methods = ["GET", "POST"]
    routes = [Route("/orders/{id:int}/pay", answer, methods=methods), Route("/orders/{id}/pay", answer, methods=methods), Route("/{any:path}", answer, methods=methods)]
    uvicorn.run(Starlette(routes=routes), host="127.0.0.1", port=port, log_level="critical")
