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
whether it is still held: call one of them before whatever must not happen twice. docs/protocol.md says how long a client may believe that.

The thread or task that called acquire() or with has the lock. What "as" names may be asked anywhere, and the end of with releases the lock
anywhere. Another thread doesn't have the lock, and its release() is an error. A Lock that is copied or pickled holds nothing; what "as" names
can't be copied. After acquire(), a lock whose object is dropped, or whose thread ends, is held until the process ends, or the loop of asyncio.
Locks can be taken and released in signal handlers, when objects are collected, and at exit.

A lock that its own thread or task asks for again with the same Agent is refused. Within a generator's with, also of @contextmanager, it isn't,
because the generator may go on elsewhere: the call waits for itself, so give wait.

Prefer with agent.lock(…). An exception out of a signal handler may leave a lock held whose object is in a variable or decorates a function, or
in the middle of acquire() and release(). After one in a task, the lock may last until the next garbage collection.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import functools
import inspect
import json
import logging
import os
import selectors
import socket
import sys
import threading
import time
import weakref
from typing import Any, Awaitable, Callable, Coroutine, Generator, Generic, Optional, TypeVar, Union

__all__ = ["Agent", "AsyncAgent", "LockDone", "LockError", "LockHeld", "LockLost", "LockNotRemembered", "LockUnavailable"]

T = TypeVar("T")
L = TypeVar("L", "Lock", "AsyncLock")
H = TypeVar("H", "Hold", "AsyncHold")
F = TypeVar("F", bound=Callable[..., Any])
Seconds = Optional[float]
Values = Optional[dict[str, str]]

_here = threading.local()  # .owner stands for this thread, .exit is the newest that was loaded here
_GENERATOR = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_connections: weakref.WeakSet[socket.socket] = weakref.WeakSet()
_BROKEN = (OSError, EOFError, ValueError, LookupError, TypeError)  # what a response that breaks off, or is none, ends in
_PATIENCE_AT_END = 5  # for the last line, and for the reader of a process that was busy
_AGAIN = "the work is done, but the next caller may do it again: "


class LockError(Exception):
    """The lock can't be had, or something else than an agent answers. value is what once remembers, if that isn't JSON."""

    def __init__(self, text: str, value: Any = None) -> None:
        super().__init__(text)
        self.value = value


class LockHeld(LockError):
    """Another holder has the lock. retry_after is when to try again, in seconds."""

    def __init__(self, text: str, retry_after: int = 1) -> None:  # the default is for pickle, which passes the text alone
        super().__init__(text)
        self.retry_after = retry_after


class LockUnavailable(LockError):
    """Nobody gets locks now: too few masters answer, the agent has no room or is about to stop, or there is none. retry_after is as in LockHeld."""

    _seen: Optional[int] = None  # as of _Lease, if another agent may be there soon

    def __init__(self, text: str, retry_after: int = 1, seen: Optional[int] = None) -> None:
        super().__init__(text)
        self.retry_after, self._seen = retry_after, seen


class LockDone(LockError):
    """The work of once_per or once is done. result is what once remembers, as JSON; retry_after is when once_per may run next, in seconds."""

    def __init__(self, text: str, result: Optional[str] = None, retry_after: Seconds = None) -> None:
        super().__init__(text)
        self.result, self.retry_after = result, retry_after


class LockLost(LockError):
    """The lock was lost while it was held: the work may overlap with another holder's."""


class LockNotRemembered(LockError):
    """The work of once_per or once is done, and the next caller may do it again. value is what the work of once has returned."""


