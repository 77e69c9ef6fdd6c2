<?php
// Run by worker_test.php: the client's clocks stand still here, but for what the test adds. Its names are looked up in its namespace first.

namespace Redlock {
    function hrtime(bool $asNumber): int
    {
        return (int) (\Clocks::$now * 1e9);
    }

    function microtime(bool $asFloat): float
    {
        return \Clocks::$now;
    }
}

namespace {
    class Clocks
    {
        public static float $now = 1e6;
    }

    /** A script that looks at its lock only after long work hears then how long it has the lock, and of no renewal before. */
    function seldom(Redlock\Agent $agent, string $key): void
    {
        asksForNoRenewals();
        $lock = $agent->lock($key, ttl: 30);
        Clocks::$now += 25; // of work
        $left = $lock->remaining();
        if ($left < 10) {
            throw new RuntimeException("what the agent has said before the work is all that counts: $left s are left");
        }
        $lock->release();
    }

    function asksForNoRenewals(): void
    {
        $path = sys_get_temp_dir() . '/redlock-seldom-' . getmypid();
        $server = stream_socket_server("unix://$path"); // which answers nothing
        try {
            (new Redlock\Agent($path, patience: 0.01))->lock('key');
        } catch (Redlock\LockError) {
        }
        unlink($path);
        if (!str_contains(fread(stream_socket_accept($server), 8192), '"quiet":true')) {
            throw new RuntimeException('a request for lines that nobody reads');
        }
    }
}
