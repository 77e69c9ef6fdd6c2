# Flask
@app.before_request
def only_what_is_locked():
    locked = json.loads(request.headers.get("Redlock-Key", "{}")).get("path.1", [])
    if "id" in (request.view_args or {}) and str(request.view_args["id"]) not in locked:
        abort(400)
