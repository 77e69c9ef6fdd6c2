<?php
$locked = json_decode($_SERVER['HTTP_REDLOCK_KEY'] ?? '{}', true)['path.1'] ?? [];
if (!in_array((string) $order->id, $locked, true)) {
    http_response_code(400);
    exit;
}