class _Base(Generic[L]):
    """The agent at a Unix socket, or at host:port with its token. patience is how long nothing may be heard of it, in seconds."""

    def __init__(self, address: Union[str, os.PathLike[str]] = "/run/redlock/redlock.sock", token: Optional[str] = None, patience: float = 10) -> None:
        if isinstance(address, os.PathLike):
            address = os.path.abspath(address)
        if not isinstance(address, str) or not isinstance(token, (str, type(None))):
            raise LockError("the address and the token of the agent: want texts")
        self.address, self.token, self.patience = address.removeprefix("unix:"), token and token.rstrip("\r\n"), patience
        host, _, port = self.address.rpartition(":")
        self._to: Optional[tuple[str, int]] = None  # for TCP
        if not self.address.startswith("/"):
            if not host or "/" in host or not port.isdecimal() or int(port) > 65535:
                raise LockError("the address of the agent: want /the/path/of/its/socket or host:port")
            self._to = host.strip("[]"), int(port)
        if set(self.token or "") & {"\r", "\n"}:
            raise LockError("the token of the agent has several lines")
        _seconds("patience", patience)
        self._holds: set[weakref.ref[_Lease]] = set()

    def __reduce__(self) -> Any:
        return type(self), (self.address, self.token, self.patience)

    def lock(self, *keys: str, wait: Seconds = None, ttl: Seconds = None, max_hold: Seconds = None, heartbeat: Seconds = None,
             label: Optional[str] = None, concurrency: Optional[int] = None, values: Values = None, once_per: Seconds = None, once: Seconds = None) -> L:
        """Return the lock on the keys, for blocks of with or async with, acquire(), or as a decorator. Times are in seconds.

        Without wait it waits without limit, and with 0 not at all. Give it within a generator's with, also of @contextmanager: there, a lock
        that is asked for within itself isn't refused, and waits for itself. heartbeat, at least the ttl, frees the keys if this process is stopped for so long.
        concurrency is how many may hold the key at a time. With values, such as {"id": "CUS_1"}, the keys are templates, as in a rule: customer:{id:id}.
        once_per has others get LockDone for the rest of a period once a block has ended without an exception.
        """
        ask: dict[str, Any] = {"keys": list(keys)}
        for name, seconds in (("wait", wait), ("ttl", ttl), ("max_hold", max_hold), ("heartbeat", heartbeat), ("once_per", once_per), ("once", once)):
            if seconds is not None:
                ask[name] = _seconds(name, seconds)
        for name, value in (("label", label), ("concurrency", concurrency), ("values", values and {**values})):
            if value is not None:
                ask[name] = value
        try:
            json.dumps(ask, ensure_ascii=False).encode()
            "".join(keys)
            range(concurrency or 1)
        except (TypeError, ValueError):
            raise LockError("keys and labels are texts of UTF-8, each key an argument, and concurrency a number") from None
        return self._lock(ask, wait)

    def _lock(self, ask: dict[str, Any], wait: Seconds) -> L:
        raise NotImplementedError

    def _request(self, ask: dict[str, Any], left: Seconds) -> bytes:
        ask = {**ask, "pulse": f"{max(min(self.patience / 3, 5), 0.01):f}s"}  # the agent refuses shorter ones
        if left is not None:
            ask["wait"] = f"{left:f}s"
        body = json.dumps(ask, ensure_ascii=False).encode() + b"\n"
        head = ["POST /v1/lock HTTP/1.1", "Host: redlock", "Redlock-Agent: 1", "Content-Type: application/json", "Transfer-Encoding: chunked"]
        if self.token:
            head.append(f"Authorization: Bearer {self.token}")
        return "\r\n".join(head).encode() + b"\r\n\r\n" + _chunk(body)

    def _refusal(self, status: int, header: dict[str, str], text: bytes) -> LockError:
        if header.get("redlock-agent") != "1":
            return LockError(f"something else than an agent of version 1 answers at {self.address}")
        problem = json.loads(text)
        why, after, outcome = problem.get("detail") or problem.get("title"), int(header.get("retry-after", 1)), header.get("redlock-outcome")
        if status == 423:
            return LockHeld(why, after)
        if outcome == "done":
            return LockDone(why, problem.get("result"), problem.get("retry_after"))
        if status == 503 or outcome == "no_quorum":
            return LockUnavailable(f"{status}: {why}", after, 2 if status == 503 else None)
        return LockError(f"{status}: {why}")


class _Tries:
    """The requests of one lock. An agent that ends meanwhile may be there again soon, or another in its place."""

    def __init__(self, agent: _Base[L], ask: dict[str, Any], wait: Seconds) -> None:
        self._patience, self._label, self._since, self._told = agent.patience, ask.get("label"), time.monotonic(), False
        self._until = None if wait is None else self._since + float(wait)
        self._back: Seconds = None  # until when an agent that has ended may be there again

    def left(self) -> Seconds:
        """Return how long the lock may still be waited for; None: without limit."""
        return None if self._until is None else max(0.0, self._until - time.monotonic())

    def tell(self) -> None:
        """Say once that the wait is long."""
        if not self._told and time.monotonic() >= self._since + 10:
            self._told = True
            logging.getLogger("redlock_agent").warning("still waiting for a lock after 10 s%s", f": {self._label}" if self._label else "")

    def pause(self, e: LockUnavailable) -> float:
        """Return how long to pause before the next request, or raise the error of the last one."""
        self.tell()
        left, now = self.left(), time.monotonic()
        if e._seen == 2 or e._seen == 1 and self._back is None:
            self._back = now + self._patience if self._until is None else self._until
        if e._seen is None or self._back is None or now >= self._back:
            raise e
        return float(e.retry_after) if left is None else min(e.retry_after, left)


