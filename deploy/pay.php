<?php
// One payment of an order at a time, under a lock of the agent.
require __DIR__ . '/redlock.php';

try {
    (new Redlock\Agent())->withLock($_SERVER['REQUEST_URI'], function (Redlock\Lock $lock) {
        sleep(3);
        echo "paid, with fencing token {$lock->fence}\n";
    }, wait: 0);
} catch (Redlock\LockHeld $e) {
    http_response_code(423);
    header("Retry-After: {$e->retryAfter}");
    echo "another request pays it\n";
}
