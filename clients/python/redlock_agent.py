"""Locks of redlock's agent. Copy this file; it needs Python 3.9 and nothing else. Its hints are complete: mypy and others read them.

    from redlock_agent import Agent, LockHeld

    agent = Agent("/run/redlock/redlock.sock")       # or Agent("10.0.0.5:7070", token="…")
    with agent.lock("order:42", wait=2) as lock:     # without wait: waits without limit; wait=0 doesn't wait
        pay(fence=lock.fence)
        lock.check()                                 # raises LockLost if the lock isn't certain any more

    @agent.lock("report", wait=0)                    # around each call of a function
    def report(): ...

    agent.once_per("report", 3600, report_with_lock) # once an hour, on one of all machines
    agent.once("order:42", 86400, pay_with_lock)     # and its value for a day to whoever asks later

    async with AsyncAgent().lock("order:42") as lock:
        await pay(fence=lock.fence)

The lock is held until the end of the block, or until this process ends; a child of os.fork doesn't have it. lock.check() and lock.held say
whether it is still held: call one of them before whatever must not happen twice. docs/agent.md says how long a client may believe that.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json
import os
import socket
import sys
import threading
import time
import weakref
from typing import Any, Awaitable, Callable, Coroutine, Generic, Optional, TypeVar

__all__ = ["Agent", "AsyncAgent", "LockDone", "LockError", "LockHeld", "LockLost", "LockNotRemembered", "LockUnavailable"]

T = TypeVar("T")
L = TypeVar("L", "Lock", "AsyncLock")
Seconds = Optional[float]

_mine = threading.local()  # .locks are those that this thread has entered
_acquired: dict[Any, Any] = {}  # the holds of acquire(), and their locks: they last until release(), although nothing else may refer to them
_connections: weakref.WeakSet[socket.socket] = weakref.WeakSet()
_BROKEN = (OSError, EOFError, ValueError, LookupError, TypeError)  # what a response that breaks off, or is none, ends in
_PATIENCE_AT_END = 5
_AGAIN = "the work is done, but the next caller may do it again: "


class LockError(Exception):
    """The lock can't be had, or there is no agent."""

    _moves = False  # whether the agent is about to stop, and another may answer the next request
    _gone = False  # whether no agent has answered


class LockHeld(LockError):
    """Another holder has the lock. retry_after is when to try again, in seconds."""

    def __init__(self, text: str, retry_after: int = 1) -> None:  # the default is for pickle, which passes the text alone
        super().__init__(text)
        self.retry_after = retry_after


class LockUnavailable(LockError):
    """Nobody gets locks now: too few masters answer, or the agent has no room or is about to stop. retry_after is as in LockHeld."""

    def __init__(self, text: str, retry_after: int = 1, moves: bool = False) -> None:
        super().__init__(text)
        self.retry_after = retry_after
        self._moves = moves


class LockDone(LockError):
    """The work of once_per or once is done. result is what once remembers, as JSON."""

    def __init__(self, text: str, result: Optional[str] = None) -> None:
        super().__init__(text)
        self.result = result


class LockLost(LockError):
    """The lock was lost while it was held: the work may overlap with another holder's."""


class LockNotRemembered(LockError):
    """The work of once_per or once is done, and the next caller may do it again. value is what the work of once has returned."""

    def __init__(self, text: str, value: Any = None) -> None:
        super().__init__(text)
        self.value = value