class Agent(_Base["Lock"]):
    __doc__ = _Base.__doc__

    def _lock(self, ask: dict[str, Any], wait: Seconds) -> Lock:
        return Lock(self, ask, wait)

    def once_per(self, key: str, period: float, work: Callable[[Hold], Any], *,
            wait: Seconds = None, ttl: Seconds = None, max_hold: Seconds = None, heartbeat: Seconds = None, label: Optional[str] = None,
            values: Values = None) -> bool:
        """Call work with the lock unless it has succeeded in this period, on any machine. Return whether this call has."""
        begun = False
        _refuse_later(work, inspect.iscoroutinefunction)
        try:
            with self.lock(key, once_per=period, wait=wait, ttl=ttl, max_hold=max_hold, heartbeat=heartbeat, label=label, values=values) as hold:
                begun = True
                work(hold)
        except LockDone:
            if begun:  # it is the work's
                raise
            return False
        return True

    def once(self, key: str, keep: float, work: Callable[[Hold], T], *,
            wait: Seconds = None, ttl: Seconds = None, max_hold: Seconds = None, heartbeat: Seconds = None, label: Optional[str] = None,
            values: Values = None) -> T:
        """Return what work returns, as JSON has it, or has returned to whoever has called it within the time to keep; at most 64 KiB."""
        value: T
        begun = False
        _refuse_later(work, inspect.iscoroutinefunction)
        try:
            with self.lock(key, once=keep, wait=wait, ttl=ttl, max_hold=max_hold, heartbeat=heartbeat, label=label, values=values) as hold:
                begun = True
                value = hold._remember(work(hold))
        except LockDone as e:
            if begun:  # it is the work's
                raise
            value = _remembered(e.result)
        return value


class _Exit:
    """__exit__. A with statement or an ExitStack loads it before it calls __enter__, and keeps it: so each has its own, wherever it is left."""

    def __init__(self, method: Any, *lock: Any) -> None:
        self._method, self._lock = method, lock

    def __get__(self, lock: Any, kind: Any) -> Any:
        loaded = _Exit(self._method) if lock is None else _Exit(self._method, lock)
        _here.exit = weakref.ref(loaded)
        return loaded

    def __call__(self, *args: Any) -> Any:
        return self._method(*self._lock, *args, self)


def _own_exit(method: F) -> F:
    return _Exit(method)  # type: ignore[return-value]


def _loaded_exit(lock: Any) -> Callable[[], Optional[_Exit]]:
    """Return what returns the exit of the block that is entered now: None if that can't be called any more, so if __enter__ is called by hand."""
    exit: Callable[[], Optional[_Exit]] = _here.__dict__.pop("exit", lambda: None)
    loaded = exit()
    return exit if loaded and loaded._lock in ((), (lock,)) else lambda: None  # it may be another lock's, which has been entered by hand


def _flags() -> int:
    """Return the flags of the code that has called the caller."""
    try:
        return sys._getframe(2).f_code.co_flags
    except ValueError:  # it isn't Python's, as at the start of a thread or at exit
        return 0


class _Lock(Generic[H]):
    """The holds that this object has taken. Each belongs to the thread or task that asked for it. A copy of the object has none."""

    _who = "thread"

    def __init__(self, agent: _Base[Any], ask: dict[str, Any], wait: Seconds) -> None:
        self._agent, self._ask, self._wait = agent, ask, wait
        self._holds: list[H] = []

    def __reduce__(self) -> Any:
        return type(self), (self._agent, self._ask, self._wait)

    def __del__(self) -> None:  # an exception out of a signal handler can end a with statement before its end is called
        for hold in getattr(self, "_holds", ()):
            if hold._exit:
                hold._abandon()

    def _owner(self) -> Any:
        """Return what stands for this thread."""
        return _here.__dict__.setdefault("owner", object())

    def _refuse_own(self, owner: Any) -> None:
        """Raise LockError if the caller holds all slots of one of the keys, and would wait for itself until one is lost."""
        own = [hold for hold in [ref() for ref in list(self._agent._holds)] if hold and hold._owner is owner]
        for lock in _locks_of(self._ask):
            slots = [hold.slot for hold in own if lock in _locks_of(hold._ask) and hold._may_be_held()]
            if slots and all(slot in slots for slot in range(self._ask.get("concurrency", 1))):
                raise LockError(f"this {self._who} holds the lock itself, and would wait for itself: locks are not reentrant")

    def _keep(self, hold: H, flags: int) -> H:
        self._holds.append(hold)
        if not flags & _GENERATOR:  # another thread or task may go on with one, and this one wait for that
            self._agent._holds.add(weakref.ref(hold, self._agent._holds.discard))
        return hold

    def _drop(self, hold: H) -> None:
        with contextlib.suppress(ValueError):  # a signal handler may have released it
            self._holds.remove(hold)
        hold._close()

    def _mine(self, owner: Any, holds: Optional[list[H]] = None) -> H:
        """Return the caller's newest hold, of all or of some."""
        for hold in reversed(self._holds.copy() if holds is None else holds):
            if hold._owner is owner:
                return hold
        raise LockLost(f"this {self._who} does not hold the lock")

    def _acquired(self, owner: Any) -> H:
        """Return the hold that the caller has taken last with acquire()."""
        return self._mine(owner, [hold for hold in self._holds.copy() if not hold._exit])

    def _leaving(self, owner: Any, exit: _Exit) -> H:
        """Return the hold whose exit this is. An exit by hand ends the only hold that was entered by hand, or the caller's newest."""
        exits = [(hold, hold._exit()) for hold in self._holds.copy() if hold._exit]
        holds = [hold for hold, its in exits if its is exit] or [hold for hold, its in exits if its is None]
        return holds[0] if len(holds) == 1 else self._mine(owner, holds or [hold for hold, _ in exits])

    @property
    def held(self) -> bool:
        """As Hold.held, in the thread or task that took the lock."""
        try:
            return self._mine(self._owner()).held
        except LockLost:
            return False

    def check(self) -> None:
        """As Hold.check, in the thread or task that took the lock."""
        self._mine(self._owner()).check()

    @property
    def fence(self) -> int:
        """As Hold.fence, in the thread or task that took the lock."""
        return self._mine(self._owner()).fence

    @property
    def slot(self) -> int:
        """As Hold.slot, in the thread or task that took the lock."""
        return self._mine(self._owner()).slot


