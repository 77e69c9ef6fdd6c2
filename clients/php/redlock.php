<?php
/*
 * A lock of redlock's agent, for php-fpm, FrankenPHP and the command line. Copy this file; it needs PHP 8.1 and no extension.
 *
 *     require 'redlock.php';
 *
 *     $agent = new Redlock\Agent('/run/redlock/redlock.sock');           // or new Redlock\Agent('10.0.0.5:7070', 'the token')
 *     $agent->withLock('order:42', function (Redlock\Lock $lock) {
 *         pay(fence: $lock->fence);
 *         $lock->check();                                                // throws LockLost if the lock isn't certain any more
 *     }, wait: 2);                                                       // without wait: waits without limit; wait: 0 doesn't wait
 *
 *     $agent->oncePer('report', 3600, report(...));                      // once an hour, on one of all machines
 *     $agent->once('order:42', 86400, pay(...));                         // and its value for a day to whoever asks later
 *
 * The lock is held until the function has returned, or until the script or the process ends; a child of pcntl_fork doesn't have it. PHP
 * does one thing at a time, so nothing tells of a loss by itself: call $lock->check() before whatever must not happen twice, and at times
 * during long work. If a process is killed, or ends by a fatal error such as a lack of memory, a child or a command in the background that
 * outlives it keeps the lock: maxHold bounds that.
 * docs/protocol.md says how long a client may believe that it holds a lock.
 *
 * A lock can't be copied or serialized. It is free when it is dropped, and after an exception when that is dropped, at the latest. Locks can be
 * taken and released in signal handlers, when objects are destroyed, and at exit.
 * A lock that its own process asks for again with the same Agent is refused. A wait stops all fibers, also the one that has the lock. Where a
 * fiber is to find another one's lock held, give each an Agent of its own, and wait: 0.
 */

namespace Redlock;

/** The lock can't be had. */
class LockError extends \RuntimeException
{
    /** @param mixed $value what the work of once has returned, or what is remembered of it and isn't JSON */
    public function __construct(string $text, public readonly mixed $value = null)
    {
        parent::__construct($text);
    }
}

/** Another holder has the lock. */
class LockHeld extends LockError
{
    /** @param int $retryAfter when to try again, in seconds */
    public function __construct(string $text, public readonly int $retryAfter)
    {
        parent::__construct($text);
    }
}

/** Nobody gets locks now: too few masters answer, or the agent has no room or is about to stop, or there is none. */
class LockUnavailable extends LockError
{
    /**
     * @param int $retryAfter when to try again, in seconds
     * @param string $seen 'agent' if one has answered and another one may answer the next request, 'end' if a connection has ended
     */
    public function __construct(string $text, public readonly int $retryAfter = 1, public readonly string $seen = '')
    {
        parent::__construct($text);
    }
}

/** The work of oncePer or once is done. */
class LockDone extends LockError
{
    /**
     * @param ?string $result what once remembers, as JSON
     * @param ?int $retryAfter when the next period of oncePer begins, in seconds
     */
    public function __construct(string $text, public readonly ?string $result = null, public readonly ?int $retryAfter = null)
    {
        parent::__construct($text);
    }
}

/** The lock was lost while it was held: the work may overlap with another holder's. */
class LockLost extends LockError
{
}

/** The work of oncePer or once is done, and the next caller may do it again. */
class LockNotRemembered extends LockError
{
    public function __construct(string $text, mixed $value = null)
    {
        parent::__construct("the work is done, but the next caller may do it again: $text", $value);
    }
}

/** The agent at a Unix socket, or at host:port with its token. */
class Agent
{
    public readonly string $address;
    public readonly ?string $token;

    /** @param int|float $patience how long nothing may be heard of the agent, in seconds */
    public function __construct(
        string|\Stringable $address = '/run/redlock/redlock.sock',
        #[\SensitiveParameter] ?string $token = null,
        public readonly int|float $patience = 10,
    ) {
        $this->address = preg_replace('/\Aunix:/', '', (string) $address);
        if (!preg_match('#\A(/.{1,106}|(\[[0-9a-f:.]+\]|[^\s/:]+):\d+)\z#i', $this->address)) {
            throw new LockError("the address $address: want the path of a socket, of at most 107 bytes, or host:port");
        }
        if (!is_finite($patience) || $patience <= 0) {
            throw new LockError("the patience $patience: want a number of seconds, more than 0");
        }
        $this->token = $token === null ? null : rtrim($token, "\r\n"); // of a file
    }

