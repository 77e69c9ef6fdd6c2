<?php
// Run by worker_test.php: tries the adapters with Symfony's and Laravel's classes where Debian's packages of them are installed.

function adapters(Redlock\Agent $agent, string $key): void
{
    own($agent, $key);
    if (!is_file('/usr/share/php/Symfony/Component/Lock/autoload.php') || !is_file('/usr/share/php/Illuminate/Cache/autoload.php')) {
        return; // not every release of Debian and Ubuntu has both
    }
    require '/usr/share/php/Symfony/Component/Lock/autoload.php';
    require '/usr/share/php/Illuminate/Cache/autoload.php';
    require __DIR__ . '/SymfonyStore.php';
    require __DIR__ . '/LaravelStore.php';
    require __DIR__ . '/LaravelLock.php';
    symfony($agent, $key);
    laravel($agent, $key);
}

function is(bool $so, string $what): void
{
    $so || throw new RuntimeException($what);
}

function refused(callable $work, string $error = Redlock\LockError::class, string $text = ''): bool
{
    try {
        $work();
    } catch (Throwable $thrown) {
        return $thrown instanceof $error && str_contains($thrown->getMessage(), $text);
    }
    return false;
}

/** A fiber waits for no lock of another fiber: PHP's waits stop them all. */
function fibers(Redlock\Agent $agent, string $key): void
{
    $own = fn (): bool => refused(fn () => $agent->lock($key, 0), text: 'would wait for itself');
    $lock = $agent->lock($key);
    $other = new Fiber($own);
    $other->start();
    is($own() && $other->getReturn(), 'a lock within itself, in another fiber');
    $lock->release();
    $other = new Fiber(fn () => $agent->lock($key));
    $other->start();
    [$lock, $other] = [$other->getReturn(), null];
    is($own(), 'a lock of a fiber that has ended');
    $lock->release();
}

/** The ways to copy a lock, and what comes from outside. */
function own(Redlock\Agent $agent, string $key): void
{
    $lock = $agent->lock("$key-own");
    is(refused(fn () => clone $lock, Error::class) && refused(fn () => serialize($lock)), 'a copy of a lock');
    is(refused(fn () => unserialize('O:12:"Redlock\Lock":0:{}')), 'a lock out of a text');
    $lock->check();
    $lock->release();
    $lock->release(); // once more
    $kept = $agent->lock("$key-over");
    $kept->keep(0);
    is(!refused(fn () => $agent->lock("$key-own")->release()), 'a lock beside one whose time is over');
    is(refused($kept->release(...), Redlock\LockLost::class) && refused($kept->release(...), Redlock\LockLost::class), 'the release of a lock that was lost');
    fibers($agent, "$key-fiber");
    is((new Redlock\Agent('[::1]:7070', "secret\n"))->token === 'secret' && (new Redlock\Agent(new SplFileInfo('/run/s')))->address === '/run/s', 'a token, or a path');
    foreach (['', 'a.sock', 'localhost', 'http://127.0.0.1:1', ':7070', '/' . str_repeat('x', 150)] as $to) {
        is(refused(fn () => new Redlock\Agent($to)), "the address $to");
    }
    is(refused(fn () => $agent->lock("\xff", 0)), "a key that isn't UTF-8");
    is(refused(fn () => (new Redlock\Agent('/nonexistent/s'))->lock($key, 0, label: "\xff"), Redlock\LockError::class, 'UTF-8'), "a label that isn't UTF-8");
    foreach ([INF, 0, -1] as $patience) {
        is(refused(fn () => new Redlock\Agent(patience: $patience), Redlock\LockError::class, 'more than 0'), "the patience $patience");
    }
    is(refused(fn () => $agent->oncePer("$key-later", 60, fn () => yield), text: 'before the work begins'), 'work that is a generator');
    is($agent->oncePer("$key-later", 60, fn () => null), 'work after that of a generator');
    is(refused(fn () => $agent->once($key, NAN, fn () => throw new LogicException('the work has begun'))), 'a time that is no number');
}

