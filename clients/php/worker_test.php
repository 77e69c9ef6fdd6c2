<?php
// Run by clients_test.go: takes a lock, and prints what becomes of it.
require __DIR__ . '/redlock.php';

$keys = array_slice($argv, 2);
$agent = new Redlock\Agent(getenv('ADDRESS'), getenv('TOKEN') ?: null, (float) (getenv('PATIENCE') ?: 10));
$options = [];
foreach (['wait' => 'WAIT', 'ttl' => 'TTL', 'maxHold' => 'MAX_HOLD'] as $name => $variable) {
    if (getenv($variable) != '') {
        $options[$name] = (float) getenv($variable);
    }
}
if (getenv('CONCURRENCY') != '') {
    $options['concurrency'] = (int) getenv('CONCURRENCY');
}
if (getenv('VALUES') != '') {
    [$name, $value] = explode('=', getenv('VALUES'));
    $options['values'] = [$name => $value];
}
$keep = (float) (getenv('KEEP') === false ? 3600 : getenv('KEEP'));
$before = 0;

/** Forks, and says whether this is a child that is to leave the block by its end. */
function split(Redlock\Lock $lock, string $how): bool
{
    $child = pcntl_fork();
    if ($child === 0) {
        try {
            $lock->check();
        } catch (Redlock\LockLost) {
            echo 'child ', $lock->remaining() > 0 ? 'True' : 'False', "\n";
        }
        if ($how === 'exit') {
            exit(0);
        }
        if ($how === 'raise') {
            throw new RuntimeException('in the child');
        }
        return true;
    }
    pcntl_waitpid($child, $status);
    echo "forked\n";
    return false;
}

/** Takes the lock again and again, and prints what becomes of it. */
function compete(Redlock\Agent $agent, string $key, array $options): void
{
    $parent = getmypid();
    $now = fn (): int => hrtime(true);
    for (; !file_exists(getenv('STOP')); clearstatcache()) {
        $fence = 0;
        try {
            $agent->withLock($key, function (Redlock\Lock $lock) use (&$fence, $now) {
                $fence = $lock->fence;
                echo "has $fence {$now()}\n";
                if (random_int(0, 9) < 3 && split($lock, ['exit', 'return', 'raise'][random_int(0, 2)])) {
                    return;
                }
                for ($n = random_int(0, 9); $n > 0; $n--) {
                    $before = $now();
                    $lock->check();
                    echo "had $fence $before\n";
                    usleep(20000);
                }
                if (random_int(0, 9) === 0) { // work that doesn't look
                    sleep(2);
                }
                echo "left $fence {$now()}\n";
            }, ...$options);
            echo "freed $fence\n";
        } catch (Redlock\LockLost) {
            if (getmypid() !== $parent) {
                exit(0);
            }
            echo "lost $fence\n";
        } catch (Redlock\LockError) {
            usleep(100000);
        }
    }
}

/** Does the work of once_per and once, which fails if a reason is given. */
$work = function (Redlock\Lock $lock) use ($keys): array {
    if (count($keys) > 1) {
        throw $keys[1] === 'not mine' ? new Redlock\LockDone($keys[1], null) : new Redlock\LockError($keys[1]);
    }
    if (getenv('SLOWLY')) {
        for (print("works\n"); !file_exists(getenv('STOP')); clearstatcache()) {
            usleep(20000);
        }
    }
    return ['paid' => $lock->fence > 0];
};

try {
    if ($argv[1] === 'compete') {
        compete($agent, $keys[0], $options);
    } elseif ($argv[1] === 'own') { // the adapters: Debian's packages have Symfony's and Laravel's
        require __DIR__ . '/adapters_test.php';
        adapters($agent, $keys[0]);
    } elseif ($argv[1] === 'seldom') {
        require __DIR__ . '/seldom_test.php';
        seldom($agent, $keys[0]);
    } elseif ($argv[1] === 'once_per') {
        $ran = $agent->oncePer($keys[0], $keep, $work, ...$options) ? 'true' : 'false';
        echo "ran $ran\n";
    } elseif ($argv[1] === 'once') {
        $value = json_encode($agent->once($keys[0], $keep, $work, ...$options));
        echo "value $value\n";
    } elseif ($argv[1] === 'equal') { // although JSON has no objects of classes
        $value = fn () => $agent->once($keys[0], 3600, fn () => new DateTimeZone('UTC'), ...$options);
        echo 'equal ', json_encode($value() === $value()), "\n";
    } elseif ($argv[1] === 'unwritable') {
        try {
            $agent->once($keys[0], $keep, fn () => "\xff", ...$options);
        } catch (Redlock\LockNotRemembered $e) {
            echo 'unwritable, and its value is there: ', json_encode($e->value === "\xff"), " {$e->getMessage()}\n";
        }
    } elseif ($argv[1] === 'nested') {
        $agent->withLock($keys[0], fn () => $agent->withLock(end($keys), fn () => null, ...$options));
    } elseif ($argv[1] === 'kept') {
        $lock = $agent->lock($keys[0], ...$options);
        $lock->check();
        echo "held {$lock->fence}\n";
        $lock->release();
    } else {
        if ($argv[1] === 'period') {
            $options['oncePer'] = $keep;
        }
        $agent->withLock($keys, function (Redlock\Lock $lock) use (&$before, &$last) {
            $last = $lock;
            echo 'held ', getenv('CONCURRENCY') ? $lock->slot : $lock->fence, "\n";
            for ($end = hrtime(true) + (int) ((float) getenv('BUSY') * 1e9); hrtime(true) < $end;) { // work that looks at nothing
            }
            if (getenv('FORK') && split($lock, getenv('FORK'))) {
                return;
            }
            for (; !file_exists(getenv('STOP')); clearstatcache()) {
                $now = (int) floor(microtime(true) * 1000);
                $lock->check();
                $before = $now;
                usleep(20000);
            }
        }, ...$options);
        if ($argv[1] === 'after') {
            $last->check();
        }
    }
    echo "done\n";
} catch (Redlock\LockHeld $e) {
    echo "refused {$e->retryAfter}\n";
} catch (Redlock\LockLost $e) {
    echo "lost $before {$e->getMessage()}\n";
} catch (Redlock\LockUnavailable $e) {
    echo "unavailable {$e->retryAfter}\n";
} catch (Redlock\LockDone $e) {
    echo "already {$e->getMessage()}", $e->retryAfter === null ? '' : ", retry after {$e->retryAfter}", "\n";
} catch (Redlock\LockNotRemembered $e) {
    $value = json_encode($e->value);
    echo "forgotten $value {$e->getMessage()}\n";
} catch (Redlock\LockError $e) {
    echo "error {$e->getMessage()}", $e->value === null ? '' : ": $e->value", "\n";
}
