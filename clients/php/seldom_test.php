<?php
// Run by worker_test.php: the client's clocks stand still here, but for what the test adds. Its names are looked up in its namespace first.

namespace Redlock {
    function hrtime(bool $asNumber): int
    {
        return (int) ((\Clocks::$now += \Clocks::$step) * 1e9);
    }

    function fgets($stream): string|false
    {
        \Clocks::$now += \Clocks::$slow;
        [$answer, \Clocks::$answer] = [\Clocks::$answer, null];
        $answer && $answer();
        return \fgets($stream);
    }

    function error_log(string $text): void
    {
        \Clocks::$said[] = $text;
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
        public static float $step = 0; // how long it takes to look at them
        public static float $slow = 0; // how long a line takes
        public static ?Closure $answer = null; // is called before the first line is read
        public static array $said = [];
    }

    /** A script that looks at its lock only after long work hears then how long it has the lock, and of no renewal before. */
    function seldom(Redlock\Agent $agent, string $key): void
    {
        asksForNoRenewals();
        says();
        doubts();
        $lock = $agent->lock($key, ttl: 30);
        Clocks::$now += 25; // of work
        $left = $lock->remaining();
        if ($left < 10) {
            throw new RuntimeException("what the agent has said before the work is all that counts: $left s are left");
        }
        $lock->release();
    }

    /** Calls $use with an agent that answers the first request in this way, and says nothing more. */
    function answered(string $response, callable $use): void
    {
        $path = sys_get_temp_dir() . '/redlock-seldom-' . getmypid();
        $server = stream_socket_server("unix://$path");
        Clocks::$answer = function () use ($server, $response, &$connection): void {
            $connection = stream_socket_accept($server);
            fwrite($connection, $response);
        };
        try {
            $use(new Redlock\Agent($path, patience: 1));
        } finally {
            unlink($path);
            Clocks::$step = Clocks::$slow = 0;
        }
    }

    /** A wait of more than 10 s is told once. */
    function says(): void
    {
        answered(str_repeat("HTTP/1.1 102 Processing\r\n\r\n", 5) . "HTTP/1.1 423 Locked\r\nRedlock-Agent: 1\r\n\r\n", function (Redlock\Agent $agent): void {
            Clocks::$slow = 3;
            try {
                $agent->lock('key', label: 'pay');
            } catch (Redlock\LockHeld) {
            }
        });
        if (Clocks::$said !== ['still waiting for a lock after 10 s (pay)']) {
            throw new RuntimeException('said: ' . json_encode(Clocks::$said));
        }
    }

    /** A lock that isn't certain may still be the client's own. */
    function doubts(): void
    {
        $line = '{"fence":7,"mark":0,"valid_ms":60000}' . "\n";
        answered("HTTP/1.1 200 OK\r\nRedlock-Agent: 1\r\n\r\n" . dechex(strlen($line)) . "\r\n$line\r\n", function (Redlock\Agent $agent): void {
            $lock = $agent->lock('key');
            Clocks::$now += 100;
            Clocks::$step = 1;
            try {
                $agent->lock('key', 0);
            } catch (Redlock\LockError $error) {
            }
            if (!str_contains($error->getMessage(), 'would wait for itself')) {
                throw $error;
            }
        });
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
