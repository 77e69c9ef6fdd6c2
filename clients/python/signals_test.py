"""Has a signal handler run, or raise, at each line of redlock_agent.py that a block with a lock executes, one block for each.

A line is tried anew for each way that leads to it.
"""
import asyncio
import gc
import os
import sys
import warnings

import redlock_agent as redlock

agent, tasks = redlock.Agent(os.environ["ADDRESS"]), redlock.AsyncAgent(os.environ["ADDRESS"])
lock = hold = None
loop = asyncio.new_event_loop()


class Interrupt(Exception):
    pass


def way(frame):
    """Return the lines of redlock_agent.py that lead to this one."""
    lines = []
    while frame:
        if frame.f_code.co_filename == redlock.__file__:
            lines.append(frame.f_lineno)
        frame = frame.f_back
    return tuple(lines)


def at_each_line(block, handler, rescue=None):
    global lock
    tried, more = set(), True
    while more:
        more = False
        key = f"{block.__name__} {len(tried)}"
        lock = (tasks if block in (in_task, kept_in_task) else agent).lock(key)

        def trace(frame, event, _):
            nonlocal more
            if frame.f_code.co_filename != redlock.__file__:
                return None
            here = event, way(frame)
            if event in ("call", "line") and not more and here not in tried:
                tried.add(here)
                more = True
                handler()
            return trace
        sys.settrace(trace)
        try:
            block(key)
        except (Interrupt, redlock.LockLost):
            pass
        finally:
            sys.settrace(None)
        if rescue:
            rescue()
        gc.collect()  # an exception out of a task refers to itself
        loop.run_until_complete(is_free(key))
    return len(tried)


async def is_free(key):  # also after what was left to the loop
    async with tasks.lock(key, wait=60):
        pass


def interrupt():
    raise Interrupt


def plain(key):
    global hold  # which outlives the block
    with agent.lock(key) as hold:
        hold.check()


def once(key):
    agent.once(key, 60, lambda hold: "done")


def kept(_):
    lock.acquire()
    try:
        if lock.held:
            lock.check()
    finally:
        lock.release()


def in_a_block(_):
    with lock:
        if lock.held:
            lock.check()


def in_task(key):
    async def work():
        global hold
        async with tasks.lock(key) as hold:
            await asyncio.sleep(0)
            hold.check()
    loop.run_until_complete(work())


def kept_in_task(_):
    async def work():
        await lock.acquire()
        try:
            lock.check()
        finally:
            await lock.release()
    loop.run_until_complete(work())


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


def rescue():
    if lock.held:
        lock.release()


gc.freeze()  # or each collection looks at all modules
warnings.simplefilter("ignore")  # coroutines that were never awaited, since they were interrupted
loop.set_exception_handler(lambda *_: None)
sys.unraisablehook = lambda what: None if what.exc_type is Interrupt else sys.__unraisablehook__(what)
for name, *how in (("raises", plain, interrupt), ("raises in once", once, interrupt), ("raises without a block", kept, interrupt, rescue),
                   ("asks", kept, ask), ("asks in a block", in_a_block, ask), ("releases", kept, release),
                   ("raises in a task", in_task, interrupt), ("asks in a task", kept_in_task, ask)):
    print(name, at_each_line(*how), flush=True)

if agent.lock("dropped").acquire() and loop.run_until_complete(tasks.lock("dropped in a task").acquire()):  # which have no object any more
    gc.collect()
    for key in "dropped", "dropped in a task":
        if loop.run_until_complete(tasks.lock(key, wait=0).acquire()):
            print("a lock ended with its object")
print("done")
