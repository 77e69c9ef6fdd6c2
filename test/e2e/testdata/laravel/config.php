<?php
// The parts of Laravel that the test's application has.
$site = $_SERVER['SITE'];
return [
    'app' => [
        'env' => 'production', 'debug' => false, 'timezone' => 'UTC', 'locale' => 'en', 'key' => str_repeat('k', 32), 'cipher' => 'AES-256-CBC',
        'providers' => [
            Illuminate\Bus\BusServiceProvider::class,
            Illuminate\Cache\CacheServiceProvider::class,
            Illuminate\Database\DatabaseServiceProvider::class,
            Illuminate\Filesystem\FilesystemServiceProvider::class,
            Illuminate\Queue\QueueServiceProvider::class,
            Illuminate\Translation\TranslationServiceProvider::class,
            Illuminate\View\ViewServiceProvider::class,
        ],
    ],
    'cache' => ['default' => 'array', 'stores' => ['array' => ['driver' => 'array']]],
    'database' => [
        'default' => 'sqlite',
        'connections' => ['sqlite' => ['driver' => 'sqlite', 'database' => "$site/orders.sqlite"]],
    ],
    'logging' => ['default' => 'errors', 'channels' => ['errors' => ['driver' => 'single', 'path' => "$site/errors"]]],
    'queue' => [
        'default' => 'database',
        'connections' => ['database' => ['driver' => 'database', 'table' => 'jobs', 'queue' => 'default', 'retry_after' => 600]],
        'failed' => ['driver' => 'null'],
    ],
    'view' => ['paths' => [], 'compiled' => $site],
];
