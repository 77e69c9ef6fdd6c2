<?php

namespace Redlock;

use Illuminate\Cache\Lock as CacheLock;
use Illuminate\Contracts\Cache\LockTimeoutException;

/**
 * A lock of LaravelStore. It ends with release(), after its seconds, or with the process (in php-fpm, with the request): it lives on a
 * connection of that, whatever becomes of this object. So it isn't for locks that outlive a process, or that another one ends:
 * withoutOverlapping() of the scheduler, isolated commands, and jobs that are unique (ShouldBeUnique). The store refuses these.
 */
class LaravelLock extends CacheLock
{
    private ?Lock $held = null;

    public function __construct(private readonly Agent $agent, $name, $seconds, $owner = null)
    {
        parent::__construct($name, $seconds, $owner);
    }

    public function acquire()
    {
        return $this->take(0);
    }

    /** Waits in line, instead of asking again and again. */
    public function block($seconds, $callback = null)
    {
        if (!$this->take($seconds)) {
            throw new LockTimeoutException();
        }
        return is_callable($callback) ? $this->during($callback) : true;
    }

    public function get($callback = null)
    {
        $had = $this->acquire();
        return $had && is_callable($callback) ? $this->during($callback) : $had;
    }

    /** Throws LockLost if the lock was lost while $callback ran. */
    private function during(callable $callback): mixed
    {
        try {
            $value = $callback();
        } catch (\Throwable $error) {
            $this->release(); // the error says more
            throw $error;
        }
        [$lock, $this->held] = [$this->held, null];
        $lock?->release();
        return $value;
    }

    private function take(int|float $wait): bool
    {
        if ($this->agent->holds([$this->name])) { // and nobody else ends that
            return false;
        }
        try {
            $this->held = $this->agent->lock($this->name, $wait, maxHold: $this->seconds > 0 ? $this->seconds : null);
            $this->held->keep(); // whatever becomes of this object: most code throws it away
            return true;
        } catch (LockHeld) {
            return false;
        }
    }

    /** Says whether the lock was held until now. */
    public function release()
    {
        [$lock, $this->held] = [$this->held, null];
        try {
            $lock?->release();
            return $lock !== null;
        } catch (LockLost) {
            return false;
        }
    }

    public function forceRelease()
    {
        throw new \BadMethodCallException('to release locks of others is for operators: redlock release');
    }

    /** Says whether the lock is still held, which the agent renews until its seconds are over, from when it was taken. */
    public function refresh($seconds = null)
    {
        return $this->held !== null && $this->held->remaining() > 0;
    }

    /** Returns null if nobody has the lock, and '' if another one has it. It takes a free lock for a moment. */
    protected function getCurrentOwner()
    {
        if ($this->refresh()) {
            return $this->owner;
        }
        if ($this->agent->holds([$this->name])) {
            return '';
        }
        try {
            $this->agent->lock($this->name, 0)->release();
            return null;
        } catch (LockHeld) {
            return '';
        }
    }
}
