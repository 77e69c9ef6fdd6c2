<?php

namespace Redlock;

use Symfony\Component\Lock\BlockingStoreInterface;
use Symfony\Component\Lock\Exception\LockConflictedException;
use Symfony\Component\Lock\Exception\LockReleasingException;
use Symfony\Component\Lock\Exception\LockStorageException;
use Symfony\Component\Lock\Key;
use Symfony\Component\Lock\PersistingStoreInterface;

/**
 * The locks of redlock's agent for Symfony's component Lock, 5.4 or newer:
 *
 *     $factory = new Symfony\Component\Lock\LockFactory(new Redlock\SymfonyStore(new Redlock\Agent()));
 *
 * The agent renews a lock until its ttl, release(), or the end of the process (in php-fpm, of the request), also with autoRelease: false. The
 * ttl counts in this process, so a lock that nobody looks at lasts longer; $maxHold ends also the locks of a process that hangs. acquire(true)
 * waits in line. A lock can't be passed to another process.
 */
class SymfonyStore implements BlockingStoreInterface, PersistingStoreInterface
{
    /** @var \WeakMap<Key, Lock> */
    private \WeakMap $held;

    /**
     * @param int|float|null $wait how long acquire(true) waits, in seconds; null: without limit
     * @param int|float|null $maxHold how long a lock may be held, in seconds, also one that is refreshed; null: without limit
     */
    public function __construct(private readonly Agent $agent, private readonly int|float|null $wait = null, private readonly int|float|null $maxHold = null)
    {
        $this->held = new \WeakMap();
    }

    public function save(Key $key): void
    {
        if (!$this->exists($key) && $this->agent->holds([(string) $key])) {
            throw new LockConflictedException('this process holds the lock');
        }
        $this->take($key, 0);
    }

    public function waitAndSave(Key $key): void
    {
        $this->take($key, $this->wait);
    }

    private function take(Key $key, int|float|null $wait): void
    {
        if ($this->exists($key)) {
            return;
        }
        try {
            $lock = $this->agent->lock((string) $key, $wait, maxHold: $this->maxHold);
            $lock->keep(); // also with autoRelease: false
        } catch (LockHeld $held) {
            throw new LockConflictedException($held->getMessage(), 0, $held);
        } catch (LockError $error) {
            throw new LockStorageException($error->getMessage(), 0, $error);
        }
        $key->markUnserializable();
        $this->held[$key] = $lock;
    }

    public function putOffExpiration(Key $key, float $ttl): void
    {
        if (!$this->exists($key)) {
            throw new LockConflictedException('the lock was lost');
        }
        $this->held[$key]->keep($ttl);
        $key->reduceLifetime($ttl);
    }

    public function delete(Key $key): void
    {
        if (!isset($this->held[$key])) {
            return;
        }
        $lock = $this->held[$key];
        unset($this->held[$key]);
        try {
            $lock->release();
        } catch (LockLost $lost) {
            throw new LockReleasingException($lost->getMessage(), 0, $lost);
        }
    }

    public function exists(Key $key): bool
    {
        if (isset($this->held[$key]) && $this->held[$key]->remaining() > 0) {
            return true;
        }
        if (isset($this->held[$key])) {
            $key->reduceLifetime(0); // so isExpired() tells
        }
        return false;
    }
}
