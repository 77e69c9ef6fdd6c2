// Laravel: Route::post('/orders/{order}/pay', PayOrder::class)->middleware(Locked::class . ':order');
class Locked
{
    public function handle(Request $request, Closure $next, string $parameter)
    {
        $values = json_decode($request->header('Redlock-Key', '{}'), true)['path.1'] ?? [];
        abort_unless($request->hasHeader('Fencing-Token') && in_array((string) $request->route($parameter)->getKey(), $values, true), 400);
        return $next($request);
    }
}
