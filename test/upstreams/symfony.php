<?php
// What Symfony's HttpFoundation and Routing read of a request.
error_reporting(0);
require_once 'Symfony/Component/HttpFoundation/autoload.php';
require_once 'Symfony/Component/Routing/autoload.php';
use Symfony\Component\HttpFoundation\{JsonResponse, Request};
use Symfony\Component\Routing\{Matcher\UrlMatcher, RequestContext, Route, RouteCollection};

function scalars($v) {
    if (is_array($v)) return array_is_list($v) ? array_map('scalars', $v) : null;
    return $v === null ? null : (is_bool($v) ? var_export($v, true) : (string) $v);
}
function attempt(callable $read) {
    try { return scalars($read()); } catch (\Throwable $e) { return null; }
}
$routes = new RouteCollection();
$routes->add('int', new Route('/orders/{id<\d+>}/pay'));
$routes->add('text', new Route('/orders/{id}/pay'));
$r = Request::createFromGlobals();
$path = explode('?', $r->getRequestUri())[0]; // what getPathInfo gives where the script is index.php; match() undoes the escapes
$response = new JsonResponse();
$response->setEncodingOptions(JSON_INVALID_UTF8_SUBSTITUTE);
$response->setData([
    'query' => attempt(fn() => $r->query->all()['id'] ?? null), 'query_nested' => attempt(fn() => $r->query->all('order')['id'] ?? null),
    'form' => attempt(fn() => $r->request->all()['id'] ?? null), 'form_nested' => attempt(fn() => $r->request->all('order')['id'] ?? null),
    'both' => attempt(fn() => $r->get('id')), 'json' => attempt(fn() => $r->toArray()['id'] ?? null),
    'cookie' => attempt(fn() => $r->cookies->all()['cart_id'] ?? null), 'header' => attempt(fn() => $r->headers->get('X-Customer')),
    'path' => attempt(fn() => (new UrlMatcher($routes, (new RequestContext())->fromRequest($r)))->match($path)['id']),
]);
$response->headers->set('Content-Length', (string) strlen($response->getContent()));
$response->send();
