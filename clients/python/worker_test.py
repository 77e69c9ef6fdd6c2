"""Run by clients_test.go: takes a lock, and prints what becomes of it."""

import asyncio
import json
import os
import pickle
import random
import sys
import threading
import time

from redlock_agent import Agent, AsyncAgent, LockDone, LockError, LockHeld, LockLost, LockNotRemembered, LockUnavailable

mode, *keys = sys.argv[1:]
agent = Agent(os.environ["ADDRESS"], os.environ["TOKEN"] or None, patience=float(os.environ.get("PATIENCE", "10")))
options = {name: float(os.environ[name.upper()]) for name in ("wait", "ttl", "max_hold", "heartbeat") if os.environ.get(name.upper())}
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
    copy = pickle.loads(pickle.dumps(LockHeld("another has the lock", 7)))  # from a pool of processes
    assert (str(copy), copy.retry_after) == ("another has the lock", 7), copy
    shared, inside, most = agent.lock(key), [], []  # by threads

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
    with shared:  # in itself
        try:
            with agent.lock(key):
                raise AssertionError("two have the lock")
        except LockHeld:
            raise
        except LockError as e:
            assert "itself" in str(e), e

    @shared
    def double(n):
        assert shared.held
        return 2 * n

    assert double(2) == 4 and double.__name__ == "double"
    assert shared.acquire() and shared.held
    assert not agent.lock(key, wait=0).acquire()
    shared.release()
    asyncio.run(own_async(key))


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
        try:
            async with agent.lock(key, wait=0):
                raise AssertionError("two holders")
        except LockHeld as e:
            assert e.retry_after >= 1
        waiter = asyncio.ensure_future(agent.lock(key).acquire())
        await asyncio.sleep(0.05)
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)

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
    try:
        async with agent.lock(key, max_hold=0.5) as hold:
            while "max_hold" not in loss(hold):  # the agent says why a moment after the client knows that
                await asyncio.sleep(0.02)
        raise AssertionError("the loss is silent")
    except LockLost as e:
        assert "max_hold" in str(e), e


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
        print("ran", str(agent.once_per(keys[0], 3600, work, **options)).lower())
    elif mode == "once":
        print("value", json.dumps(agent.once(keys[0], 3600, work, **options), separators=(",", ":")))
    elif mode == "equal":  # although JSON has neither tuples nor numbers as keys
        first, later = [agent.once(keys[0], 3600, lambda hold: {1: (2, 3)}, **options) for _ in range(2)]
        print("equal", str(first == later).lower())
    elif mode == "kept":
        lock = agent.lock(keys[0], **options)
        lock.acquire()
        lock.check()
        print("held", lock.fence)
        lock.release()
    else:
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
    print("already", e)
except LockNotRemembered as e:
    print("forgotten", json.dumps(e.value, separators=(",", ":")), e)
except LockError as e:
    print("error", e)