class _Base(Generic[L]):
    """The agent at a Unix socket, or at host:port with its token. patience is how long nothing may be heard of it, in seconds."""

    def __init__(self, address: str = "/run/redlock/redlock.sock", token: Optional[str] = None, patience: float = 10) -> None:
        self.address, self.token, self.patience = address.removeprefix("unix:"), token, patience

    def lock(self, *keys: str, wait: Seconds = None, ttl: Seconds = None, max_hold: Seconds = None, heartbeat: Seconds = None,
             label: Optional[str] = None, concurrency: Optional[int] = None, once_per: Seconds = None, once: Seconds = None) -> L:
        """Return the lock on the keys, for blocks of with or async with, acquire(), or as a decorator. Times are in seconds.

        Without wait it waits without limit, and with 0 not at all. heartbeat, at least the ttl, frees the keys if this process is stopped for so long.
        concurrency is how many may hold the key at a time.
        once_per has others get LockDone for the rest of a period once a block has ended without an exception.
        """
        ask: dict[str, Any] = {"keys": list(keys)}
        for name, seconds in (("wait", wait), ("ttl", ttl), ("max_hold", max_hold), ("heartbeat", heartbeat), ("once_per", once_per), ("once", once)):
            if seconds is not None:
                ask[name] = f"{seconds:f}s"
        for name, value in (("label", label), ("concurrency", concurrency)):
            if value is not None:
                ask[name] = value
        return self._lock(ask, wait)

    def _lock(self, ask: dict[str, Any], wait: Seconds) -> L:
        raise NotImplementedError

    def _request(self, ask: dict[str, Any], left: Seconds) -> bytes:
        ask = {**ask, "pulse": f"{min(self.patience / 3, 1e6):f}s"}
        if left is not None:
            ask["wait"] = f"{left:f}s"
        body = json.dumps(ask, ensure_ascii=False).encode() + b"\n"
        head = ["POST /v1/lock HTTP/1.1", "Host: redlock", "Redlock-Agent: 1", "Content-Type: application/json", "Transfer-Encoding: chunked"]
        if self.token:
            head.append(f"Authorization: Bearer {self.token}")
        return "\r\n".join(head).encode() + b"\r\n\r\n" + _chunk(body)

    def _refusal(self, status: int, header: dict[str, str], text: bytes) -> LockError:
        problem = json.loads(text)
        why, after, outcome = problem.get("detail") or problem.get("title"), int(header.get("retry-after", 1)), header.get("redlock-outcome")
        if status == 423:
            return LockHeld(why, after)
        if outcome == "done":
            return LockDone(why, problem.get("result"))
        if status == 503 or outcome == "no_quorum":
            return LockUnavailable(f"{status}: {why}", after, status == 503)
        return LockError(f"{status}: {why}")

    def _silence(self, text: str) -> LockError:
        error = LockError(text)
        error._gone = True
        return error

    def _require_agent(self, header: dict[str, str]) -> None:
        if header.get("redlock-agent") != "1":
            raise LockError(f"something else than an agent of version 1 answers at {self.address}")

    def _to(self) -> tuple[socket.AddressFamily, Any]:
        if self.address.startswith("/"):
            return socket.AF_UNIX, self.address
        host, _, port = self.address.rpartition(":")
        return socket.AF_INET, (host.strip("[]"), int(port))


class _Tries:
    """The requests of one lock: where an agent was about to stop, nobody may listen for a moment, until another has taken its place."""

    def __init__(self, agent: _Base[L], wait: Seconds) -> None:
        self._until = None if wait is None else time.monotonic() + wait
        self._patience, self._moves = agent.patience, 0.0  # until when another agent may come

    def left(self) -> Seconds:
        """Return how long the lock may still be waited for; None: without limit."""
        return None if self._until is None else max(0.0, self._until - time.monotonic())

    def pause(self, e: LockError) -> float:
        """Return how long to pause before the next request, or raise the error of the last one."""
        left, now = self.left(), time.monotonic()
        if e._moves:
            self._moves = now + self._patience if self._until is None else self._until
        if not (e._moves or e._gone) or left == 0 or now >= self._moves:
            raise e
        after = float(getattr(e, "retry_after", 1))
        return after if left is None else min(after, left)


class Agent(_Base["Lock"]):
    __doc__ = _Base.__doc__

    def _lock(self, ask: dict[str, Any], wait: Seconds) -> Lock:
        return Lock(self, ask, wait)

    def once_per(self, key: str, period: float, work: Callable[[Hold], Any], *,
            wait: Seconds = None, ttl: Seconds = None, max_hold: Seconds = None, heartbeat: Seconds = None, label: Optional[str] = None) -> bool:
        """Call work with the lock unless it has succeeded in this period, on any machine. Return whether this call has."""
        begun = False
        try:
            with self.lock(key, once_per=period, wait=wait, ttl=ttl, max_hold=max_hold, heartbeat=heartbeat, label=label) as hold:
                begun = True
                _plain(work)(hold)
        except LockDone:
            if begun:  # it is the work's
                raise
            return False
        return True

    def once(self, key: str, keep: float, work: Callable[[Hold], T], *,
            wait: Seconds = None, ttl: Seconds = None, max_hold: Seconds = None, heartbeat: Seconds = None, label: Optional[str] = None) -> T:
        """Return what work returns, as JSON has it, or has returned to whoever has called it within the time to keep; at most 64 KiB."""
        value: T
        begun = False
        try:
            with self.lock(key, once=keep, wait=wait, ttl=ttl, max_hold=max_hold, heartbeat=heartbeat, label=label) as hold:
                begun = True
                value = hold._remember(_plain(work)(hold))
        except LockDone as e:
            if begun:  # it is the work's
                raise
            value = json.loads(e.result or "null")
        return value

    def _connect(self) -> socket.socket:
        family, to = self._to()
        if family == socket.AF_UNIX:
            connection = socket.socket(family, socket.SOCK_STREAM)
            _connections.add(connection)
            connection.settimeout(self.patience)
            connection.connect(to)
            return connection
        connection = socket.create_connection(to, self.patience)
        _connections.add(connection)
        return connection


