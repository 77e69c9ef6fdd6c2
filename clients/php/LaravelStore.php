<?php

namespace Redlock;

use Illuminate\Contracts\Cache\LockProvider;
use Illuminate\Contracts\Cache\Store;

/**
 * A store of Laravel's cache whose locks are those of redlock's agent, and whose values are those of another store:
 *
 *     Cache::extend('redlock', fn ($app) => Cache::repository(
 *         new Redlock\LaravelStore(new Redlock\Agent(), Cache::store('redis')->getStore())));
 *
 * and in config/cache.php 'stores' => ['redlock' => ['driver' => 'redlock'], …]. Then Cache::store('redlock')->lock('order:42', 60)->get(…)
 * and block(…) take locks of the agent. What is given in seconds bounds how long a lock may be held: it is renewed until then.
 */
class LaravelStore implements LockProvider, Store
{
    public function __construct(private readonly Agent $agent, private readonly Store $values)
    {
    }

    /** Refuses the names of locks that one process takes, and another one ends. */
    public function lock($name, $seconds = 0, $owner = null)
    {
        if (preg_match('#\A(laravel_unique_job:|framework[/\\\\](schedule|command)-)#', $name)) {
            throw new \BadMethodCallException('a lock of the agent ends with its process, so unique jobs, the scheduler and isolated commands need another store, such as that '
                . "of this store's values (" . $this->values::class . "): Cache::store('redis') in uniqueVia() of the job, useCache('redis') of the schedule");
        }
        return new LaravelLock($this->agent, $this->getPrefix() . $name, $seconds, $owner);
    }

    public function restoreLock($name, $owner)
    {
        throw new \BadMethodCallException('a lock of the agent belongs to the process that took it: no other one can end it');
    }

    public function get($key)
    {
        return $this->values->get($key);
    }

    public function many(array $keys)
    {
        return $this->values->many($keys);
    }

    public function put($key, $value, $seconds)
    {
        return $this->values->put($key, $value, $seconds);
    }

    /**
     * Puts a value unless there is one, as one step for all processes: the scheduler and the rate limiter rely on that. A store of values that
     * can't, such as array, apc, null, and that of files before Laravel 9, does it under a lock: so a test with array needs an agent.
     */
    public function add($key, $value, $seconds)
    {
        if (method_exists($this->values, 'add')) {
            return $this->values->add($key, $value, $seconds);
        }
        return $this->agent->withLock($this->getPrefix() . "add:$key", fn () => $this->values->get($key) === null && $this->values->put($key, $value, $seconds));
    }

    public function putMany(array $values, $seconds)
    {
        return $this->values->putMany($values, $seconds);
    }

    public function increment($key, $value = 1)
    {
        return $this->values->increment($key, $value);
    }

    public function decrement($key, $value = 1)
    {
        return $this->values->decrement($key, $value);
    }

    public function forever($key, $value)
    {
        return $this->values->forever($key, $value);
    }

    public function touch($key, $seconds)
    {
        return $this->values->touch($key, $seconds);
    }

    public function forget($key)
    {
        return $this->values->forget($key);
    }

    public function flush()
    {
        return $this->values->flush();
    }

    public function getPrefix()
    {
        return $this->values->getPrefix();
    }
}
