<?php
$values = json_decode($_SERVER['HTTP_REDLOCK_KEY'] ?? '{}', true)['path.1'] ?? [];
if (!isset($_SERVER['HTTP_FENCING_TOKEN']) || !in_array((string) $order->id, $values, true)) {
    http_response_code(400);
    exit;
}