class Lock:
    """The lock of a with statement, or of several: each takes it anew, also at the same time in other threads."""

    def __init__(self, agent: Agent, ask: dict[str, Any], wait: Seconds) -> None:
        self._agent, self._ask, self._wait = agent, ask, wait
        self._holds: list[Hold] = []

    def __del__(self) -> None:  # an exception out of a signal handler can end a with statement before its end is called
        for hold in getattr(self, "_holds", ()):
            hold._close()

    def __enter__(self) -> Hold:
        return self._take({})

    def _take(self, keep: dict[Hold, Lock]) -> Hold:
        hold = Hold(self._agent, self._ask)
        try:
            hold._enter(self._wait)
            self._holds.append(hold)
            keep[hold] = self
            return hold
        except BaseException:  # also one out of a signal handler
            self._drop(hold)
            raise

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        hold = None
        try:
            hold = self._current()
            hold._release(failed=kind is not None)
        finally:
            self._drop(hold or self._current())

    def _drop(self, hold: Hold) -> None:
        with contextlib.suppress(ValueError):  # a signal handler may have released it
            self._holds.remove(hold)
        _acquired.pop(hold, None)
        hold._close()

    def __call__(self, work: Callable[..., T]) -> Callable[..., T]:
        _plain(work)

        @functools.wraps(work)
        def locked(*args: Any, **named: Any) -> T:
            with self:
                return work(*args, **named)
        return locked

    def acquire(self) -> bool:
        """Take the lock, as a with statement does, and return whether it was had: False means that another has it."""
        try:
            self._take(_acquired)
        except LockHeld:
            return False
        return True

    def release(self, failed: bool = False) -> None:
        """Release what acquire() has taken last in this thread. failed is for work of once_per that is to be done again."""
        self.__exit__(LockError if failed else None, None, None)

    def _current(self) -> Hold:
        """Return the hold of this thread's innermost with statement. A generator's may have been entered by another thread."""
        holds = list(self._holds)
        if not holds:
            raise LockLost("the lock is held in its with block only")
        return next((hold for hold in reversed(holds) if hold._thread == threading.get_ident()), holds[-1])

    @property
    def held(self) -> bool:
        """As Hold.held, in this thread's with block."""
        try:
            return self._current().held
        except LockLost:
            return False

    def check(self) -> None:
        """As Hold.check, in this thread's with block."""
        self._current().check()

    @property
    def fence(self) -> int:
        """As Hold.fence, in this thread's with block."""
        return self._current().fence

    @property
    def slot(self) -> int:
        """As Hold.slot, in this thread's with block."""
        return self._current().slot