class Lock(_Lock["Hold"]):
    """The lock of a with statement, or of several: each takes it anew, also at the same time in other threads."""

    def __enter__(self) -> Hold:
        return self._take(_loaded_exit(self), _flags())

    def _take(self, exit: Any = None, flags: int = 0) -> Hold:
        owner = self._owner()
        self._refuse_own(owner)
        tries = _Tries(self._agent, self._ask, self._wait)
        while True:
            hold = Hold(self._agent, self._ask, tries, owner, exit)
            try:
                hold._acquire()
                return self._keep(hold, flags)
            except LockUnavailable as e:
                hold._close()
                pause = tries.pause(e)
            except BaseException:  # also one out of a signal handler
                self._drop(hold)
                raise
            time.sleep(pause)

    @_own_exit
    def __exit__(self, kind: Any, error: Any, trace: Any, exit: Any = None) -> None:
        self._end(self._leaving(self._owner(), exit), kind is not None)

    def _end(self, hold: Hold, failed: bool) -> None:
        try:
            hold._release(failed)
        finally:
            self._drop(hold)

    def __call__(self, work: Callable[..., T]) -> Callable[..., T]:
        _refuse_later(work, inspect.iscoroutinefunction)

        @functools.wraps(work)
        def locked(*args: Any, **named: Any) -> T:
            with self:
                return work(*args, **named)
        return locked

    def acquire(self) -> bool:
        """Take the lock, as a with statement does, and return whether it was had: False means that another has it."""
        try:
            self._take()
        except LockHeld:
            return False
        return True

    def release(self, failed: bool = False) -> None:
        """Release what acquire() has taken last in this thread. failed is for work of once_per that is to be done again."""
        self._end(self._acquired(self._owner()), failed)


