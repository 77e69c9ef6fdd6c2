<?php
// What Slim reads of a request.
error_reporting(0);
require_once 'Slim/autoload.php';

function scalars($v) {
    if (is_array($v)) return array_is_list($v) ? array_map('scalars', $v) : null;
    return $v === null ? null : (is_bool($v) ? var_export($v, true) : (string) $v);
}
function at($v, ...$names) {
    foreach ($names as $name) $v = is_array($v) ? ($v[$name] ?? null) : null;
    return scalars($v);
}
$app = new \Slim\App();
$answer = function ($r, $response, $args) {
    try { $body = $r->getParsedBody(); } catch (\Throwable $e) { $body = null; }
    $json = str_contains($r->getContentType() ?? '', 'json');
    return $response->withJson([
        'query' => at($r->getQueryParams(), 'id'), 'query_nested' => at($r->getQueryParams(), 'order', 'id'),
        'form' => $json ? null : at($body, 'id'), 'form_nested' => $json ? null : at($body, 'order', 'id'), 'json' => $json ? at($body, 'id') : null,
        'both' => attempt(fn() => $r->getParam('id')), 'cookie' => at($r->getCookieParams(), 'cart_id'), 'header' => $r->getHeader('X-Customer'), 'path' => $args['id'] ?? null,
    ], 200, JSON_INVALID_UTF8_SUBSTITUTE);
};
function attempt(callable $read) {
    try { return scalars($read()); } catch (\Throwable $e) { return null; }
}
$app->map(['GET', 'POST'], '/orders/{id}/pay[/]', $answer);
$app->map(['GET', 'POST'], '/[{any:.*}]', $answer);
$app->run();
