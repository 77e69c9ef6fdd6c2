# Flask: @app.post("/orders/<id>/pay"), and @locked below it
def locked(view):
    @wraps(view)
    def checked(id):
        values = json.loads(request.headers.get("Redlock-Key", "{}")).get("path.1", [])
        if "Fencing-Token" not in request.headers or str(id) not in values:
            abort(400)
        return view(id)
    return checked
