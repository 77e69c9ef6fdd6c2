"""What Flask, Django, Bottle and Tornado read of a request: python3 python.py <framework, or a server of Flask> <port>"""
import sys

from readings import json_id, scalar

framework, port = sys.argv[1], int(sys.argv[2])


def serve(app):
    if framework == "uwsgi":
        global application
        application = app
    elif framework == "waitress":
        import waitress
        waitress.serve(app, host="127.0.0.1", port=port, _quiet=True)
    elif framework == "gunicorn":
        from gunicorn.app.base import BaseApplication

        class Server(BaseApplication):
            def load_config(self):
                for name, value in {"bind": f"127.0.0.1:{port}", "workers": 1, "threads": 4}.items():
                    self.cfg.set(name, value)

            def load(self):
                return app

        Server().run()
    else:
        import logging
        from werkzeug.serving import run_simple
        logging.getLogger("werkzeug").disabled = True
        run_simple("127.0.0.1", port, app, threaded=True)


if framework in ("flask", "uwsgi", "waitress", "gunicorn"):
    from flask import Flask, request, jsonify
    app = Flask(__name__)

    def answer(id=None):
        body = request.get_data(cache=True, parse_form_data=False)
        return jsonify(
            query=request.args.get("id"), query_int=scalar(request.args.get("id", type=int)), query_nested=request.args.get("order.id"),
            form=request.form.get("id"), form_nested=request.form.get("order.id"), form_int=scalar(request.form.get("id", type=int)),
            both=request.values.get("id"), json=json_id(body),
            cookie=request.cookies.get("cart_id"), header=request.headers.get("X-Customer"), path=scalar(id))

    methods = ["GET", "POST"]
    app.add_url_rule("/orders/<int:id>/pay", "int", answer, methods=methods)
    app.add_url_rule("/orders/<uuid:id>/pay", "uuid", answer, methods=methods)
    app.add_url_rule("/orders/<id>/pay", "text", answer, methods=methods)
    app.add_url_rule("/<path:any>", "any", lambda any: answer(), methods=methods)
    app.add_url_rule("/", "root", answer, methods=methods)
    serve(app)
elif framework == "django":
    import django
    from django.conf import settings
    from django.core.wsgi import get_wsgi_application
    from django.http import JsonResponse
    from django.urls import path, re_path
    settings.configure(SECRET_KEY="x", ALLOWED_HOSTS=["*"], ROOT_URLCONF="__main__", LOGGING_CONFIG=None)

    def answer(request, id=None):
        body = request.body
        return JsonResponse(dict(
            query=request.GET.get("id"), query_nested=request.GET.get("order.id"), form=request.POST.get("id"), form_nested=request.POST.get("order.id"),
            json=json_id(body), cookie=request.COOKIES.get("cart_id"), header=request.headers.get("X-Customer"), path=scalar(id)))

    urlpatterns = [path("orders/<int:id>/pay", answer), path("orders/<str:id>/pay", answer), re_path("^", answer)]
    django.setup()
    serve(get_wsgi_application())
elif framework == "bottle":
    import bottle
    app = bottle.Bottle()

    def answer(id=None):
        request = bottle.request
        return dict(
            query=request.query.getunicode("id"), query_nested=request.query.getunicode("order.id"), form=request.forms.getunicode("id"),
            form_nested=request.forms.getunicode("order.id"), json=json_id(request.body.read()),
            cookie=request.get_cookie("cart_id"), header=request.get_header("X-Customer"), path=scalar(id))

    for method in ("GET", "POST"):
        app.route("/orders/<id:int>/pay", method, answer)
        app.route("/orders/<id>/pay", method, answer)
        app.route("/<any:path>", method, lambda any: answer())
        app.route("/", method, answer)
    serve(app)
else:
    import tornado.ioloop
    import tornado.web

    class Answer(tornado.web.RequestHandler):
        def get(self, id=None):
            one = lambda get, name: (get(name) or [None])[-1]
            self.write(dict(
                query=one(self.get_query_arguments, "id"), query_nested=one(self.get_query_arguments, "order.id"),
                form=one(self.get_body_arguments, "id"), form_nested=one(self.get_body_arguments, "order.id"), both=one(self.get_arguments, "id"),
                json=json_id(self.request.body), cookie=self.get_cookie("cart_id"), header=self.request.headers.get("X-Customer"), path=scalar(id)))
        post = get

    tornado.web.Application([(r"/orders/([^/]+)/pay/?", Answer), (r"/.*", Answer)], log_function=lambda _: None).listen(port, "127.0.0.1")
    tornado.ioloop.IOLoop.current().start()
