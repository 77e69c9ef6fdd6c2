// Express
const locked = (req) => JSON.parse(req.get("Redlock-Key") ?? "{}")["path.1"] ?? [];
app.post("/orders/:id/pay", (req, res, next) => locked(req).includes(req.params.id) ? next() : res.sendStatus(400));