    /**
     * Runs $work with the lock on a key, or on several that are locked together, and returns its value. Times are in seconds.
     * $concurrency is how many may hold the key at a time. With $values, such as ['id' => 'CUS_1'], the keys are templates, as in a rule:
     * customer:{id:id}. $oncePer has others get LockDone for the rest of a period in which $work has
     * succeeded, and $once for so long, with the value that $work has returned.
     */
    public function withLock(
        string|array $keys,
        callable $work,
        int|float|null $wait = null,
        int|float|null $ttl = null,
        int|float|null $maxHold = null,
        ?string $label = null,
        ?int $concurrency = null,
        int|float|null $oncePer = null,
        int|float|null $once = null,
        ?array $values = null,
    ): mixed {
        return $this->under($this->lock($keys, $wait, $ttl, $maxHold, $label, $concurrency, $oncePer, $once, $values), $work, $once !== null);
    }

    private function under(Lock $lock, callable $work, bool $once): mixed
    {
        try {
            if ((new \ReflectionFunction($work(...)))->isGenerator()) {
                throw new LockError('the lock would end before the work begins: for a generator, take it by lock(), and release() it');
            }
            $value = $work($lock);
            $result = $once ? self::remembered($value) : null;
            $returned = $once ? self::parsed($result) : $value; // to whoever asks first as to those that ask later
        } catch (\Throwable $error) {
            try {
                $lock->release(failed: true);
            } catch (LockLost) { // the work's own error says more
            }
            throw $error;
        }
        $lock->release(result: $result, value: $value);
        return $returned;
    }

    private static function remembered(mixed $value): string
    {
        try {
            $result = json_encode($value, JSON_THROW_ON_ERROR | JSON_UNESCAPED_UNICODE);
        } catch (\JsonException $error) {
            throw new LockNotRemembered("its result can't be written as JSON: {$error->getMessage()}", $value);
        }
        return strlen($result) <= 65536 ? $result : throw new LockNotRemembered('its result is longer than 64 KiB', $value);
    }

    private static function parsed(string $result): mixed
    {
        return json_decode($result, true, flags: JSON_THROW_ON_ERROR);
    }

    /** Calls $work with the lock unless it has succeeded in this period, on any machine. Says whether this call has. */
    public function oncePer(string $key, int|float $period, callable $work, int|float|null $wait = null, int|float|null $ttl = null, int|float|null $maxHold = null, ?string $label = null, ?array $values = null): bool
    {
        try {
            $lock = $this->lock($key, $wait, $ttl, $maxHold, $label, oncePer: $period, values: $values);
        } catch (LockDone) { // of the agent, and not of the work
            return false;
        }
        $this->under($lock, $work, false);
        return true;
    }

    /** Returns what $work returns, as JSON has it, or has returned to whoever has called it within the time to keep; at most 64 KiB. */
    public function once(string $key, int|float $keep, callable $work, int|float|null $wait = null, int|float|null $ttl = null, int|float|null $maxHold = null, ?string $label = null, ?array $values = null): mixed
    {
        try {
            $lock = $this->lock($key, $wait, $ttl, $maxHold, $label, once: $keep, values: $values);
        } catch (LockDone $done) {
            try {
                return self::parsed((string) $done->result === '' ? 'null' : $done->result);
            } catch (\JsonException) {
                throw new LockError("the remembered result of this key isn't JSON: another kind of client wrote it", $done->result);
            }
        }
        return $this->under($lock, $work, true);
    }