function symfony(Redlock\Agent $agent, string $key): void
{
    $factory = new Symfony\Component\Lock\LockFactory(new Redlock\SymfonyStore($agent, wait: 60));
    $lock = $factory->createLock($key);
    is($lock->acquire() && $lock->isAcquired() && !$lock->isExpired(), 'Symfony: a free key');
    $lock->refresh();
    $other = $factory->createLock($key);
    is(!$other->acquire() && !$other->isAcquired(), 'Symfony: a key that is held');
    $lock->release();
    is(!$lock->isAcquired() && $other->acquire(true), 'Symfony: after the release');
    $other->release();
    (fn () => $factory->createLock("$key-kept", 60, autoRelease: false)->acquire())();
    is(!$factory->createLock("$key-kept")->acquire(), 'Symfony: a lock with autoRelease: false, whose object is gone');
    is(refused(fn () => $factory->createLock("$key-kept")->acquire(true), Symfony\Component\Lock\Exception\LockAcquiringException::class), 'Symfony: a wait for itself');
    $lock = $factory->createLock("$key-ttl", 60);
    is($lock->acquire() && $lock->getRemainingLifetime() > 0, 'Symfony: a lifetime');
    $lock->refresh(2);
    usleep(2100000);
    is($lock->isExpired() && !$lock->isAcquired() && $factory->createLock("$key-ttl")->acquire(true), 'Symfony: the end of a lifetime');
    $away = new Symfony\Component\Lock\LockFactory(new Redlock\SymfonyStore(new Redlock\Agent('/nonexistent/s')));
    try {
        $away->createLock($key)->acquire();
        is(false, 'Symfony: a lock without an agent');
    } catch (Symfony\Component\Lock\Exception\LockAcquiringException) {
    }
}

function laravel(Redlock\Agent $agent, string $key): void
{
    $store = new Redlock\LaravelStore($agent, new Illuminate\Cache\ArrayStore());
    $cache = new Illuminate\Cache\Repository($store);
    $cache->put('n', 1, 60);
    is($cache->get('n') === 1 && $cache->increment('n') === 2, 'Laravel: values');
    adds($agent, $key);
    $lock = $cache->lock($key, 60);
    is($lock->get() && $lock->owner() !== '', 'Laravel: a free key');
    is(!$cache->lock($key, 60)->get(), 'Laravel: a key that is held');
    try {
        $cache->lock($key, 60)->block(0);
        is(false, 'Laravel: two holders');
    } catch (Illuminate\Contracts\Cache\LockTimeoutException) {
    }
    is($lock->release() && !$lock->release(), 'Laravel: the release');
    is($cache->lock($key, 60)->block(60, fn () => 'value') === 'value', 'Laravel: a block');
    is($cache->lock($key)->get(fn () => 2) === 2, 'Laravel: a block without a wait');
    foreach ([fn ($lock, $work) => $lock->get($work), fn ($lock, $work) => $lock->block(60, $work)] as $during) {
        try {
            $during($cache->lock($key, 1), fn () => sleep(2));
            is(false, 'Laravel: a block whose lock was lost ends in order');
        } catch (Redlock\LockLost) {
        }
    }
    try {
        $cache->lock($key, 60)->get(fn () => throw new LogicException('its own'));
    } catch (LogicException $error) {
    }
    is(isset($error) && $cache->lock($key)->get(fn () => true), 'Laravel: a block that throws');
    $mine = $cache->lock("$key-mine", 60);
    $owner = fn (object $lock) => (fn () => $this->getCurrentOwner())->call($lock);
    is($owner($mine) === null && $mine->get() && $owner($mine) === $mine->owner() && $owner($cache->lock("$key-mine")) === '', 'Laravel: who has the lock');
    is($mine->refresh() && $mine->release() && !$mine->refresh(), 'Laravel: a renewal');
    foreach (['laravel_unique_job:App\Jobs\Pay:1', 'framework/schedule-1', 'framework/command-report'] as $name) {
        is(refused(fn () => $cache->lock($name, 60), BadMethodCallException::class), "Laravel: $name");
    }
    outlives($agent, $cache, $key);
}

