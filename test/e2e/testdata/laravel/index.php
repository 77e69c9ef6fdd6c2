<?php
// A Laravel with the recipe: in php-fpm it serves requests; on the command line it enqueues a job, works, or says how things stand.
// SITE is its folder, CLIENT that of the client, RECIPE that of the recipe, SOCKET the agent's.
require 'Illuminate/autoload.php';
require "{$_SERVER['CLIENT']}/redlock.php";
require "{$_SERVER['CLIENT']}/LaravelStore.php";
require "{$_SERVER['CLIENT']}/LaravelLock.php";
require "{$_SERVER['RECIPE']}/OneAtATime.php";
require "{$_SERVER['RECIPE']}/OneJobAtATime.php";

use App\Http\Middleware\OneAtATime;
use App\Jobs\Middleware\OneJobAtATime;
use Illuminate\Bus\Queueable;
use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Database\Eloquent\Model;
use Illuminate\Database\Schema\Blueprint;
use Illuminate\Foundation\Bus\Dispatchable;
use Illuminate\Http\Request;
use Illuminate\Queue\InteractsWithQueue;
use Illuminate\Queue\SerializesModels;
use Illuminate\Queue\WorkerOptions;
use Illuminate\Support\Facades\Cache;
use Illuminate\Support\Facades\Queue;
use Illuminate\Support\Facades\Route;
use Illuminate\Support\Facades\Schema;

class Order extends Model
{
    public $timestamps = false;

    /** What two at once do wrong: both read the same number, and write the next. */
    public function count(): void
    {
        $next = $this->paid + 1;
        usleep(20000);
        $this->paid = $next;
        $this->save();
    }
}

class PayOrder implements ShouldQueue
{
    use Dispatchable, InteractsWithQueue, Queueable, SerializesModels;

    public int $tries = 1000;

    public function __construct(public Order $order)
    {
    }

    public function middleware(): array
    {
        return [new OneJobAtATime("order:{$this->order->id}")];
    }

    public function handle(): void
    {
        $this->order->refresh();
        $this->order->count();
    }
}

$_SERVER['APP_CONFIG_CACHE'] = __DIR__ . '/config.php';
$_SERVER['APP_PACKAGES_CACHE'] = "{$_SERVER['SITE']}/packages.php";
$_SERVER['APP_SERVICES_CACHE'] = "{$_SERVER['SITE']}/services.php";
$app = new Illuminate\Foundation\Application($_SERVER['SITE']);
$app->singleton(Illuminate\Contracts\Debug\ExceptionHandler::class, Illuminate\Foundation\Exceptions\Handler::class);
$app->singleton(Redlock\Agent::class, fn () => new Redlock\Agent($_SERVER['SOCKET']));
$kernel = $app->make(PHP_SAPI === 'cli' ? Illuminate\Foundation\Console\Kernel::class : Illuminate\Foundation\Http\Kernel::class);
$kernel->bootstrap();

switch ($argv[1] ?? 'serve') {
    case 'serve':
        Route::middleware(Illuminate\Routing\Middleware\SubstituteBindings::class)->post('/orders/{order}/pay', function (Request $request, Order $order) {
            $order->count();
            return $request->attributes->get('fence');
        })->middleware(OneAtATime::class . ':order');
        $kernel->handle(Request::capture())->send();
        break;
    case 'create':
        touch(config('database.connections.sqlite.database'));
        Schema::create('orders', function (Blueprint $table) {
            $table->id();
            $table->integer('paid')->default(0);
        });
        Schema::create('jobs', function (Blueprint $table) {
            $table->id();
            $table->string('queue')->index();
            $table->longText('payload');
            $table->unsignedTinyInteger('attempts');
            foreach (['reserved_at', 'available_at', 'created_at'] as $time) {
                $table->unsignedInteger($time)->nullable();
            }
        });
        (new Order())->save();
        break;
    case 'enqueue':
        PayOrder::dispatch(Order::first());
        break;
    case 'work': // as many times as it says, or until there are no jobs
        for ($times = $argv[2] ?? PHP_INT_MAX; $times > 0 && Queue::size() > 0; $times--) {
            $app->make('queue.worker')->runNextJob('database', 'default', new WorkerOptions(sleep: 1));
        }
        break;
    case 'keep': // a lock whose object is gone, until the end of this process
        Cache::extend('redlock', fn ($app) => Cache::repository(new Redlock\LaravelStore($app->make(Redlock\Agent::class), new Illuminate\Cache\ArrayStore())));
        config(['cache.stores.redlock' => ['driver' => 'redlock']]);
        $had = Cache::store('redlock')->lock('report', 3600)->block(60);
        echo $had && !Cache::store('redlock')->lock('report', 3600)->get() ? '' : 'another one has the lock';
        break;
    case 'state':
        echo 'paid ', Order::first()->paid, ', queued ', Queue::size();
}
