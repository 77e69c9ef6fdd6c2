"""Run by clients_test.go: takes a lock, and prints what becomes of it."""

import asyncio
import concurrent.futures
import contextlib
import copy
import ctypes
import decimal
import json
import logging
import os
import pathlib
import pickle
import random
import signal
import socket
import sys
import tempfile
import threading
import time

import redlock_agent
from redlock_agent import Agent, AsyncAgent, LockDone, LockError, LockHeld, LockLost, LockNotRemembered, LockUnavailable

mode, *keys = sys.argv[1:]
keep = float(os.environ.get("KEEP", "3600"))
agent = Agent(os.environ["ADDRESS"], os.environ["TOKEN"] or None, patience=float(os.environ.get("PATIENCE", "10")))
options = {name: float(os.environ[name.upper()]) for name in ("wait", "ttl", "max_hold", "heartbeat") if os.environ.get(name.upper())}
if os.environ.get("VALUES"):
    options["values"] = dict([os.environ["VALUES"].split("=")])
if os.environ.get("CONCURRENCY"):
    options["concurrency"] = int(os.environ["CONCURRENCY"])
before = 0


def fork(lock, how):
    """Fork, and report whether this is a child that is to leave the block by its end."""
    child = os.fork()
    if child == 0:
        try:
            lock.check()
        except LockLost:
            print("child", lock.held, flush=True)
        if how == "exit":
            sys.exit(0)
        if how == "raise":
            raise RuntimeError("in the child")
        while how == "outlive" and not os.path.exists(os.environ["STOP"]):
            time.sleep(0.02)
        return True
    if how != "outlive":
        os.waitpid(child, 0)
        print("forked", flush=True)
    return False


def compete(key):
    """Take the lock again and again, and print what becomes of it."""
    parent = os.getpid()
    while not os.path.exists(os.environ["STOP"]):
        fence = 0
        try:
            with agent.lock(key, **options) as lock:
                fence = lock.fence
                print("has", fence, time.monotonic_ns(), flush=True)
                if random.random() >= 0.3 or not fork(lock, random.choice(["exit", "return", "raise"])):
                    for _ in range(random.randrange(10)):
                        now = time.monotonic_ns()
                        lock.check()
                        print("had", fence, now, flush=True)
                        time.sleep(0.02)
                    time.sleep(random.choice([0] * 9 + [2]))  # work that doesn't look
                    print("left", fence, time.monotonic_ns(), flush=True)
            print("freed", fence, flush=True)
        except LockLost:
            if os.getpid() != parent:
                os._exit(0)
            print("lost", fence, flush=True)
        except LockError:
            time.sleep(0.1)