class _Lease:
    """What the agent has said of a lock. The process that took it alone has it.

    A signal handler may run between any two lines, ask whether the lock is held, and release it: what is asked is read without a mutex.
    """

    fence: int
    slot: int

    def __init__(self, agent: _Base[Any], ask: dict[str, Any], tries: _Tries, owner: Any, exit: Any) -> None:
        self._agent, self._ask, self._tries, self._owner, self._exit = agent, ask, tries, owner, exit  # None: acquire() took it
        self._pid = os.getpid()
        self._mutex = threading.RLock()  # of who sends: a mark must not follow the end. The reader never waits for it
        self._word = b"done" if "once_per" in ask else b""  # what ends a request whose work has succeeded
        self._value: Any = None  # of the work of once
        self._sent, self._end = {0: _clocks()}, (0.0, 0.0)  # when each mark was sent that is not answered yet; when the lease ends
        self._mark = self._base = 0  # the newest that was sent, and the one that the newest line answers
        self._lost: Optional[str] = None  # why the lock is not held any more
        self._asked = False  # whether this side has asked for the end, and what the agent has said to that
        self._released: Optional[bool] = None
        self._forgotten: Optional[str] = "the agent has not confirmed it"  # why no quorum of the masters remembers the work, or None
        self._raw, self._over = b"", False  # what has come, and whether nothing more will
        self._seen = 0  # 1: there is something at the address, 2: it has answered
        self._stream = self._respond()
        next(self._stream)

    def __reduce__(self) -> Any:
        raise LockError("what holds a lock can't be copied")

    @property
    def held(self) -> bool:
        """Whether the lock is certain now."""
        return self._doubt() is None

    def _may_be_held(self) -> bool:
        """Whether the agent may still hold the lock for this process."""
        return self._doubt() is None or self._lost is None and os.getpid() == self._pid

    def check(self) -> None:
        """Raise LockLost unless the lock is certain now."""
        doubt = self._doubt()
        if doubt:
            raise LockLost(doubt)

    def _doubt(self) -> Optional[str]:
        """Return why the lock isn't certain now, or None."""
        if os.getpid() != self._pid:
            return "the lock belongs to the process that took it, and not to its child"
        if self._lost is None and self._late():
            self._catch_up()
            if self._lost is None and self._late():
                return "the agent has not said in time that the lock is still held"
        return self._lost

    def _late(self) -> bool:
        return any(now >= end for now, end in zip(_clocks(), self._end))

    def _catch_up(self) -> None:
        """Read what has arrived while the process was busy or stood still."""
        raise NotImplementedError

    def _send(self, data: bytes) -> None:
        raise NotImplementedError

    def _feed(self, data: bytes) -> None:
        """Take in what the agent has sent; nothing means that the connection has ended."""
        if not data:
            raise EOFError("the connection has ended")
        try:
            self._stream.send(data)
        except StopIteration:  # after the last line
            self._ended(None)

    def _respond(self) -> Generator[None, bytes, None]:
        """Take in a response of HTTP, as it comes."""
        status = 102  # of an agent that lives, and has no lock yet
        while status == 102:
            status, header = int((yield from self._raw_line()).split()[1]), {}
            while (line := (yield from self._raw_line())):
                name, _, value = line.decode("latin-1").partition(":")
                header[name.lower()] = value.strip()
            self._seen = 2
            self._tries.tell()
        if status != 200 or header.get("redlock-agent") != "1":
            raise self._agent._refusal(status, header, (yield from self._raw_bytes(int(header.get("content-length", 0)))))
        text, last = b"", False
        while not last:
            while b"\n" not in text:
                size = int((yield from self._raw_line()), 16)
                if size == 0:
                    raise EOFError("the stream has ended")
                text += yield from self._raw_bytes(size)
                yield from self._raw_line()
            line, _, text = text.partition(b"\n")
            last = self._take(line)

    def _raw_line(self) -> Generator[None, bytes, bytes]:
        while b"\n" not in self._raw:
            self._raw += yield
        line, _, self._raw = self._raw.partition(b"\n")
        return line.strip()

    def _raw_bytes(self, size: int) -> Generator[None, bytes, bytes]:
        while len(self._raw) < size:
            self._raw += yield
        part, self._raw = self._raw[:size], self._raw[size:]
        return part

    def _take(self, text: bytes) -> bool:
        """Take a line, and return whether it is the last. A line that answers no new mark is answered with one: so they never count from long ago."""
        line: dict[str, Any] = json.loads(text)
        if "valid_ms" in line:
            valid = line["valid_ms"] / 1000
            monotonic, wall = self._sent[line["mark"]]
            self._end = monotonic + valid * 0.99, wall + valid * 0.99
            if line["mark"] > self._base:
                self._base = line["mark"]
                self._sent = {mark: sent for mark, sent in self._sent.items() if mark >= line["mark"]}
            elif self._mark == self._base:
                self._send_mark()
        if "lost" in line:
            self._lost = line.get("detail") or line["lost"]
        if "released" in line:
            self._released = line["released"]
            self._forgotten = line.get("detail", "") if line.get("forgotten") else None
        if "fence" in line:
            self.fence, self.slot = line["fence"], line.get("slot", 0)
        return "lost" in line or "released" in line

    def _send_mark(self) -> None:
        if not self._mutex.acquire(blocking=False):  # the end is being sent
            return
        try:
            if not self._asked:
                self._mark += 1
                self._sent[self._mark] = _clocks()
                self._send(b"1\r\n\n\r\n")
        finally:
            self._mutex.release()

    def _remember(self, value: Any) -> Any:
        """Have the end of the block tell the agent what the work of once has returned. Return it as those get it that ask later."""
        try:
            text = json.dumps(value, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as e:
            raise LockNotRemembered(f"{_AGAIN}its result can't be written as JSON: {e}", value) from None
        if len(text) > 65536:
            raise LockNotRemembered(_AGAIN + "its result is longer than 64 KiB", value)
        self._value, self._word = json.loads(text), b"done " + text
        return self._value

    def _send_end(self, failed: bool) -> None:
        """Ask for the end: send the end of the request's body, once."""
        self._lost = self._lost or "it was released"
        with self._mutex:
            if not self._asked:
                self._send((b"" if failed or not self._word else _chunk(self._word)) + b"0\r\n\r\n")
                self._asked = True  # not before: a signal handler in between waits for the answer

    def _ended(self, line: Any) -> None:
        """Note that nothing more will come. An end that this side didn't ask for is a loss, whoever has asked for it."""
        self._lost = self._lost or ("somebody else has ended it" if line is None else f"the connection to the agent has ended: {line}")
        self._over = True

    def _judge(self, failed: bool, doubt: Optional[str]) -> None:
        if not failed and (doubt or self._released is False):
            raise LockLost(doubt or "the lock had ended before the end of the work")
        if not failed and self._word and self._forgotten is not None:
            raise LockNotRemembered(_AGAIN + self._forgotten, self._value)

    def _failure(self, e: Exception) -> LockError:
        """Return the error of a lock that can't be had because of another error."""
        if isinstance(e, socket.timeout):
            return LockError(f"no lock from the agent at {self._agent.address}: it does not answer in time")
        text = f"no {'lock from the ' if self._seen else ''}agent at {self._agent.address}: {e}"
        if isinstance(e, PermissionError):
            text += ": the agent's --socket-group and --socket-mode say who may open the socket"
        if isinstance(e, (OSError, EOFError)) or self._seen == 0:
            return LockUnavailable(text, 1, self._seen)
        return LockError(f"something else than an agent of version 1 answers at {self._agent.address}: {e}")


class Hold(_Lease):
    """What a with block has. fence is a number that is larger than those of all holders before, of the slot if there are several: it is one from 0 on.

    It belongs to the process that took it: in a child of os.fork or multiprocessing, held is false, and check() raises LockLost.
    """

    _connection: socket.socket
    _alone = False

    def _acquire(self) -> None:
        self._idle = True  # the reader waits
        try:
            self._connect()
            self._seen = 1
            self._send(self._agent._request(self._ask, self._tries.left()))
            while self._late():  # after a wait of many minutes, only the answer to the mark is new enough
                if self._over:
                    raise EOFError(self._lost)
                self._feed(self._connection.recv(65536))
            self._connection.settimeout(None)
        except _BROKEN as e:
            _raise_handlers(e)
            raise self._failure(e) from None
        self._reading = threading.Lock()  # of who reads
        self._reading.acquire()
        try:
            _thread.start_new_thread(self._read, ())  # threading.Thread isn't for signal handlers that raise
        except RuntimeError:  # no thread starts at exit, from Python 3.12 on, or where there are too many: what asks reads
            self._alone = True
            self._reading.release()

    def _connect(self) -> None:
        patience = self._agent.patience
        if self._agent._to is None:
            self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            _connections.add(self._connection)
            self._connection.settimeout(patience)
            self._connection.connect(self._agent.address)
        else:
            self._connection = socket.create_connection(self._agent._to, patience)
            _connections.add(self._connection)

    def _send(self, data: bytes) -> None:
        self._connection.sendall(data)

    def _read(self) -> None:
        """Read until the last line."""
        while not self._over:
            self._read_more()
        self._reading.release()

    def _read_more(self) -> None:
        try:
            self._connection.recv(1, socket.MSG_PEEK)  # what has arrived can be seen until it is being taken in
            self._idle = False
            self._feed(self._connection.recv(65536))
        except _BROKEN as e:
            self._ended(e)
        finally:
            self._idle = True

    def _read_alone(self) -> None:
        """Read what has arrived, unless another thread, or what a signal handler has interrupted, does so."""
        if self._reading.acquire(blocking=False):
            try:
                while not self._over and self._behind():
                    self._read_more()
            finally:
                self._reading.release()

    def _doubt(self) -> Optional[str]:
        if self._alone and os.getpid() == self._pid:
            self._read_alone()
        return super()._doubt()

    def _catch_up(self) -> None:  # it is the reader who reads
        until = time.monotonic() + _PATIENCE_AT_END
        while not self._over and self._late() and self._behind() and time.monotonic() < until and not sys.is_finalizing():
            if self._alone:
                self._read_alone()
            time.sleep(0.001)

    def _behind(self) -> bool:
        """Whether the reader has not taken in yet what has arrived."""
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._connection, selectors.EVENT_READ)
                return not self._idle or bool(selector.select(0))
        except (OSError, ValueError) as e:
            _raise_handlers(e)
            return False

    def _release(self, failed: bool) -> None:
        """Release the lock. Raise LockLost if it had been lost, unless the work has failed anyway."""
        doubt = self._doubt()
        if doubt is None:
            try:
                self._connection.settimeout(_PATIENCE_AT_END)
                self._send_end(failed)
                if (self._alone or not sys.is_finalizing()) and self._reading.acquire(timeout=_PATIENCE_AT_END):  # then the reader stands still
                    self._read()  # nothing, if there is one
            except OSError as e:
                _raise_handlers(e)
        self._judge(failed, doubt)

    def _close(self) -> None:
        """End the lock, if it has not ended, in the process that took it."""
        self._lost = self._lost or "it was released"
        if hasattr(self, "_connection") and os.getpid() == self._pid:
            _close(self._connection)

    _abandon = _close


