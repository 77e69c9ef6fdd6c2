// Express: app.post("/orders/:id/pay", locked, pay)
const locked = (req, res, next) => {
  const values = JSON.parse(req.get("Redlock-Key") ?? "{}")["path.1"] ?? [];
  req.get("Fencing-Token") && values.includes(req.params.id) ? next() : res.sendStatus(400);
};