class _Lease:
    """What the agent has said of a lock. The process that took it alone has it.

    A signal handler may run between any two lines, ask whether the lock is held, and release it: what is asked is read without a mutex.
    """

    fence: int
    slot: int

    def __init__(self, ask: dict[str, Any]) -> None:
        self._pid = os.getpid()
        self._mutex = threading.RLock()  # of who sends: a mark must not follow the end. The reader never waits for it
        self._word = b"done" if "once_per" in ask else b""  # what ends a request whose work has succeeded
        self._value: Any = None  # of the work of once
        self._begin()

    def _begin(self) -> None:
        self._sent, self._end = {0: _clocks()}, (0.0, 0.0)  # when each mark was sent that is not answered yet; when the lease ends
        self._mark = self._base = 0  # the newest that was sent, and the one that the newest line answers
        self._lost: Optional[str] = None  # why the lock is not held any more
        self._asked = False  # whether this side has asked for the end, and what the agent has said to that
        self._released: Optional[bool] = None
        self._forgotten: Optional[str] = "the agent has not confirmed it"  # why no quorum of the masters remembers the work, or None

    @property
    def held(self) -> bool:
        """Whether the lock is certain now."""
        return self._doubt() is None

    def check(self) -> None:
        """Raise LockLost unless the lock is certain now."""
        doubt = self._doubt()
        if doubt:
            raise LockLost(doubt)

    def _doubt(self) -> Optional[str]:
        """Return why the lock isn't certain now, or None."""
        if os.getpid() != self._pid:
            return "the lock belongs to the process that took it, and not to its child"
        if self._lost is None and any(now >= end for now, end in zip(_clocks(), self._end)):
            return "the agent has not said in time that the lock is still held"
        return self._lost

    def _take(self, text: bytes, send: Callable[[bytes], Any]) -> dict[str, Any]:
        """Take a line. A line that answers no new mark is answered with one: so the lines never count from long ago."""
        line: dict[str, Any] = json.loads(text)
        if "valid_ms" in line:
            valid = line["valid_ms"] / 1000
            monotonic, wall = self._sent[line["mark"]]
            self._end = monotonic + valid * 0.99, wall + valid * 0.99
            if line["mark"] > self._base:
                self._base = line["mark"]
                self._sent = {mark: sent for mark, sent in self._sent.items() if mark >= line["mark"]}
            elif self._mark == self._base:
                self._send_mark(send)
        if "lost" in line:
            self._lost = line.get("detail") or line["lost"]
        if "released" in line:
            self._released = line["released"]
            self._forgotten = line.get("detail", "") if line.get("forgotten") else None
        if "fence" in line:
            self.fence, self.slot = line["fence"], line.get("slot", 0)
        return line

    def _send_mark(self, send: Callable[[bytes], Any]) -> None:
        if not self._mutex.acquire(blocking=False):  # the end is being sent
            return
        try:
            if not self._asked:
                self._mark += 1
                self._sent[self._mark] = _clocks()
                send(b"1\r\n\n\r\n")
        finally:
            self._mutex.release()

    def _remember(self, value: Any) -> Any:
        """Have the end of the block tell the agent what the work of once has returned. Return it as those get it that ask later."""
        text = json.dumps(value, allow_nan=False).encode()
        if len(text) > 65536:
            raise LockNotRemembered(_AGAIN + "its result is longer than 64 KiB", value)
        self._value, self._word = json.loads(text), b"done " + text
        return self._value

    def _send_end(self, failed: bool, send: Callable[[bytes], Any]) -> None:
        """Ask for the end: send the end of the request's body, once."""
        self._lost = self._lost or "it was released"
        with self._mutex:
            if not self._asked:
                send((b"" if failed or not self._word else _chunk(self._word)) + b"0\r\n\r\n")
                self._asked = True  # not before: a signal handler in between waits for the answer

    def _ended(self, line: Any) -> None:
        """Note that nothing more will come. An end that this side didn't ask for is a loss, whoever has asked for it."""
        self._lost = self._lost or ("somebody else has ended it" if line is None else f"the connection to the agent has ended: {line}")

    def _judge(self, failed: bool, doubt: Optional[str]) -> None:
        if not failed and (doubt or self._released is False):
            raise LockLost(doubt or "the lock had ended before the end of the work")
        if not failed and self._word and self._forgotten is not None:
            raise LockNotRemembered(_AGAIN + self._forgotten, self._value)


