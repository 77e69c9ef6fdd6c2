"""Run by clients_test.go, with an agent whose key busy is held."""

import os
import socket
import threading
import time

from redlock import Agent, LockError, LockHeld, LockLost

for agent in Agent(os.environ["SOCKET"]), Agent(os.environ["ADDRESS"], os.environ["TOKEN"]):
    fences = []
    for _ in range(3):
        with agent.lock("free", "another", wait=5, ttl=3) as lock:
            fences.append(lock.fence)
            assert lock.held
            lock.check()
            try:
                with agent.lock("free", wait=0):
                    raise AssertionError("two holders")
            except LockHeld as e:
                assert e.retry_after >= 1, e
    assert fences == sorted(set(fences)), fences

    try:
        with agent.lock("busy", wait=0.01):
            raise AssertionError("two holders")
    except LockHeld:
        pass

    with agent.lock("free", ttl=3) as lock:  # across a renewal: the lines and marks move the end on
        end = lock._end
        renewed = threading.Event()
        while not renewed.wait(0.05):
            if lock._end[0] > end[0] + 0.5:
                renewed.set()
            lock.check()

    try:  # cut off
        with agent.lock("free") as lock:
            lock._connection.shutdown(socket.SHUT_RDWR)
            lock._reader.join()
            assert not lock.held
        raise AssertionError("the loss is silent")
    except LockLost:
        pass

    with agent.lock("outer", "free"):  # in itself
        try:
            with agent.lock("free"):
                raise AssertionError("two have the lock")
        except LockHeld:
            raise
        except LockError as e:
            assert "itself" in str(e), e
        try:
            with agent.lock("free", wait=0):
                raise AssertionError("two have the lock")
        except LockHeld:
            pass
        with agent.lock("inner"):
            pass
    with agent.lock("free"):
        pass

    try:
        with agent.lock("free", max_hold=0.2) as lock:
            lock._reader.join()
            lock.check()
        raise AssertionError("the loss is silent")
    except LockLost as e:
        assert "max_hold" in str(e), e

    shared, inside, most = agent.lock("free", wait=20), [], []  # by threads

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
    assert not shared.held

for agent in Agent("/nonexistent"), Agent(os.environ["ADDRESS"], "wrong"):
    try:
        with agent.lock("free"):
            raise AssertionError("a lock without an agent")
    except LockHeld:
        raise
    except LockError:
        pass
