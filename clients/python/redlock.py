"""A lock of redlock's agent. Copy this file; it needs Python 3.9 and nothing else.

    from redlock import Agent, LockHeld

    agent = Agent("/run/redlock/redlock.sock")       # or Agent("10.0.0.5:7070", token="…")
    with agent.lock("order:42", wait=2) as lock:     # without wait: waits without limit; wait=0 doesn't wait
        pay(fence=lock.fence)
        lock.check()                                 # raises LockLost if the lock isn't certain any more

The lock is held until the end of the block, or until this process ends; a child of os.fork doesn't have it. lock.check() and lock.held say
whether it is still held: call one of them before whatever must not happen twice. docs/agent.md says how long a client may believe that.
"""

import json
import os
import socket
import threading
import time
import weakref

_mine = threading.local()  # .locks are those that this thread has entered
_connections = weakref.WeakSet()
_PATIENCE = 10  # seconds, for a response of the agent, beyond the wait
_BROKEN = (OSError, ValueError, LookupError, TypeError)  # what a response that breaks off, or is none, ends in


class LockError(Exception):
    """The lock can't be had, or there is no agent."""


class LockHeld(LockError):
    """Another holder has the lock. retry_after is when to try again, in seconds."""

    def __init__(self, text, retry_after):
        super().__init__(text)
        self.retry_after = retry_after


class LockLost(LockError):
    """The lock was lost while it was held: the work may overlap with another holder's."""


class Agent:
    """The agent at a Unix socket, or at host:port with its token."""

    def __init__(self, address="/run/redlock/redlock.sock", token=None):
        self.address, self.token = address, token

    def lock(self, *keys, wait=None, ttl=None, max_hold=None, heartbeat=None, label=None, concurrency=None):
        """Return the lock on the keys, for a with statement. Times are in seconds.

        heartbeat, at least the ttl, frees the keys if this process is stopped for so long. concurrency is how many may hold the key at a time.
        """
        ask = {"keys": list(keys)}
        for name, seconds in (("wait", wait), ("ttl", ttl), ("max_hold", max_hold), ("heartbeat", heartbeat)):
            if seconds is not None:
                ask[name] = f"{seconds}s"
        for name, value in (("label", label), ("concurrency", concurrency)):
            if value is not None:
                ask[name] = value
        return Lock(self, ask, None if wait is None else wait + _PATIENCE)

    def _connect(self):
        if self.address.startswith("/"):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            _connections.add(connection)
            connection.connect(self.address)
            return connection
        host, _, port = self.address.rpartition(":")
        connection = socket.create_connection((host, int(port)), _PATIENCE)
        _connections.add(connection)
        return connection


class Lock:
    """The lock of a with statement, or of several: each takes it anew, also at the same time in other threads."""

    def __init__(self, agent, ask, patience):
        self._agent, self._ask, self._patience = agent, ask, patience
        self._holds = []

    def __enter__(self):
        hold = Hold(self._agent, self._ask, self._patience)
        self._holds.append(hold)
        return hold

    def __exit__(self, kind, error, trace):
        hold = self._current()
        self._holds.remove(hold)
        hold._release(failed=kind is not None)

    def _current(self):
        """Return the hold of this thread's innermost with statement. A generator's may have been entered by another thread."""
        if not self._holds:
            raise LockLost("the lock is held in its with block only")
        holds = list(self._holds)
        return next((hold for hold in reversed(holds) if hold._thread == threading.get_ident()), holds[-1])

    @property
    def held(self):
        """As Hold.held, in this thread's with block."""
        return bool(self._holds) and self._current().held

    def check(self):
        """As Hold.check, in this thread's with block."""
        self._current().check()

    @property
    def fence(self):
        """As Hold.fence, in this thread's with block."""
        return self._current().fence

    @property
    def slot(self):
        """As Hold.slot, in this thread's with block."""
        return self._current().slot