class Hold(_Lease):
    """What a with block has. fence is a number that is larger than those of all holders before, of the slot if there are several: it is one from 0 on.

    It belongs to the process that took it: in a child of os.fork or multiprocessing, held is false, and check() raises LockLost.
    """

    _connection: socket.socket

    def __init__(self, agent: Agent, ask: dict[str, Any]) -> None:
        super().__init__(ask)
        self._agent, self._ask, self._thread = agent, ask, threading.get_ident()

    def _enter(self, wait: Seconds) -> None:
        self._refuse_own()
        tries = _Tries(self._agent, wait)
        while True:
            try:
                self._acquire(tries.left())
                break
            except LockError as e:
                time.sleep(tries.pause(e))
        self._reader = threading.Thread(target=self._read, name="redlock", daemon=True)
        self._reader.start()
        self._siblings.add(self)

    def _close(self) -> None:
        """End the lock, if it has not ended, in the process that took it."""
        if hasattr(self, "_connection") and os.getpid() == self._pid:
            self._lost = self._lost or "it was released"
            _close(self._connection)

    def _acquire(self, left: Seconds) -> None:
        self._begin()
        try:
            self._connection = self._agent._connect()
        except OSError as e:
            raise self._agent._silence(f"no agent at {self._agent.address}: {e}") from None
        try:
            self._connection.sendall(self._agent._request(self._ask, left))
            self._lines = _Response(self._connection)
            self._agent._require_agent(self._lines.header)
            if self._lines.status != 200:
                raise self._agent._refusal(self._lines.status, self._lines.header, self._lines.rest())
            self._next()
            while not self.held:  # after a wait of many minutes, only the answer to the mark is new enough
                self._next()
            self._connection.settimeout(None)
        except _BROKEN as e:
            _close(self._connection)
            raise self._agent._silence(f"no lock from the agent at {self._agent.address}: {e}") from None
        except BaseException:
            _close(self._connection)
            raise

    def _refuse_own(self) -> None:
        """Raise LockError if this thread holds one of the keys, and would wait for itself until that is lost."""
        self._siblings: weakref.WeakSet[Hold] = _mine.__dict__.setdefault("locks", weakref.WeakSet())
        if float(self._ask.get("wait", "1s")[:-1]) == 0 or self._ask.get("concurrency", 1) != 1:
            return
        for other in list(self._siblings):
            if other._agent.address == self._agent.address and set(other._ask["keys"]) & set(self._ask["keys"]) and other.held:
                raise LockError("this thread holds the lock itself, and would wait for itself: locks are not reentrant")

    def _release(self, failed: bool) -> None:
        """Release the lock, in the process that took it. Raise LockLost if it had been lost, unless the work has failed anyway."""
        doubt = self._doubt()
        self._siblings.discard(self)
        if os.getpid() == self._pid:
            try:
                self._connection.settimeout(_PATIENCE_AT_END)
                self._send_end(failed, self._connection.sendall)
                if not sys.is_finalizing():  # then the reader stands still
                    self._reader.join(_PATIENCE_AT_END)
            except OSError:
                pass
        self._judge(failed, doubt)

    def _next(self) -> dict[str, Any]:
        return self._take(self._lines.line(), self._connection.sendall)

    def _read(self) -> None:
        """Read until the last line."""
        end = None
        try:
            while not self._next().keys() & {"released", "lost"}:
                pass
        except _BROKEN as e:
            end = e
        self._ended(end)


class AsyncAgent(_Base["AsyncLock"]):
    """As Agent, for asyncio."""

    def _lock(self, ask: dict[str, Any], wait: Seconds) -> AsyncLock:
        return AsyncLock(self, ask, wait)

    async def once_per(self, key: str, period: float, work: Callable[[AsyncHold], Awaitable[Any]], *,
            wait: Seconds = None, ttl: Seconds = None, max_hold: Seconds = None, heartbeat: Seconds = None, label: Optional[str] = None) -> bool:
        """As Agent.once_per."""
        begun = False
        try:
            async with self.lock(key, once_per=period, wait=wait, ttl=ttl, max_hold=max_hold, heartbeat=heartbeat, label=label) as hold:
                begun = True
                await work(hold)
        except LockDone:
            if begun:  # it is the work's
                raise
            return False
        return True

    async def once(self, key: str, keep: float, work: Callable[[AsyncHold], Awaitable[T]], *,
            wait: Seconds = None, ttl: Seconds = None, max_hold: Seconds = None, heartbeat: Seconds = None, label: Optional[str] = None) -> T:
        """As Agent.once."""
        value: T
        begun = False
        try:
            async with self.lock(key, once=keep, wait=wait, ttl=ttl, max_hold=max_hold, heartbeat=heartbeat, label=label) as hold:
                begun = True
                value = hold._remember(await work(hold))
        except LockDone as e:
            if begun:  # it is the work's
                raise
            value = json.loads(e.result or "null")
        return value