class AsyncAgent(_Base["AsyncLock"]):
    """As Agent, for asyncio."""

    def _lock(self, ask: dict[str, Any], wait: Seconds) -> AsyncLock:
        return AsyncLock(self, ask, wait)

    async def once_per(self, key: str, period: float, work: Callable[[AsyncHold], Awaitable[Any]], *,
            wait: Seconds = None, ttl: Seconds = None, max_hold: Seconds = None, heartbeat: Seconds = None, label: Optional[str] = None,
            values: Values = None) -> bool:
        """As Agent.once_per."""
        begun = False
        _refuse_later(work)
        try:
            async with self.lock(key, once_per=period, wait=wait, ttl=ttl, max_hold=max_hold, heartbeat=heartbeat, label=label, values=values) as hold:
                begun = True
                await _result(work(hold))
        except LockDone:
            if begun:  # it is the work's
                raise
            return False
        return True

    async def once(self, key: str, keep: float, work: Callable[[AsyncHold], Awaitable[T]], *,
            wait: Seconds = None, ttl: Seconds = None, max_hold: Seconds = None, heartbeat: Seconds = None, label: Optional[str] = None,
            values: Values = None) -> T:
        """As Agent.once."""
        value: T
        begun = False
        _refuse_later(work)
        try:
            async with self.lock(key, once=keep, wait=wait, ttl=ttl, max_hold=max_hold, heartbeat=heartbeat, label=label, values=values) as hold:
                begun = True
                value = hold._remember(await _result(work(hold)))
        except LockDone as e:
            if begun:  # it is the work's
                raise
            value = _remembered(e.result)
        return value


