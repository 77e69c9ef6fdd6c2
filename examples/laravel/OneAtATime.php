<?php

namespace App\Http\Middleware;

use Closure;
use Illuminate\Http\Request;
use Redlock\Agent;
use Redlock\Lock;
use Redlock\LockHeld;

/**
 * Serves requests for one model one after the other, on whichever server:
 *
 *     Route::post('/orders/{order}/pay', PayOrder::class)->middleware(OneAtATime::class . ':order');
 *
 * A request waits for up to 2 seconds, and then gets 423. Its fencing token is $request->attributes->get('fence').
 */
class OneAtATime
{
    public function __construct(private Agent $agent)
    {
    }

    public function handle(Request $request, Closure $next, string $parameter)
    {
        $model = $request->route($parameter);
        try {
            return $this->agent->withLock("$parameter:{$model->getKey()}", function (Lock $lock) use ($request, $next, $model) {
                $model->refresh(); // it was read before the wait
                $request->attributes->set('fence', $lock->fence);
                return $next($request);
            }, wait: 2);
        } catch (LockHeld $held) {
            abort(423, 'Locked', ['Retry-After' => $held->retryAfter]);
        }
    }
}
