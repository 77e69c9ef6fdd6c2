# Django: @locked above each view that changes something
def locked(view):
    @wraps(view)
    def checked(request, id):
        values = json.loads(request.headers.get("Redlock-Key", "{}")).get("path.1", [])
        if "Fencing-Token" not in request.headers or str(id) not in values:
            return HttpResponseBadRequest()
        return view(request, id)
    return checked