    /** Takes the lock, which ends with release(), or when nothing refers to it any more, unless keep() is called. */
    public function lock(
        string|array $keys,
        int|float|null $wait = null,
        int|float|null $ttl = null,
        int|float|null $maxHold = null,
        ?string $label = null,
        ?int $concurrency = null,
        int|float|null $oncePer = null,
        int|float|null $once = null,
        ?array $values = null,
    ): Lock {
        $ask = ['keys' => array_map(strval(...), array_values((array) $keys))];
        $began = hrtime(true) / 1e9;
        $until = $wait === null ? null : $began + $wait;
        foreach (['ttl' => $ttl, 'max_hold' => $maxHold, 'once_per' => $oncePer, 'once' => $once] as $name => $seconds) {
            if ($seconds !== null) {
                if (!is_finite($seconds) || str_starts_with($name, 'once') && $seconds < 0.001) {
                    throw new LockError("$name $seconds: want a number of seconds, from 0.001 on");
                }
                $ask[$name] = sprintf('%.6Fs', $seconds);
            }
        }
        $ask += ['quiet' => true, 'pulse' => sprintf('%.6Fs', max(0.01, min($this->patience / 3, 5)))] + array_filter(['label' => $label, 'concurrency' => $concurrency, 'values' => $values === null ? null : (object) $values], fn ($value) => $value !== null);
        if (($concurrency ?? 1) === 1 && $this->holds(Lock::named($ask))) {
            throw new LockError('this thread holds the lock itself, and would wait for itself: locks are not reentrant');
        }
        $tell = function () use ($began, $label): void { // once that the wait is long
            static $told = false;
            if (!$told && hrtime(true) / 1e9 - $began >= 10) {
                $told = true;
                error_log('still waiting for a lock after 10 s' . ($label === null ? '' : " ($label)"));
            }
        };
        $patient = 0; // until when another agent may take the place of this one: for a moment nobody may listen
        while (true) {
            $left = $until === null ? null : max(0, $until - hrtime(true) / 1e9);
            try {
                return new Lock($this, $left === null ? $ask : $ask + ['wait' => sprintf('%.6Fs', $left)], $tell);
            } catch (LockUnavailable $error) {
                $now = hrtime(true) / 1e9;
                if ($error->seen === 'agent' || $error->seen === 'end' && $patient === 0) {
                    $patient = $until ?? $now + $this->patience;
                }
                if ($left !== null && $left <= 0 || $now >= $patient) {
                    throw $error;
                }
                $tell();
                usleep((int) (min($error->retryAfter, $left ?? INF) * 1e6));
            }
        }
    }

    /** Says whether this process holds one of the keys, by a lock that nothing but this process will end. */
    public function holds(array $keys): bool
    {
        return Lock::isOwn($this, $keys);
    }
}

/** A lock that is held. */
class Lock
{
    private const PATIENCE_AT_END = 5;
    private const PATIENCE_IN_CHECK = 1;
    private const LATE = 'the agent has not said in time that the lock is still held';

    /** @var array<int, Lock> those that live on although nothing else may refer to them */
    private static array $kept = [];

    /** @var ?\WeakMap<Lock, true> those that are held */
    private static ?\WeakMap $all = null;

    /** A number that is larger than those of all holders before, of the slot if there are several. */
    public readonly int $fence;

    /** Which of several slots, from 0 on. */
    public readonly int $slot;

    private $connection;
    private readonly int $pid; // the process that took the lock
    private readonly array $keys;
    private readonly bool $bounded; // whether the agent ends the lock after its maxHold
    private array $sent;
    private int $mark = 0; // the newest that was sent
    private int $base = 0; // the one that the newest line answers
    private array $end = [0, 0];
    private float $until = INF; // when the time is over for which it is kept
    private float $span = 0.0; // of the lease, in the newest line
    private bool $hangs = false; // whether the agent has not answered in time: it may delay what is certain only once
    private string $raw = ''; // what has come, in chunks
    private string $text = ''; // and without them
    private ?string $lost = null;
    private string $word; // what ends a request whose work has succeeded
    private bool $asked = false; // whether this side has asked for the end
    private ?bool $released = null; // what the agent has said to that
    private ?string $forgotten = 'the agent has not confirmed it'; // why no quorum of the masters remembers the work

