"""Has a signal handler run, or raise, at each line of redlock.py that a block with a lock executes, one block for each."""
import asyncio
import gc
import os
import sys

import redlock

agent, key = redlock.Agent(os.environ["ADDRESS"]), "signals"


class Interrupt(Exception):
    pass


def at_each_line(block, handler):
    n = 0
    while True:
        n += 1
        left = n

        def trace(frame, event, _):
            nonlocal left
            if frame.f_code.co_filename != redlock.__file__:
                return None
            if event == "line":
                left -= 1
                if left == 0:
                    handler()
            return trace
        sys.settrace(trace)
        try:
            block()
        except (Interrupt, redlock.LockLost):
            pass
        finally:
            sys.settrace(None)
        if left > 0:
            return n - 1
        with agent.lock(key, wait=60):  # it is free
            pass


def interrupt():
    raise Interrupt


def plain():
    with agent.lock(key) as hold:
        hold.check()


lock = agent.lock(key)


def kept():
    lock.acquire()
    try:
        if lock.held:
            lock.check()
    finally:
        lock.release()


def ask():
    _ = lock.held
    try:
        lock.check()
    except redlock.LockLost:
        pass


def release():
    try:
        lock.release()
    except redlock.LockError:
        pass


for name, block, handler in (("raises", plain, interrupt), ("asks", kept, ask), ("releases", kept, release)):
    print(name, at_each_line(block, handler), flush=True)


def require_held(key):  # although its lock has no object any more
    gc.collect()
    try:
        with agent.lock(key, wait=0):
            print("a lock ended with its object")
    except redlock.LockHeld:
        pass


async def drop():
    await redlock.AsyncAgent(agent.address).lock("dropped by a task").acquire()
    require_held("dropped by a task")


agent.lock("dropped").acquire()
require_held("dropped")
asyncio.run(drop())
print("done")