class Hold:
    """What a with block has. fence is a number that is larger than those of all holders before, of the slot if there are several: it is one from 0 on.

    It belongs to the process that took it: in a child of os.fork or multiprocessing, held is false, and check() raises LockLost.
    """

    def __init__(self, agent, ask, patience):
        self._agent, self._ask = agent, ask
        self._pid, self._thread, self._mutex = os.getpid(), threading.get_ident(), threading.Lock()
        self._refuse_own()
        self._sent, self._mark, self._base, self._end = {0: _clocks()}, 0, 0, (0, 0)
        self._lost = None  # why the lock is not held any more
        self._asked, self._released = False, None  # whether this side has asked for the end, and what the agent has said to that
        try:
            self._connection = agent._connect()
        except OSError as e:
            raise LockError(f"no agent at {agent.address}: {e}") from None
        try:
            self._connection.settimeout(patience)
            self._send_request()
            self._lines = _Response(self._connection)
            self._require_ok()
            first = self._next()
            self.fence, self.slot = first["fence"], first.get("slot", 0)
            while not self.held:  # after a wait of many minutes, only the answer to the mark is new enough
                self._next()
            self._connection.settimeout(None)
        except _BROKEN as e:
            _close(self._connection)
            raise LockError(f"no lock from the agent at {agent.address}: {e}") from None
        except BaseException:
            _close(self._connection)
            raise
        self._reader = threading.Thread(target=self._read, name="redlock", daemon=True)
        self._reader.start()
        self._siblings.append(self)

    @property
    def held(self):
        """Whether the lock is certain now."""
        return self._doubt() is None

    def check(self):
        """Raise LockLost unless the lock is certain now."""
        doubt = self._doubt()
        if doubt:
            raise LockLost(doubt)

    def _doubt(self):
        """Return why the lock isn't certain now, or None."""
        if os.getpid() != self._pid:  # where the mutex may stay locked for ever
            return "the lock belongs to the process that took it, and not to its child"
        with self._mutex:
            if self._lost is None and any(now >= end for now, end in zip(_clocks(), self._end)):
                return "the agent has not said in time that the lock is still held"
            return self._lost

    def _refuse_own(self):
        """Raise LockError if this thread holds one of the keys, and would wait for itself until that is lost."""
        self._siblings = _mine.__dict__.setdefault("locks", [])
        if self._ask.get("wait") == "0s" or self._ask.get("concurrency", 1) != 1:
            return
        for other in self._siblings:
            if other._agent.address == self._agent.address and set(other._ask["keys"]) & set(self._ask["keys"]) and other.held:
                raise LockError("this thread holds the lock itself, and would wait for itself: locks are not reentrant")

    def _release(self, failed):
        """Release the lock, in the process that took it. Raise LockLost if it had been lost, unless the work has failed anyway."""
        doubt = self._doubt()
        self._siblings.remove(self)
        if os.getpid() == self._pid:
            try:
                self._connection.settimeout(5)
                with self._mutex:
                    self._asked, self._lost = True, self._lost or "it was released"
                    self._connection.sendall(b"0\r\n\r\n")  # the end of the request's body
                self._reader.join(5)
            except OSError:
                pass
            _close(self._connection)
        if not failed and (doubt or self._released is False):
            raise LockLost(doubt or "the lock had ended before the end of the work")

    def _send_request(self):
        body = json.dumps(self._ask, ensure_ascii=False).encode() + b"\n"
        head = ["POST /v1/lock HTTP/1.1", "Host: redlock", "Redlock-Agent: 1", "Content-Type: application/json", "Transfer-Encoding: chunked"]
        if self._agent.token:
            head.append(f"Authorization: Bearer {self._agent.token}")
        self._connection.sendall("\r\n".join(head).encode() + b"\r\n\r\n%x\r\n%s\r\n" % (len(body), body))

    def _require_ok(self):
        response = self._lines
        if response.header.get("redlock-agent") != "1":
            raise LockError(f"something else than an agent of version 1 answers at {self._agent.address}")
        if response.status == 200:
            return
        problem = json.loads(response.rest())
        text = problem.get("detail") or problem.get("title")
        if response.status == 423:
            raise LockHeld(text, int(response.header.get("retry-after", 1)))
        raise LockError(f"{response.status}: {text}")

    def _next(self):
        """Take the next line. A line that answers no new mark is answered with one: so the lines never count from long ago."""
        line = json.loads(self._lines.line())
        with self._mutex:
            if "valid_ms" in line:
                valid = line["valid_ms"] / 1000
                self._end = tuple(clock + valid * 0.99 for clock in self._sent[line["mark"]])
                if line["mark"] > self._base:
                    self._base = line["mark"]
                    self._sent = {mark: sent for mark, sent in self._sent.items() if mark >= line["mark"]}
                elif self._mark == self._base and not self._asked:
                    self._mark += 1
                    self._sent[self._mark] = _clocks()
                    self._connection.sendall(b"1\r\n\n\r\n")
            if "lost" in line:
                self._lost = line.get("detail") or line["lost"]
            self._released = line.get("released", self._released)
        return line

    def _read(self):
        """Read until the last line. An end that this side didn't ask for is a loss, whoever has asked for it."""
        try:
            while not self._next().keys() & {"released", "lost"}:
                pass
            end = "somebody else has ended it"
        except _BROKEN as e:
            end = f"the connection to the agent has ended: {e}"
        with self._mutex:
            self._lost = self._lost or end


def _clocks():
    """Two clocks: the monotonic one stands still while a machine is suspended, and the other can be set."""
    return time.monotonic(), time.time()


def _close(connection):
    """Close a connection also if a child has a copy of it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    connection.close()


def _close_copies():
    """Close, in a child, its copies of the connections: a child that outlives this process would keep the locks."""
    for connection in list(_connections):
        connection.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_copies)


class _Response:
    """A response of HTTP, as it comes. It has no file of the connection's: that has a mutex, which may stay locked in a child."""

    def __init__(self, connection):
        self._connection, self._raw, self._text = connection, b"", b""
        self.status = int(self._raw_line().split()[1])
        self.header = {}
        while (line := self._raw_line()):
            name, _, value = line.decode("latin-1").partition(":")
            self.header[name.lower()] = value.strip()

    def _more(self):
        part = self._connection.recv(65536)
        if not part:
            raise OSError("the connection has ended")
        self._raw += part

    def _raw_line(self):
        while b"\n" not in self._raw:
            self._more()
        line, _, self._raw = self._raw.partition(b"\n")
        return line.strip()

    def _raw_bytes(self, size):
        while len(self._raw) < size:
            self._more()
        part, self._raw = self._raw[:size], self._raw[size:]
        return part

    def line(self):
        """Return the next line of a body in chunks."""
        while b"\n" not in self._text:
            size = int(self._raw_line(), 16)
            if size == 0:
                raise OSError("the stream has ended")
            self._text += self._raw_bytes(size)
            self._raw_line()
        line, _, self._text = self._text.partition(b"\n")
        return line

    def rest(self):
        """Return a body with a length."""
        return self._raw_bytes(int(self.header["content-length"]))