class AsyncLock(_Lock["AsyncHold"]):
    """As Lock: each async with takes it anew, also at the same time in other tasks."""

    _who = "task"

    def _owner(self) -> Any:
        """Return what stands for this task. A hold is for the task that calls acquire(), also if asyncio.wait_for has another one run it."""
        return _task()

    def __aenter__(self) -> Coroutine[Any, Any, AsyncHold]:
        return self._take(_task(), _loaded_exit(self), _flags())

    async def _take(self, owner: Any, exit: Any = None, flags: int = 0) -> AsyncHold:
        owner = owner or _task()
        for old in self._holds.copy():
            if old._loop.is_closed():
                self._drop(old)
        self._refuse_own(owner)
        tries = _Tries(self._agent, self._ask, self._wait)
        while True:
            hold = AsyncHold(self._agent, self._ask, tries, owner, exit)
            try:
                await hold._acquire()
                return self._keep(hold, flags)
            except LockUnavailable as e:
                hold._close()
                pause = tries.pause(e)
            except BaseException:  # also when the task is canceled
                self._drop(hold)
                raise
            await asyncio.sleep(pause)

    def _keep(self, hold: AsyncHold, flags: int) -> AsyncHold:
        until_end = sys.get_asyncgen_hooks().firstiter
        if until_end and not flags & _GENERATOR:  # the end of the loop ends generators, whose code may still need the lock
            until_end(hold)  # type: ignore[arg-type]  # the loop calls its aclose(); a task for that would be seen
        return super()._keep(hold, flags)

    @_own_exit
    async def __aexit__(self, kind: Any, error: Any, trace: Any, exit: Any = None) -> None:
        await self._end(self._leaving(_task(), exit), kind is not None)

    async def _end(self, hold: AsyncHold, failed: bool) -> None:
        try:
            await hold._release(failed)
        finally:
            self._drop(hold)

    def __call__(self, work: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        _refuse_later(work)

        @functools.wraps(work)
        async def locked(*args: Any, **named: Any) -> T:
            async with self:
                value: T = await _result(work(*args, **named))
                return value
        return locked

    def acquire(self) -> Coroutine[Any, Any, bool]:
        """As Lock.acquire, for the task that calls it."""
        return self._acquire(_task())

    async def _acquire(self, owner: Any) -> bool:
        try:
            await self._take(owner)
        except LockHeld:
            return False
        return True

    def release(self, failed: bool = False) -> Coroutine[Any, Any, None]:
        """As Lock.release, for the task that calls it."""
        return self._release(_task(), failed)

    async def _release(self, owner: Any, failed: bool) -> None:
        await self._end(self._acquired(owner or _task()), failed)


class AsyncHold(_Lease, asyncio.Protocol):
    """What an async with block has: as Hold."""

    _out: asyncio.Transport
    _connection: Optional[socket.socket] = None
    _failed: Optional[Exception] = None  # why there is no lock
    _catching_up = False

    async def _acquire(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._news = self._loop.create_future()
        try:
            if self._agent._to is None:
                opening: Any = self._loop.create_unix_connection(lambda: self, self._agent.address)
            else:
                opening = self._loop.create_connection(lambda: self, *self._agent._to)
            try:
                self._out, _ = await asyncio.wait_for(opening, self._agent.patience)
            except asyncio.TimeoutError:
                raise OSError("it does not answer in time") from None
            self._connection = getattr(self._out.get_extra_info("socket"), "_sock", None)
            if self._connection is not None:  # uvloop shows none: there, a child keeps its copy
                _connections.add(self._connection)
            self._seen = 1
            self._send(self._agent._request(self._ask, self._tries.left()))
            while self._late():
                if self._over:
                    raise self._failed or EOFError(self._lost)
                await self._hear(self._agent.patience)
        except _BROKEN as e:
            raise self._failure(e) from None
        finally:
            self._failed = None  # which refers to this

    async def _hear(self, patience: float) -> None:
        """Wait for the agent to say something."""
        self._news = self._loop.create_future()
        await asyncio.wait({self._news}, timeout=patience)
        if not self._news.done():
            self._catch_up()
        if not self._news.done():
            raise socket.timeout

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        try:
            self._feed(data)
        except (LockError, *_BROKEN) as e:
            self._failed = e
            self._ended(e)
        if not self._news.done():
            self._news.set_result(None)

    def eof_received(self) -> None:
        self.data_received(b"")

    def connection_lost(self, e: Optional[Exception]) -> None:
        self._ended(e)
        if not self._news.done():
            self._news.set_result(None)

    def _send(self, data: bytes) -> None:
        self._out.write(data)

    def _catch_up(self) -> None:
        """Read in place of the loop, but not in a signal handler that may have interrupted it: then no task runs."""
        if self._catching_up or _task() is None or self._loop is not asyncio.get_running_loop():
            return
        try:
            self._catching_up = True
            own = self._out.get_extra_info("socket")
            with socket.fromfd(own.fileno(), own.family, own.type) as copy:
                copy.setblocking(False)
                while not self._over:
                    self.data_received(copy.recv(65536))
        except OSError:  # there is nothing more
            pass
        finally:
            self._catching_up = False

    async def _release(self, failed: bool) -> None:
        doubt = self._doubt()
        if doubt is None:
            with contextlib.suppress(socket.timeout, RuntimeError, ValueError):  # of a loop that doesn't run any more
                self._send_end(failed)
                while not self._over:
                    await self._hear(_PATIENCE_AT_END)
        self._judge(failed, doubt)

    def _close(self) -> None:
        """End the lock, if it has not ended."""
        self._lost = self._lost or "it was released"
        if os.getpid() == self._pid and hasattr(self, "_out"):
            try:
                self._out.abort()
            except RuntimeError:  # of a loop that is closed, and leaves its connections open
                if self._connection is not None:
                    _close(self._connection)

    async def aclose(self) -> None:
        """End the lock when the loop ends, which takes this for an async generator."""
        self._close()

    def _abandon(self) -> None:
        """Have the loop end the lock, from any thread."""
        if os.getpid() == self._pid:
            try:
                self._loop.call_soon_threadsafe(self._close)
            except RuntimeError:  # it is closed
                self._close()


def _task() -> Optional[weakref.ref[asyncio.Task[Any]]]:
    """Return what stands for this task, and keeps nothing that the task refers to."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs
        return None
    return weakref.ref(task) if task else None


async def _result(work: Any) -> Any:
    """Return what an async function returns, or a plain one has returned already."""
    return await work if inspect.isawaitable(work) else work


def _remembered(result: Optional[str]) -> Any:
    """Return what the work of once has returned."""
    try:
        return json.loads(result or "null")
    except (ValueError, RecursionError):
        raise LockError("the remembered result of this key isn't JSON: another kind of client wrote it", result) from None


def _locks_of(ask: dict[str, Any]) -> list[bytes]:
    """Return what keys have in common that share a lock: they differ in the case of ASCII letters alone. Templates have their values behind them."""
    return [f"{key}{ask.get('values', '')}".encode(errors="surrogatepass").lower() for key in ask["keys"]]


def _refuse_later(work: Callable[..., Any], *kinds: Callable[[Any], bool]) -> None:
    """Refuse a function that would only begin its work under the lock."""
    if any(later(work) for later in (inspect.isgeneratorfunction, inspect.isasyncgenfunction, *kinds)):
        raise LockError("the lock would end before the work begins: AsyncAgent is for async functions, and a with statement for generators")


def _seconds(name: str, seconds: float) -> str:
    """Return a time as the agent reads it. Only a wait may be 0."""
    try:
        text = f"{seconds:f}"
        if 0 < float(text) < 1e9 or name == "wait" and float(text) == 0:
            return text + "s"
    except (TypeError, ValueError):
        pass
    raise LockError(f"{name} {seconds!r}: want a number of seconds {'of 0 or more' if name == 'wait' else 'above 0'}")


def _chunk(text: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(text), text)


def _clocks() -> tuple[float, float]:
    """Two clocks: the monotonic one stands still while a machine is suspended, and the other can be set."""
    return time.monotonic(), time.time()


def _raise_handlers(e: Exception) -> None:
    """Raise what a signal handler has raised, such as a TimeoutError: an error of a socket has a number, or one of these texts."""
    if isinstance(e, OSError) and e.errno is None and e.args not in (("timed out",), ("AF_UNIX path too long",)):
        raise e


def _close(connection: socket.socket) -> None:
    """Close a connection also if a child has a copy of it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def _close_copies() -> None:
    """Close, in a child, its copies of the connections: a child that outlives this process would keep the locks."""
    for connection in list(_connections):
        connection.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_copies)