def own(key):
    """Try what only Python has."""
    held = pickle.loads(pickle.dumps(LockHeld("another has the lock", 7)))  # from a pool of processes
    assert (str(held), held.retry_after) == ("another has the lock", 7), held
    shared, inside, most = agent.lock(key, ttl=6), [], []  # by threads

    def enter():
        for _ in range(3):
            with shared:
                inside.append(shared.fence)
                most.append(len(inside))
                shared.check()
                time.sleep(0.01)
                inside.remove(shared.fence)

    threads = [threading.Thread(target=enter) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 9, most
    @shared
    def double(n):
        assert shared.held
        return 2 * n

    assert double(2) == 4 and double.__name__ == "double"
    assert shared.acquire() and shared.held
    threads = [threading.Thread(target=other, args=(shared,)) for _ in range(2)]
    for thread in threads:
        thread.start()
        thread.join()
    for copied in copy.copy(shared), pickle.loads(pickle.dumps(shared)):
        assert not copied.held
    del copied
    shared.check()
    shared.release()
    with shared as hold:
        fails(lambda: copy.copy(hold), LockError)
        fails(shared.release, LockLost)
    left_elsewhere(key)
    slots(key)
    closed(key)
    another_loop(key)
    loops(key)
    by_hand(key)
    at_exit(key)
    in_doubt()
    alarmed(f"{key} alarmed")
    unwritable(key + "unwritable")
    unreadable(key + "unreadable")
    refused()
    silent()
    with patient(), agent_at(answering(FIRST)).lock("k") as hold:
        busy()  # before the reader has run
        hold.check()
    asyncio.run(own_async(key))


def other(shared):
    """Have no hold, in a thread that may have the number of one that is over."""
    assert not shared._agent.lock(*shared._ask["keys"], wait=0).acquire() and not shared.held
    for ask in shared.check, shared.release, lambda: shared.fence:
        fails(ask, LockLost)


def fails(call, kind):
    """Return the error of a call."""
    try:
        call()
    except kind as e:
        return e
    raise AssertionError(f"no {kind}")


def held_by(lock):
    with lock as hold:
        yield hold


def left_elsewhere(key):
    """Leave blocks in another thread than the one that has entered them, which goes on without them."""
    lock, pool = agent.lock(key, concurrency=2), concurrent.futures.ThreadPoolExecutor(1)

    def by_hand():
        assert hasattr(lock, "__exit__")
        return lock.__enter__()

    blocks, stack = held_by(lock), contextlib.ExitStack()
    for enter, leave in (lambda: next(blocks), blocks.close), (lambda: stack.enter_context(lock), stack.close), (by_hand, lambda: lock.__exit__(None, None, None)):
        there = pool.submit(enter).result()
        with lock as hold:
            leave()
            assert hold.held and not there.held
    blocks = held_by(agent.lock(key))
    pool.submit(next, blocks).result()
    assert not pool.submit(agent.lock(key, wait=0).acquire).result()  # although it is the thread that has entered
    blocks.close()
    pool.shutdown()


def slots(key):
    """Hold all that there are: one more would wait for itself."""
    one, two = agent.lock(key), agent.lock(key, concurrency=2)
    with one, two as hold:
        assert hold.slot == 1
        fails(two.acquire, LockError)
    with two, two:
        assert "would wait for itself" in str(fails(one.acquire, LockError))


def closed(key):
    """Leave a block of a loop that is closed."""
    lock, loop = AsyncAgent(os.environ["ADDRESS"], os.environ["TOKEN"] or None).lock(key), asyncio.new_event_loop()
    loop.run_until_complete(lock.__aenter__())
    loop.close()
    fails(lambda: lock.__aexit__(None, None, None).send(None), StopIteration)
    with agent.lock(key, wait=60):
        pass


def another_loop(key):
    """Leave a block in another loop than the one that has entered it, and that doesn't run any more."""
    lock, loop = AsyncAgent(os.environ["ADDRESS"], os.environ["TOKEN"] or None).lock(key, wait=60), asyncio.new_event_loop()
    loop.run_until_complete(lock.__aenter__())
    patience, redlock_agent._PATIENCE_AT_END = redlock_agent._PATIENCE_AT_END, 0.01
    asyncio.run(lock.__aexit__(KeyError, None, None))
    redlock_agent._PATIENCE_AT_END = patience
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


def loops(key):
    """Have loops end without release(): that frees the lock, also for who uses the same object."""
    lock = AsyncAgent(os.environ["ADDRESS"], os.environ["TOKEN"] or None).lock(key, wait=60)
    for _ in range(2):
        asyncio.run(lock.acquire())
        assert agent.lock(key, wait=60)(lambda: True)()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(lock.acquire())
    loop.close()  # without loop.shutdown_asyncgens
    assert asyncio.run(lock.acquire())
    assert len(lock._holds) == 1

    async def guarded():
        async with lock as hold:
            try:
                yield
            finally:
                await asyncio.sleep(0.01)
                ends.append(hold.held)

    async def leave_open():
        block.append(guarded())
        await block[0].__anext__()

    block, ends = [], []
    asyncio.run(leave_open())
    assert ends == [True], ends


def by_hand(key):
    """Call what with calls, in other orders, and not from Python."""
    one, two, none = agent.lock(key, wait=60), agent.lock(key + "two", wait=60), (None, None, None)
    one.__enter__()
    leave_one = one.__exit__
    two.__enter__()
    leave_two = two.__exit__
    leave_two(*none)
    leave_one(*none)
    leave = one.__exit__
    one.__enter__()
    one.__exit__(*none)
    fails(lambda: leave(*none), LockLost)
    with one as hold:
        raised = threading.Thread(target=lambda: fails(lambda: one.__exit__(*none), LockLost))
        raised.start()
        raised.join()
        hold.check()
    errors, hook = [], sys.unraisablehook
    sys.unraisablehook = errors.append
    redlock_agent._thread.start_new_thread(one.__enter__, ())
    while not one._holds and not errors:
        time.sleep(0.01)
    sys.unraisablehook = hook
    one.__exit__(*none)


def alarmed(key):
    """Have signal handlers end a wait, by errors that a socket might have."""
    def wait():
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        agent_of_its_own.lock(key, wait=60).acquire()

    def ring(*_):
        raise error

    agent_of_its_own = pickle.loads(pickle.dumps(agent))
    signal.signal(signal.SIGALRM, ring)
    with agent.lock(key):
        for error in TimeoutError(), OSError("it took too long"):
            assert fails(wait, OSError) is error
    fails(Agent("/" + "x" * 150).lock(key).acquire, LockUnavailable)


def in_doubt():
    """Ask again for a lock that isn't certain, but that the agent may still hold for this thread."""
    with patient():
        error = fails(lambda: doubtful(agent_at(answering(FIRST)).lock("k")), LockError)
    assert "would wait for itself" in str(error), error
    error = fails(agent_at(answering(b"SSH-2.0\n")).lock("k").acquire, LockError)
    assert "something else than an agent of version 1 answers at" in str(error), error


def doubtful(lock):
    with lock as hold:
        redlock_agent._clocks = lambda: (float("inf"),)
        assert not hold.held
        lock.acquire()


def at_exit(key):
    """Have no more threads."""
    start = redlock_agent._thread.start_new_thread
    redlock_agent._thread.start_new_thread = lambda *_: exec("raise RuntimeError")
    with patient(), agent_at(answering(FIRST)).lock("k") as hold:
        busy()
        hold.check()
    with agent.lock(key, once=60) as hold:
        hold._remember(7)

    def told():
        with agent_at(answering(FIRST)).lock("k") as hold:
            line = redlock_agent._chunk(b'{"lost":"max_hold"}\n')
            os.write(answering.connection.fileno(), line)
            assert not hold.held

    assert "max_hold" in str(fails(told, LockLost))
    redlock_agent._thread.start_new_thread = start


@contextlib.contextmanager
def patient():
    """Be as late as it may be on a busy machine, and stay in a world where time has passed when busy has said so."""
    before = redlock_agent._PATIENCE_AT_END, redlock_agent._clocks
    redlock_agent._PATIENCE_AT_END = 1e6
    yield
    redlock_agent._PATIENCE_AT_END, redlock_agent._clocks = before


def busy():
    """Let a lease of FIRST end, which the agent has renewed, before any thread has run."""
    line = redlock_agent._chunk(b'{"mark":0,"valid_ms":1000000}\n')
    ctypes.PyDLL(None).send(answering.connection.fileno(), line, len(line), 0)
    clocks = redlock_agent._clocks
    redlock_agent._clocks = lambda: tuple(now + 100 for now in clocks())


def unwritable(key):
    """Have a result that JSON lacks: the work is done, and the error has its value. To remember it for no time is refused before the work."""
    for once in agent.once, agent.once_per:
        for time_to_keep in 1e-7, float("nan"), "1h":
            fails(lambda: once(key, time_to_keep, lambda hold: os._exit(1)), LockError)
        fails(lambda: once(key, 60, own_async), LockError)
    for value in float("inf"), {(): 1}:
        assert fails(lambda: agent.once(key, 60, lambda hold: value), LockNotRemembered).value is value


def unreadable(key):
    """Ask for a result that a client of another kind has written: the error has it."""
    for result in "unquoted", "[" * 60000:
        with agent.lock(key + result[0], once=60) as hold:
            hold._word = b"done " + result.encode()
        assert fails(lambda: agent.once(key + result[0], 60, work), LockError).value == result


def refused():
    """Name what can't be."""
    for address in "a.sock", "localhost", "http://127.0.0.1:7070", "127.0.0.1:70000", 7070, None:
        fails(lambda: Agent(address), LockError)
    fails(lambda: Agent("h:1", b"token"), LockError)
    fails(lambda: Agent("h:1", "a\nb"), LockError)
    assert Agent(pathlib.Path("/a/s")).address == Agent("unix:/a/s").address == "/a/s"
    for options in {"wait": -1}, {"wait": "5s"}, {"ttl": 0}, {"label": b"pay"}, {"concurrency": "2"}:
        fails(lambda: agent.lock("k", **options), LockError)
    for key in ["a", "b"], b"k", "\udc80":
        assert "\udc80" not in str(fails(lambda: agent.lock(key), LockError))
    assert b'"pulse": "0.010000s"' in Agent("/a/s", patience=0.02)._request({}, None)
    assert "No such file" in str(fails(agent_at("/nonexistent/s").lock("k", wait=60).acquire, LockUnavailable))


def agent_at(address):
    return pickle.loads(pickle.dumps(Agent(address, "the token\n")))


FIRST = b'{"fence":7,"mark":0,"valid_ms":10000}\n'


def answering(body):
    """Return the socket of an agent that says this to one client, and then nothing but the last line."""
    path = tempfile.mkdtemp() + "/s"
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()

    def serve():
        answering.connection, _ = connection, _ = server.accept()
        while b"}" not in (request := connection.recv(65536)):
            pass
        assert b"Bearer the token\r\n" in request
        connection.sendall(b"HTTP/1.1 200 OK\r\nRedlock-Agent: 1\r\n\r\n" + redlock_agent._chunk(body))
        while not (request := connection.recv(65536)).endswith(b"0\r\n\r\n"):
            if not request:
                return
        connection.sendall(redlock_agent._chunk(b'{"released":true}\n'))

    threading.Thread(target=serve, daemon=True).start()
    return path


def silent():
    """Lose a lock to an agent that says nothing more: its block ends without its answer. Wait for long."""
    lock = agent_at(answering(FIRST)).lock("k", label="pay")
    with patient():
        fails(lambda: until_lost(lock), LockLost)
    told = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    logging.getLogger("redlock_agent").addHandler(handler)
    tries = redlock_agent._Tries(lock._agent, lock._ask, 60)
    for passed in 9, 2, 2:
        tries._since -= passed
        tries.tell()
    assert told == ["still waiting for a lock after 10 s: pay"], told


def until_lost(lock):
    with lock as hold:
        while hold.held:
            time.sleep(0.02)


def loss(hold):
    """Why the lock isn't certain now."""
    try:
        hold.check()
    except LockLost as e:
        return str(e)
    return ""


async def own_async(key):
    agent = AsyncAgent(os.environ["ADDRESS"], os.environ["TOKEN"] or None)
    lock, inside, most = agent.lock(key), [], []

    async def enter():
        for _ in range(3):
            async with lock as hold:
                inside.append(hold.fence)
                most.append(len(inside))
                hold.check()
                lock.check()
                assert (lock.fence, lock.slot) == (hold.fence, hold.slot)
                await asyncio.sleep(0.01)
                inside.remove(hold.fence)

    await asyncio.gather(*(enter() for _ in range(3)))
    assert most == [1] * 9, most
    async with lock:
        for wait in None, 0:
            try:
                await agent.lock(key, wait=wait).acquire()
                raise AssertionError("two holders")
            except LockError as e:
                assert "would wait for itself" in str(e), e
        assert not await asyncio.create_task(other_task(lock))
        waiter = asyncio.ensure_future(agent.lock(key).acquire())
        await asyncio.sleep(0.05)
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
    slots = agent.lock(key + "slots", concurrency=2)

    async def held():
        async with slots as hold:
            yield hold

    block = held()
    there = await asyncio.ensure_future(block.__anext__())
    async with slots as hold:  # in another task, which goes on without the block that it ends
        await block.aclose()
        assert hold.held and not there.held
    await asyncio.wait_for(slots.acquire(), 60)  # before Python 3.12 in a task of its own
    slot, there, stop = slots.slot, asyncio.Event(), asyncio.Event()

    async def beside():
        async with slots:
            there.set()
            await stop.wait()
            slots.check()

    task = asyncio.ensure_future(beside())
    await there.wait()
    assert slots.held and slots.slot == slot
    await asyncio.shield(slots.release())
    assert not slots.held
    stop.set()
    await task

    @lock
    async def double(n):
        assert lock.held
        return 2 * n

    assert await double(2) == 4
    assert not lock.held
    ran = []

    async def work(hold):
        ran.append(hold.fence)
        return {"n": 1}

    assert await agent.once_per(key + "per", 3600, work) and not await agent.once_per(key + "per", 3600, work)
    assert await agent.once(key + "once", 3600, work) == await agent.once(key + "once", 3600, work) == {"n": 1}
    assert len(ran) == 2, ran
    for _ in range(2):  # a plain function
        assert await agent.once(key + "plain", 3600, lambda hold: ran.append(hold.fence)) is None
    assert len(ran) == 3, ran
    with patient():
        async with AsyncAgent(answering(FIRST), "the token").lock("k") as hold:
            assert asyncio.all_tasks() == {asyncio.current_task()}
            busy()
            hold.check()
    try:
        async with agent.lock(key, max_hold=0.5) as hold:
            while "max_hold" not in loss(hold):  # the agent says why a moment after the client knows that
                await asyncio.sleep(0.02)
        raise AssertionError("the loss is silent")
    except LockLost as e:
        assert "max_hold" in str(e), e


async def other_task(lock):
    for ask in lock.release(), asyncio.to_thread(lock.check):
        try:
            await ask
            raise AssertionError("another task has the lock")
        except LockLost:
            pass
    return lock.held or await lock._agent.lock(*lock._ask["keys"], wait=0).acquire()


def work(hold):
    if len(keys) > 1:
        raise (LockDone if keys[1] == "not mine" else LockError)(keys[1])
    if "SLOWLY" in os.environ:
        print("works", flush=True)
        while not os.path.exists(os.environ["STOP"]):
            time.sleep(0.02)
    return {"paid": hold.fence > 0}


try:
    if mode == "compete":
        compete(keys[0])
    elif mode == "own":
        own(keys[0])
    elif mode == "once_per":
        print("ran", str(agent.once_per(keys[0], keep, work, **options)).lower())
    elif mode == "once":
        print("value", json.dumps(agent.once(keys[0], keep, work, **options), separators=(",", ":")))
    elif mode == "equal":  # although JSON has neither tuples nor numbers as keys
        first, later = [agent.once(keys[0], 3600, lambda hold: {1: (2, 3)}, **options) for _ in range(2)]
        print("equal", str(first == later).lower())
    elif mode == "nested":
        with agent.lock(keys[0], **options), agent.lock(keys[-1], **options):
            print("two have the lock")
    elif mode == "unwritable":
        try:
            agent.once(keys[0], keep, lambda hold: decimal.Decimal("9.99"))
        except LockNotRemembered as e:
            print("unwritable, and its value is there:", e.value == decimal.Decimal("9.99"), e)
    elif mode == "kept":
        lock = agent.lock(keys[0], **options)
        lock.acquire()
        lock.check()
        print("held", lock.fence)
        lock.release()
    else:
        if mode == "period":
            options["once_per"] = keep
        with agent.lock(*keys, **options) as lock:
            print("held", lock.slot if "concurrency" in options else lock.fence, flush=True)
            left = "FORK" in os.environ and fork(lock, os.environ["FORK"])
            while not left and not os.path.exists(os.environ["STOP"]):
                now = int(time.time() * 1000)
                lock.check()
                before = now
                time.sleep(0.02)
        if mode == "after":
            assert not lock.held
            lock.check()
    print("done")
except LockHeld as e:
    print("refused", e.retry_after)
except LockLost as e:
    print("lost", before, e)
except LockUnavailable as e:
    print("unavailable", e.retry_after)
except LockDone as e:
    print("already", f"{e}, retry after {e.retry_after}" if e.retry_after else e)
except LockNotRemembered as e:
    print("forgotten", json.dumps(e.value, separators=(",", ":")), e)
except LockError as e:
    print("error", e if e.value is None else f"{e}: {e.value}")
