<?php
// Sends the cases as PHP's clients write them: php clients.php <library> <address> <file of cases>
[, $library, $base, $file] = $argv;
if ($library === 'guzzle') {
    require_once 'GuzzleHttp/autoload.php';
    $client = new GuzzleHttp\Client(['http_errors' => false]);
}

function send($method, $path, $query, $form, $json, $headers) {
    global $library, $base, $client;
    $url = $base . $path . ($query === null ? '' : '?' . http_build_query($query));
    if ($library === 'guzzle') {
        $options = ['headers' => $headers];
        if ($query !== null) $options['query'] = $query;
        if ($form !== null) $options['form_params'] = $form;
        if ($json !== null) $options['json'] = $json;
        $client->request($method, $base . $path, $options);
        return;
    }
    $body = $form !== null ? http_build_query($form) : ($json !== null ? json_encode($json, JSON_UNESCAPED_SLASHES) : '');
    if ($form !== null) $headers['Content-Type'] = 'application/x-www-form-urlencoded';
    if ($json !== null) $headers['Content-Type'] = 'application/json';
    $lines = array_map(fn($name, $value) => "$name: $value", array_keys($headers), $headers);
    if ($library === 'curl') {
        $curl = curl_init($url);
        curl_setopt_array($curl, [CURLOPT_HTTPHEADER => $lines, CURLOPT_RETURNTRANSFER => true]);
        if ($method === 'POST') curl_setopt($curl, CURLOPT_POSTFIELDS, $body);
        curl_exec($curl);
        return;
    }
    file_get_contents($url, false, stream_context_create(['http' => ['method' => $method, 'header' => implode("\r\n", $lines), 'content' => $body, 'ignore_errors' => true]]));
}

foreach (file($file, FILE_IGNORE_NEW_LINES) as $line) {
    [$format, $n, $id, $text, $url] = explode("\t", $line);
    $path = "/$format/$n";
    $fields = ['name' => $text, 'id' => $id, 'url' => $url, 'page' => 2, 'tags' => ['a', 'b c'], 'ok' => true];
    $nested = ['order' => ['name' => $text, 'id' => $id, 'items' => [['id' => 7]]], 'utf8' => '✓'];
    match ($format) {
        'query' => send('GET', $path, $fields, null, null, []),
        'nested-query' => send('GET', $path, $nested, null, null, []),
        'form' => send('POST', $path, null, $fields, null, []),
        'nested-form' => send('POST', $path, null, $nested, null, []),
        'json' => send('POST', $path, null, null, ['name' => $text, 'id' => ctype_digit($id) ? (int) $id : $id, 'url' => $url, 'items' => [['id' => 7, 'price' => 12.5]], 'ok' => true, 'none' => null], []),
        'cookie' => send('GET', $path, null, null, null, ['Cookie' => 'theme=dark; cart_id=' . rawurlencode($id) . '; seen=' . urlencode($text)]),
        'header' => send('POST', $path, null, null, ['name' => $text], ['X-Order' => $id]),
        'path' => send('POST', "$path/" . rawurlencode($id), $fields, ['name' => $text], null, []),
    };
}
