"""Run by clients_test.go: takes a lock, and prints what becomes of it."""

import os
import sys
import time

from redlock import Agent, LockError, LockHeld, LockLost

mode, *keys = sys.argv[1:]
agent = Agent(os.environ["ADDRESS"], os.environ["TOKEN"] or None)
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


try:
    if mode == "count":
        for _ in range(5):
            with agent.lock("counter", **options):
                with open(keys[0]) as file:
                    n = int(file.read())
                time.sleep(0.002)
                with open(keys[0], "w") as file:
                    file.write(str(n + 1))
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
except LockError as e:
    print("error", e)