class AsyncLock:
    """As Lock: each async with takes it anew, also at the same time in other tasks."""

    def __init__(self, agent: AsyncAgent, ask: dict[str, Any], wait: Seconds) -> None:
        self._agent, self._ask, self._wait = agent, ask, wait
        self._holds: list[tuple[Any, AsyncHold]] = []

    def __del__(self) -> None:
        for _, hold in getattr(self, "_holds", ()):
            hold._abandon()

    async def __aenter__(self) -> AsyncHold:
        return await self._take({})

    async def _take(self, keep: dict[AsyncHold, AsyncLock]) -> AsyncHold:
        hold = AsyncHold(self._agent, self._ask)
        try:
            await hold._enter(self._wait)
            self._holds.append((asyncio.current_task(), hold))
            keep[hold] = self
            return hold
        except BaseException:
            self._drop(hold)
            raise

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        mine = None
        try:
            mine = self._current()
            self._holds.remove(mine)
            await mine[1]._release(failed=kind is not None)
        finally:
            self._drop((mine or self._current())[1])

    def _drop(self, hold: AsyncHold) -> None:
        self._holds = [mine for mine in self._holds if mine[1] is not hold]
        _acquired.pop(hold, None)
        hold._close()

    def __call__(self, work: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        @functools.wraps(work)
        async def locked(*args: Any, **named: Any) -> T:
            async with self:
                return await work(*args, **named)
        return locked

    async def acquire(self) -> bool:
        """As Lock.acquire."""
        try:
            await self._take(_acquired)
        except LockHeld:
            return False
        return True

    async def release(self, failed: bool = False) -> None:
        """As Lock.release, in this task."""
        await self.__aexit__(LockError if failed else None, None, None)

    def _current(self) -> tuple[Any, AsyncHold]:
        holds = list(self._holds)
        if not holds:
            raise LockLost("the lock is held in its with block only")
        task = asyncio.current_task()
        return next((hold for hold in reversed(holds) if hold[0] is task), holds[-1])

    @property
    def held(self) -> bool:
        """As Lock.held, in this task."""
        return bool(self._holds) and self._current()[1].held

    def check(self) -> None:
        """As Lock.check, in this task."""
        self._current()[1].check()

    @property
    def fence(self) -> int:
        """As Lock.fence, in this task."""
        return self._current()[1].fence

    @property
    def slot(self) -> int:
        """As Lock.slot, in this task."""
        return self._current()[1].slot


class AsyncHold(_Lease):
    """What an async with block has: as Hold."""

    def __init__(self, agent: AsyncAgent, ask: dict[str, Any]) -> None:
        super().__init__(ask)
        self._agent, self._ask = agent, ask

    async def _enter(self, wait: Seconds) -> None:
        tries = _Tries(self._agent, wait)
        while True:
            try:
                await self._acquire(tries.left())
                break
            except LockError as e:
                await asyncio.sleep(tries.pause(e))
        self._reader = asyncio.ensure_future(self._read())
        self._reader.add_done_callback(lambda _: _acquired.pop(self, None))  # also when the loop ends

    async def _acquire(self, left: Seconds) -> None:
        self._begin()
        patience, (family, to) = self._agent.patience, self._agent._to()
        try:
            if family == socket.AF_UNIX:
                opening = asyncio.open_unix_connection(to)
            else:
                opening = asyncio.open_connection(*to)
            self._in, self._out = await asyncio.wait_for(opening, patience)
        except (OSError, asyncio.TimeoutError) as e:
            raise self._agent._silence(f"no agent at {self._agent.address}: {e}") from None
        copied = getattr(self._out.get_extra_info("socket"), "_sock", None)
        if copied is not None:  # uvloop shows none: there, a child keeps its copy
            _connections.add(copied)
        try:
            self._out.write(self._agent._request(self._ask, left))
            status = 102  # of an agent that lives, and has no lock yet
            while status == 102:
                status, header = await _in_time(self._head(), patience)
            await _in_time(self._first(status, header), patience)
        except (*_BROKEN, asyncio.TimeoutError) as e:
            self._out.close()
            raise self._agent._silence(f"no lock from the agent at {self._agent.address}: {str(e) or 'it does not answer in time'}") from None
        except BaseException:  # also when the task is canceled
            self._out.close()
            raise

    async def _head(self) -> tuple[int, dict[str, str]]:
        status = int((await self._raw_line()).split()[1])
        header = {}
        while (line := await self._raw_line()):
            name, _, value = line.decode("latin-1").partition(":")
            header[name.lower()] = value.strip()
        return status, header

    async def _first(self, status: int, header: dict[str, str]) -> None:
        self._agent._require_agent(header)
        if status != 200:
            raise self._agent._refusal(status, header, await self._in.readexactly(int(header["content-length"])))
        self._text = b""
        await self._next()
        while not self.held:
            await self._next()

    async def _raw_line(self) -> bytes:
        line = await self._in.readline()
        if not line.endswith(b"\n"):
            raise EOFError("the connection has ended")
        return line.strip()

    async def _next(self) -> dict[str, Any]:
        while b"\n" not in self._text:
            size = int(await self._raw_line(), 16)
            if size == 0:
                raise EOFError("the stream has ended")
            self._text += await self._in.readexactly(size)
            await self._raw_line()
        line, _, self._text = self._text.partition(b"\n")
        return self._take(line, self._out.write)

    async def _read(self) -> None:
        end = None
        try:
            while not (await self._next()).keys() & {"released", "lost"}:
                pass
        except _BROKEN as e:
            end = e
        self._ended(end)

    async def _release(self, failed: bool) -> None:
        doubt = self._doubt()
        if os.getpid() == self._pid:
            try:
                self._send_end(failed, self._out.write)
                await asyncio.wait_for(asyncio.shield(self._reader), _PATIENCE_AT_END)
            except (OSError, asyncio.TimeoutError):
                pass
        self._judge(failed, doubt)

    def _close(self) -> None:
        """End the lock, if it has not ended."""
        self._lost = self._lost or "it was released"
        if os.getpid() != self._pid:
            return
        for name, end in (("_reader", "cancel"), ("_out", "close")):
            if hasattr(self, name):
                getattr(getattr(self, name), end)()

    def _abandon(self) -> None:
        """Have the loop end the lock, from any thread."""
        if os.getpid() == self._pid:
            with contextlib.suppress(RuntimeError):  # of a loop that is closed, and its connections
                self._reader.get_loop().call_soon_threadsafe(self._close)


def _plain(work: Callable[..., T]) -> Callable[..., T]:
    """Refuse a function that would only begin its work under the lock."""
    if inspect.iscoroutinefunction(work) or inspect.isgeneratorfunction(work) or inspect.isasyncgenfunction(work):
        raise TypeError("the lock would end before the work begins: AsyncAgent is for async functions, and a with statement for generators")
    return work


async def _in_time(work: Coroutine[Any, Any, T], patience: float) -> T:
    """Return what a coroutine returns, or raise TimeoutError. Unlike wait_for, it takes what has arrived while the loop stood still."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=patience)
        if not task.done():
            await asyncio.sleep(0)
        if not task.done():
            raise asyncio.TimeoutError
        return task.result()
    finally:
        task.cancel()


def _chunk(text: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(text), text)


def _clocks() -> tuple[float, float]:
    """Two clocks: the monotonic one stands still while a machine is suspended, and the other can be set."""
    return time.monotonic(), time.time()


def _close(connection: socket.socket) -> None:
    """Close a connection also if a child has a copy of it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    connection.close()


def _close_copies() -> None:
    """Close, in a child, its copies of the connections: a child that outlives this process would keep the locks."""
    for connection in list(_connections):
        connection.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_copies)