/** Of two processes that add a value at once, one has added it. */
function adds(Redlock\Agent $agent, string $key): void
{
    $store = new class () extends Illuminate\Cache\ArrayStore { // which is between its question and its answer when another one asks
        public ?Closure $between = null;

        public function get($key)
        {
            [$between, $this->between, $value] = [$this->between, null, parent::get($key)];
            $between && $between();
            return $value;
        }
    };
    $cache = new Illuminate\Cache\Repository(new Redlock\LaravelStore($agent, $store));
    $other = new Illuminate\Cache\Repository(new Redlock\LaravelStore($agent, $store));
    $store->between = fn () => is(refused(fn () => $other->add($key, 'other', 60), text: 'would wait for itself'), 'Laravel: two processes add a value');
    is($cache->add($key, 'one', 60) && !$other->add($key, 'other', 60) && $cache->get($key) === 'one', 'Laravel: add');
    $own = new class () extends Illuminate\Cache\ArrayStore {
        public function add(...$value): bool
        {
            return $value === ['k', 1, 60];
        }
    };
    is((new Illuminate\Cache\Repository(new Redlock\LaravelStore($agent, $own)))->add('k', 1, 60), "Laravel: add of the values' store");
}

/** A lock of Laravel outlives its object, and nothing of it outlives the lock. */
function outlives(Redlock\Agent $agent, Illuminate\Cache\Repository $cache, string $key): void
{
    $connections = fn (): int => count(get_resources('stream'));
    $isFree = function (string $key) use ($agent): bool {
        try {
            return $agent->withLock($key, fn () => true, wait: 0);
        } catch (Redlock\LockHeld) {
            return false;
        }
    };
    is($cache->lock("$key-get", 3600)->get() && !$isFree("$key-get"), 'Laravel: get() of a lock whose object is gone');
    is($cache->lock("$key-block", 3600)->block(60) && !$isFree("$key-block"), 'Laravel: block() of a lock whose object is gone');
    [$before, $memory] = [$connections(), memory_get_usage()];
    for ($job = 0; $job < 1000; $job++) { // of a worker
        $lock = $cache->lock("$key-job", 60);
        is($lock->block(60), "Laravel: job $job");
        $lock->release();
    }
    is($connections() === $before && memory_get_usage() < $memory + 500_000, 'Laravel: jobs leave locks behind');
    for ($job = 0; $job < 20; $job++) {
        is($cache->lock("$key-$job", 1)->block(60), "Laravel: job $job, which releases nothing");
    }
    is($cache->lock("$key-0", 60)->block(60, fn () => true), 'Laravel: a lock that nobody releases ends with its seconds');
    while ($connections() > $before) {
        $cache->lock("$key-job", 60)->get(fn () => usleep(20000)); // the next job
    }
    is(forked(function () use ($cache, $key, $connections, $before): void {
        is(!$cache->lock("$key-get", 60)->get() && $connections() === $before - 3, "Laravel: a child has a lock of its parent, or its connection");
        is($cache->lock("$key-child", 3600)->block(60), 'Laravel: a lock of a child');
    }), 'Laravel: a child');
    is(!$isFree("$key-get"), "Laravel: the end of a child isn't that of its parent's lock");
    is($cache->lock("$key-child", 60)->block(60, fn () => true), "Laravel: the end of a child is that of its own lock");
    $cache->lock($key, 3600)->get();
} // and the end of this script is that of its locks

/** Runs $work in a child, and says whether it has thrown nothing. */
function forked(callable $work): bool
{
    $child = pcntl_fork();
    if ($child === 0) {
        try {
            $work();
        } catch (Throwable $error) {
            fwrite(STDERR, "$error\n");
            exit(1);
        }
        exit(0);
    }
    pcntl_waitpid($child, $status);
    return $status === 0;
}
