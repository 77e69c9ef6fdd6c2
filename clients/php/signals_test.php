<?php
// Run by signals_test.go: a signal, whose handler throws, asks or releases, comes at each line of the client that a lock executes.

namespace Redlock {
    function hrtime(bool $asNumber): float
    {
        return \hrtime(true) + \Clock::$ahead;
    }
}

namespace {
    $client = tempnam(sys_get_temp_dir(), 'redlock');
    file_put_contents($client, '<?php declare(ticks=1);' . substr(file_get_contents(__DIR__ . '/redlock.php'), 5));
    require $client;
    unlink($client);

    class Interruption extends Exception
    {
    }

    class Clock
    {
        public static float $ahead = 0;
    }

    $agent = new Redlock\Agent(getenv('ADDRESS'));
    $lock = null;
    $ways = [
        'block' => fn (string $key) => $agent->withLock($key, function (Redlock\Lock $held) use (&$lock): void {
            $lock = $held;
            $held->check();
        }),
        'once' => fn (string $key) => $agent->once($key, 0.001, function (Redlock\Lock $held) use (&$lock): int {
            $lock = $held;
            return 1;
        }),
        'lock' => function (string $key) use ($agent, &$lock): void {
            $lock = $agent->lock($key);
            try {
                Clock::$ahead += 8e9; // of work: the agent is asked
                $lock->check();
                $lock->release();
                $lock = null;
            } catch (Interruption) {
                $lock?->release(); // as nobody else does
            }
        },
    ];
    $handlers = [
        'throws' => fn () => throw new Interruption(),
        'asks' => function () use ($agent, &$lock, &$key): void {
            $lock?->remaining() > 0 && $lock->check();
            [$asked, $released] = $lock === null ? [false, null] : (fn () => [$this->asked, $this->released])->call($lock);
            if ($asked && $lock->remaining() > 0 || $released !== null && $agent->holds([$key])) {
                exit("the lock on $key is held although it was released\n");
            }
        },
        'releases' => function () use (&$lock): void {
            $lock?->release();
        },
    ];
    pcntl_async_signals(true);
    set_error_handler(fn ($level, $text) => error_reporting() & $level ? throw new ErrorException($text) : true);
    $ticks = $at = 0; // how many lines there were, and at which one it comes
    register_tick_function(function () use (&$ticks, &$at): void {
        ++$ticks === $at && pcntl_async_signals() && posix_kill(getmypid(), SIGUSR1); // in a file with ticks, pcntl calls handlers also when they are off
    });
    foreach ($ways as $way => $work) {
        foreach ($handlers as $handler => $handle) {
            pcntl_signal(SIGUSR1, $handle);
            for ($at = 1, $more = true; $more; $at++) {
                $key = "$way-$handler-$at";
                [$lock, $ticks] = [null, 0];
                try {
                    $work($key);
                } catch (Interruption) {
                } catch (Redlock\LockLost $error) {
                    $handler === 'releases' || throw $error;
                }
                $more = $ticks >= $at;
                [$ticks, $lock, $error] = [$at, null, null]; // what comes now is not interrupted
                try {
                    $agent->lock($key, 10)->release(); // the agent hears of the end of a connection in its own time
                } catch (Redlock\LockHeld) {
                    exit("$way: $handler: the key is held after line $at\n");
                }
            }
            echo "$way: $handler: ", $at - 2, " lines\n";
        }
    }
    echo "done\n";
}