class _Response:
    """A response of HTTP, as it comes. It has no file of the connection's: that has a mutex, which may stay locked in a child."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._raw, self._text = connection, b"", b""
        self.status = 102  # of an agent that lives, and has no lock yet
        while self.status == 102:
            self.status = int(self._raw_line().split()[1])
            self.header: dict[str, str] = {}
            while (line := self._raw_line()):
                name, _, value = line.decode("latin-1").partition(":")
                self.header[name.lower()] = value.strip()

    def _more(self) -> None:
        part = self._connection.recv(65536)
        if not part:
            raise OSError("the connection has ended")
        self._raw += part

    def _raw_line(self) -> bytes:
        while b"\n" not in self._raw:
            self._more()
        line, _, self._raw = self._raw.partition(b"\n")
        return line.strip()

    def _raw_bytes(self, size: int) -> bytes:
        while len(self._raw) < size:
            self._more()
        part, self._raw = self._raw[:size], self._raw[size:]
        return part

    def line(self) -> bytes:
        """Return the next line of a body in chunks."""
        while b"\n" not in self._text:
            size = int(self._raw_line(), 16)
            if size == 0:
                raise OSError("the stream has ended")
            self._text += self._raw_bytes(size)
            self._raw_line()
        line, _, self._text = self._text.partition(b"\n")
        return line

    def rest(self) -> bytes:
        """Return a body with a length."""
        return self._raw_bytes(int(self.header["content-length"]))
