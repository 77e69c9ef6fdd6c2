<?php
// Sends requests on 42 as PHP's own client writes them: php clients.php <addresses by format, as JSON>
$to = json_decode($argv[1], true);
function send($format, $path = '/x', $body = null, $headers = '') {
    global $to;
    $http = ['method' => $body === null ? 'GET' : 'POST', 'header' => $headers, 'content' => $body ?? '', 'ignore_errors' => true];
    file_get_contents('http://' . $to[$format] . $path, false, stream_context_create(['http' => $http]));
}
$form = 'Content-Type: application/x-www-form-urlencoded';
send('query', '/x?' . http_build_query(['id' => 42, 'q' => 'ü & [id]=1 #', 'page' => 2]));
send('nested query', '/x?' . http_build_query(['order' => ['id' => 42, 'name' => 'x']]));
send('form', '/x', http_build_query(['id' => 42, 'name' => 'Jürgen & Söhne; "x"', 'url' => 'https://x.example/?id=9']), $form);
send('nested form', '/x', http_build_query(['order' => ['id' => 42, 'items' => [['id' => 7]], 'ok' => true], 'x' => [1, 2]]), $form);
send('json', '/x', json_encode(['id' => 42, 'name' => 'ü', 'url' => 'https://x.example/?a=1', 'price' => 12.5]), 'Content-Type: application/json');
send('cookie', '/x', null, 'Cookie: theme=dark; cart_id=42; mail=' . urlencode('a@b.example'));
send('header', '/x', null, 'X-Customer: 42');
send('path', '/orders/42/pay', '', $form);
