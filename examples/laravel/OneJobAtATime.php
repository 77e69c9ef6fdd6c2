<?php

namespace App\Jobs\Middleware;

use Closure;
use Redlock\Agent;
use Redlock\LockHeld;

/**
 * Runs queued jobs with one key one after the other, on whichever worker. In the job:
 *
 *     public function middleware() { return [new OneJobAtATime("order:{$this->order->id}")]; }
 *
 * A job whose key is held goes back to the queue for a while. handle() begins with $this->order->refresh(), as the model was read before.
 */
class OneJobAtATime
{
    public function __construct(private string $key)
    {
    }

    public function handle(object $job, Closure $next): void
    {
        try {
            app(Agent::class)->withLock($this->key, fn () => $next($job), wait: 0);
        } catch (LockHeld $held) {
            $job->release($held->retryAfter);
        }
    }
}
