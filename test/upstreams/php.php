<?php
// What PHP reads of a request.
function scalars($v) {
    if (is_array($v)) return array_is_list($v) ? array_map('scalars', $v) : null;
    return $v === null ? null : (is_bool($v) ? var_export($v, true) : (string) $v);
}
function at($v, ...$names) {
    foreach ($names as $name) $v = is_array($v) ? ($v[$name] ?? null) : null;
    return scalars($v);
}
$path = preg_match('~^/orders/([^/]+)/pay/?$~', rawurldecode(explode('?', $_SERVER['REQUEST_URI'])[0]), $m) ? $m[1] : null;
header('Content-Type: application/json');
$body = json_encode([
    'query' => at($_GET, 'id'), 'query_nested' => at($_GET, 'order', 'id'), 'form' => at($_POST, 'id'), 'form_nested' => at($_POST, 'order', 'id'),
    'both' => at($_REQUEST, 'id'), 'json' => at(json_decode(file_get_contents('php://input'), true), 'id'),
    'cookie' => at($_COOKIE, 'cart_id'), 'header' => $_SERVER['HTTP_X_CUSTOMER'] ?? null, 'path' => $path,
], JSON_INVALID_UTF8_SUBSTITUTE);
header('Content-Length: ' . strlen($body));
echo $body;