    public function __construct(private readonly Agent $agent, #[\SensitiveParameter] array $ask, \Closure $tell)
    {
        self::dropEnded();
        $this->pid = getmypid();
        $this->keys = self::named($ask);
        $this->bounded = isset($ask['max_hold']);
        $this->word = isset($ask['once_per']) ? 'done' : (isset($ask['once']) ? 'done ' : '');
        $body = json_encode($ask, JSON_UNESCAPED_UNICODE) . "\n";
        if ($body === "\n") {
            throw new LockError("a key or label that isn't UTF-8");
        }
        $unix = $agent->address[0] === '/';
        $this->sent = [self::clocks()];
        $this->connection = @stream_socket_client(($unix ? 'unix://' : 'tcp://') . $agent->address, $code, $text, $agent->patience);
        if (!$this->connection) {
            $text .= $code === 13 ? ": the agent's --socket-group and --socket-mode say who may open the socket" : ''; // EACCES
            throw new LockUnavailable("no agent at {$agent->address}: $text");
        }
        stream_set_timeout($this->connection, (int) $agent->patience, (int) (fmod($agent->patience, 1) * 1e6));
        $token = $agent->token === null ? '' : "Authorization: Bearer {$agent->token}\r\n";
        $this->write("POST /v1/lock HTTP/1.1\r\nHost: redlock\r\nRedlock-Agent: 1\r\nContent-Type: application/json\r\n{$token}"
            . "Transfer-Encoding: chunked\r\n\r\n" . dechex(strlen($body)) . "\r\n{$body}\r\n");
        $this->requireOk($agent->address, $tell);
        stream_set_blocking($this->connection, false);
        $until = hrtime(true) + $agent->patience * 10 ** 9;
        while (!isset($this->fence) || !$this->certain()) { // after a wait of many minutes, only the answer to the mark is new enough
            if (($left = $until - hrtime(true)) <= 0) {
                throw new LockError("the agent at {$agent->address} does not answer in time");
            }
            $this->await($left / 10 ** 9);
            if ($this->lost !== null) {
                throw new LockError("the agent's response: {$this->lost}");
            }
        }
        self::$all ??= new \WeakMap();
        self::$all[$this] = true;
    }

    private function __clone()
    {
    }

    /** A lock has no copy, also none of another process. */
    public function __serialize(): array
    {
        throw new LockError('a lock belongs to the process that took it');
    }

    public function __unserialize(array $data): void
    {
        throw new LockError('a lock belongs to the process that took it');
    }

    /** Gives the keys by which a lock is known: templates with their values. */
    public static function named(array $ask): array
    {
        return array_map(fn ($key) => $key . (isset($ask['values']) ? json_encode($ask['values']) : ''), $ask['keys']);
    }

    /** Gives what keys have in common that share a lock: they differ in the case of ASCII letters alone. */
    private static function locksOf(array $keys): array
    {
        return array_map(fn ($key) => strtr((string) $key, 'ABCDEFGHIJKLMNOPQRSTUVWXYZ', 'abcdefghijklmnopqrstuvwxyz'), $keys);
    }

    /** Says whether this process may hold one of the keys by a lock of the agent, unless that ends by itself. A wait stops all its fibers. */
    public static function isOwn(Agent $agent, array $keys): bool
    {
        foreach (self::$all ?? [] as $lock => $true) {
            if ($lock->agent === $agent && !($lock->bounded && isset(self::$kept[spl_object_id($lock)])) && array_intersect(self::locksOf($keys), self::locksOf($lock->keys))) {
                $lock->remaining(); // hears of its end
                if ($lock->lost === null && $lock->released === null) {
                    return true;
                }
            }
        }
        return false;
    }

    public function __destruct()
    {
        $this->close();
    }

    /**
     * Has the lock last until release(), its maxHold or the end of the script, although nothing may refer to it any more. Its time in seconds,
     * from now on, ends it as soon as this process looks at a lock.
     */
    public function keep(?float $seconds = null): void
    {
        $this->until = $seconds === null ? INF : hrtime(true) / 1e9 + $seconds;
        self::$kept[spl_object_id($this)] = $this;
    }

    /** Drops the locks that were kept and have ended, or are the parent's of this process, without waiting: so no connections pile up. */
    private static function dropEnded(): void
    {
        foreach (self::$kept as $lock) {
            if ($lock->disown() || $lock->over()) {
                continue;
            }
            $lock->read();
            if ($lock->lost !== null) {
                $lock->close();
            }
        }
    }

    /** Says for how many seconds the lock is certain from now on: 0 if it is lost, or its release has begun. */
    public function remaining(): float
    {
        if ($this->disown() || $this->over()) {
            return 0.0;
        }
        $this->read();
        $until = hrtime(true) + self::PATIENCE_IN_CHECK * 10 ** 9;
        $before = $this->mark;
        try {
            while ($this->stale() && ($this->base <= $before || !$this->certain()) && ($left = $until - hrtime(true)) > 0) {
                $this->send();
                $this->await($left / 10 ** 9);
            }
        } catch (\TypeError | \ValueError) { // of a connection that a signal handler has closed meanwhile
            $this->read();
        }
        $this->hangs = $this->mark !== $this->base;
        return $this->lost === null && !$this->asked ? max(0.0, $this->left()) : 0.0;
    }

    /** Throws LockLost unless the lock is certain now. */
    public function check(): void
    {
        if ($this->remaining() <= 0) {
            throw new LockLost($this->lost ?? ($this->asked ? 'it was released' : self::LATE));
        }
    }

    /**
     * Releases the lock, and throws LockLost if it had been lost, or LockNotRemembered.
     *
     * @param bool $failed whether the work of oncePer or once is to be done again
     * @param ?string $result what once remembers, as JSON
     * @param mixed $value what LockNotRemembered is to have
     */
    public function release(bool $failed = false, ?string $result = null, mixed $value = null): void
    {
        if ($this->disown()) {
            throw new LockLost($this->lost);
        }
        $lost = !$this->asked && $this->remaining() <= 0;
        if ($this->asked) { // once more, perhaps in a signal handler meanwhile
            return;
        }
        if ($lost) { // it is left at once
            $this->lost ??= self::LATE;
            $this->close();
            throw new LockLost($this->lost);
        }
        $this->asked = true;
        try {
            if (!$failed && $this->word !== '') {
                $word = $this->word . (string) $result;
                $this->write(dechex(strlen($word)) . "\r\n{$word}\r\n");
            }
            $this->write("0\r\n\r\n"); // the end of the request's body
            $until = hrtime(true) + self::PATIENCE_AT_END * 10 ** 9;
            while ($this->released === null && $this->lost === null && ($left = $until - hrtime(true)) > 0) {
                $this->await($left / 10 ** 9);
            }
        } finally {
            $this->close();
        }
        if ($this->released === false) {
            throw new LockLost('the lock had ended before the end of the work');
        }
        if (!$failed && $this->word !== '' && $this->forgotten !== null) {
            throw new LockNotRemembered($this->forgotten, $value);
        }
    }

    /** Closes the connection, for all processes that have it if this one took the lock. */
    private function close(): void
    {
        unset(self::$kept[spl_object_id($this)]);
        if (isset($this->connection) && is_resource($this->connection)) {
            if (getmypid() === $this->pid) {
                @stream_socket_shutdown($this->connection, STREAM_SHUT_RDWR);
            }
            fclose($this->connection);
        }
    }

    /** Says whether the time is over for which it is kept, and ends the lock then. */
    private function over(): bool
    {
        if (hrtime(true) / 1e9 < $this->until) {
            return false;
        }
        $this->lost ??= 'its time was over';
        $this->close();
        return true;
    }

    /** Says whether this is a child of the process that took the lock, and closes the child's copy of the connection. */
    private function disown(): bool
    {
        if (getmypid() === $this->pid) {
            return false;
        }
        $this->lost = 'the lock belongs to the process that took it, and not to its child';
        $this->close();
        return true;
    }

    /** Two clocks: the monotonic one stands still while a machine is suspended, and the other can be set. */
    private static function clocks(): array
    {
        return [hrtime(true) / 1e9, microtime(true)];
    }

    private function left(): float
    {
        [$monotonic, $wall] = self::clocks();
        return min($this->end[0] - $monotonic, $this->end[1] - $wall, $this->until - $monotonic);
    }

    private function certain(): bool
    {
        return $this->lost === null && $this->left() > 0;
    }

    /** Says whether the agent is to be asked: a third of what it has said is over, and the lease was renewed meanwhile. */
    private function stale(): bool
    {
        return $this->lost === null && !$this->asked && $this->left() < $this->span * 2 / 3 && !($this->hangs && $this->certain());
    }

    private function write(string $text): void
    {
        $until = hrtime(true) + self::PATIENCE_AT_END * 10 ** 9;
        while ($text !== '' && ($n = @fwrite($this->connection, $text)) !== false && hrtime(true) < $until) {
            if ($n === 0) { // the agent reads more slowly
                [$none, $full] = [null, [$this->connection]];
                @stream_select($none, $full, $none, 1);
            }
            $text = substr($text, $n);
        } // what can't be written is noticed by what can't be read
    }

    private function requireOk(string $address, \Closure $tell): void
    {
        $seen = 'end';
        do {
            $status = explode(' ', (string) fgets($this->connection))[1] ?? null;
            if ($status === null) {
                throw feof($this->connection) ? new LockUnavailable("the agent at $address has ended", 1, $seen) : new LockError("the agent at $address does not answer in time");
            }
            if ($status === '102') { // of an agent that lives, and has no lock yet
                $seen = 'agent';
                $tell();
            }
            $header = [];
            while (($line = trim((string) fgets($this->connection))) !== '') {
                [$name, $value] = explode(':', $line, 2) + [1 => ''];
                $header[strtolower($name)] = trim($value);
            }
        } while ($status === '102');
        if (($header['redlock-agent'] ?? null) !== '1') {
            throw new LockError("something else than an agent of version 1 answers at $address");
        }
        if ($status === '200') {
            return;
        }
        $problem = json_decode((string) stream_get_contents($this->connection, (int) ($header['content-length'] ?? 0)), true);
        $text = $problem['detail'] ?? $problem['title'] ?? '';
        $after = (int) ($header['retry-after'] ?? 1);
        $outcome = $header['redlock-outcome'] ?? '';
        if ($status === '423') {
            throw new LockHeld($text, $after);
        }
        if ($outcome === 'done') {
            throw new LockDone($text, $problem['result'] ?? null, $problem['retry_after'] ?? null);
        }
        if ($status === '503' || $outcome === 'no_quorum') {
            throw new LockUnavailable("$status: $text", $after, $status === '503' ? 'agent' : '');
        }
        throw new LockError("$status: $text");
    }

    /** Waits for more of the stream, and reads it. */
    private function await(float $seconds): void
    {
        $streams = [$this->connection];
        $none = null;
        @stream_select($streams, $none, $none, (int) $seconds, (int) (fmod($seconds, 1) * 1e6));
        $this->read();
    }

    /** Reads what has come, without waiting. Asynchronous signals are handled after it: their handlers may ask, too. */
    private function read(): void
    {
        $async = \function_exists('pcntl_async_signals') && pcntl_async_signals(false);
        try {
            $this->readAll();
        } finally {
            if ($async) {
                pcntl_async_signals(true);
                pcntl_signal_dispatch();
            }
        }
    }

    private function readAll(): void
    {
        if (!is_resource($this->connection)) {
            $this->lost ??= 'it was released';
            return;
        }
        while (($part = @fread($this->connection, 8192)) !== false && $part !== '') {
            $this->raw .= $part;
        }
        while (preg_match('/\A([0-9a-f]+)\r\n/i', $this->raw, $size) && strlen($this->raw) >= strlen($size[0]) + hexdec($size[1]) + 2) {
            $this->text .= substr($this->raw, strlen($size[0]), hexdec($size[1]));
            $this->raw = substr($this->raw, strlen($size[0]) + hexdec($size[1]) + 2);
        }
        while (($at = strpos($this->text, "\n")) !== false) {
            $this->take(json_decode(substr($this->text, 0, $at), true) ?? []);
            $this->text = substr($this->text, $at + 1);
        }
        if (feof($this->connection) && $this->released === null) {
            $this->lost ??= 'the connection to the agent has ended';
        }
    }

    /** Takes a line. One that answers no new mark is answered with one: so the lines never count from long ago. */
    private function take(array $line): void
    {
        if (isset($line['valid_ms'])) {
            $this->span = $line['valid_ms'] / 1000;
            foreach ($this->sent[$line['mark']] as $i => $clock) {
                $this->end[$i] = $clock + $line['valid_ms'] / 1000 * 0.99;
            }
            if ($line['mark'] > $this->base) {
                $this->hangs = false;
                $this->base = $line['mark'];
                $this->sent = array_filter($this->sent, fn ($mark) => $mark >= $this->base, ARRAY_FILTER_USE_KEY);
            } else {
                $this->send();
            }
        }
        if (isset($line['fence'])) {
            $this->fence = $line['fence'];
            $this->slot = $line['slot'] ?? 0;
        }
        if (isset($line['lost'])) {
            $this->lost = $line['detail'] ?? $line['lost'];
        }
        if (isset($line['released'])) {
            $this->released = $line['released'];
            $this->forgotten = ($line['forgotten'] ?? false) ? $line['detail'] ?? '' : null;
            if (!$this->asked) { // whoever has asked for it
                $this->lost ??= 'somebody else has ended it';
            }
        }
    }

    /** Sends a mark, which the agent answers with a line, unless one is on its way. */
    private function send(): void
    {
        if ($this->mark === $this->base && !$this->asked) {
            $this->sent[++$this->mark] = self::clocks();
            $this->write("1\r\n\n\r\n");
        }
    }
}
