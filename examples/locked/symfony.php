// Symfony: first in the action
$values = json_decode($request->headers->get('Redlock-Key', '{}'), true)['path.1'] ?? [];
if (!$request->headers->has('Fencing-Token') || !in_array((string) $order->id, $values, true)) {
    throw new BadRequestHttpException();
}
