"""A lock of redlock's agent. Copy this file; it needs Python 3.9 and nothing else.

    from redlock import Agent, LockHeld

    agent = Agent("/run/redlock/redlock.sock")       # or Agent("10.0.0.5:7070", token="…")
    with agent.lock("order:42", wait=2) as lock:     # without wait: waits without limit; wait=0 doesn't wait
        pay(fence=lock.fence)
        lock.check()                                 # raises LockLost if the lock isn't certain any more

The lock is held until the end of the block, or until this process ends. lock.check() and lock.held say whether it still is: call one of
them before whatever must not happen twice. docs/agent.md says how long a client may believe that.
"""

import json
import socket
import threading
import time

_mine = threading.local()  # .locks are those that this thread has entered
_PATIENCE = 10  # seconds, for a response of the agent, beyond the wait


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
            connection.connect(self.address)
            return connection
        host, _, port = self.address.rpartition(":")
        connection = socket.create_connection((host, int(port)), _PATIENCE)
        connection.settimeout(None)
        return connection


class Lock:
    """A lock while its with block runs. fence is a number that is larger than those of all holders before, of the slot if there are several: it is one from 0 on."""

    def __init__(self, agent, ask, patience):
        self._agent, self._ask, self._patience = agent, ask, patience
        self._mutex = threading.Lock()

    @property
    def held(self):
        """Whether the lock is certain now."""
        with self._mutex:
            return self._lost is None and all(now < end for now, end in zip(_clocks(), self._end))

    def check(self):
        """Raise LockLost unless the lock is certain now."""
        if not self.held:
            raise LockLost(self._lost or "the agent has not said in time that the lock is still held")

    def _refuse_own(self):
        """Raise LockError if this thread holds one of the keys, and would wait for itself until that is lost."""
        self._siblings = _mine.__dict__.setdefault("locks", [])
        if self._ask.get("wait") == "0s" or self._ask.get("concurrency", 1) != 1:
            return
        for other in self._siblings:
            if other._agent.address == self._agent.address and set(other._ask["keys"]) & set(self._ask["keys"]) and other.held:
                raise LockError("this thread holds the lock itself, and would wait for itself: locks are not reentrant")

    def __enter__(self):
        self._refuse_own()
        self._sent, self._mark, self._base, self._lost, self._end, self._released = {0: _clocks()}, 0, 0, None, (0, 0), None
        try:
            self._connection = self._agent._connect()
        except OSError as e:
            raise LockError(f"no agent at {self._agent.address}: {e}") from None
        try:
            self._connection.settimeout(self._patience)
            self._send_request()
            self._lines = _Response(self._connection)
            self._require_ok()
            first = self._next()
            self.fence, self.slot = first["fence"], first.get("slot", 0)
            while not self.held:  # after a wait of many minutes, only the answer to the mark is new enough
                self._next()
            self._connection.settimeout(None)
        except (OSError, ValueError, KeyError) as e:
            self._connection.close()
            raise LockError(f"the agent's response: {e}") from None
        except BaseException:
            self._connection.close()
            raise
        self._reader = threading.Thread(target=self._read, name="redlock", daemon=True)
        self._reader.start()
        self._siblings.append(self)
        return self

    def __exit__(self, kind, error, trace):
        lost = not self.held
        self._siblings.remove(self)
        try:
            self._connection.settimeout(5)
            with self._mutex:
                self._connection.sendall(b"0\r\n\r\n")  # the end of the request's body
            self._reader.join(5)
        except OSError:
            pass
        self._connection.close()
        if kind is None and (lost or self._released is False):
            raise LockLost(self._lost or "the lock had ended before the end of the work")

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
                elif self._mark == self._base:
                    self._mark += 1
                    self._sent[self._mark] = _clocks()
                    self._connection.sendall(b"1\r\n\n\r\n")
            if "lost" in line:
                self._lost = line.get("detail") or line["lost"]
            self._released = line.get("released", self._released)
        return line

    def _read(self):
        try:
            while "released" not in self._next() and self._lost is None:
                pass
        except (OSError, ValueError, KeyError) as e:
            with self._mutex:
                self._lost = self._lost or f"the connection to the agent has ended: {e}"


def _clocks():
    """Two clocks: the monotonic one stands still while a machine is suspended, and the other can be set."""
    return time.monotonic(), time.time()


class _Response:
    """A response of HTTP, as it comes."""

    def __init__(self, connection):
        self._file = connection.makefile("rb")
        self.status = int(self._file.readline().split()[1])
        self.header = {}
        while (line := self._file.readline().strip()):
            name, _, value = line.decode("latin-1").partition(":")
            self.header[name.lower()] = value.strip()
        self._left = b""

    def line(self):
        """Return the next line of a body in chunks."""
        while b"\n" not in self._left:
            size = int(self._file.readline() or "x", 16)
            if size == 0:
                raise OSError("the stream has ended")
            self._left += self._file.read(size)
            self._file.readline()
        line, _, self._left = self._left.partition(b"\n")
        return line

    def rest(self):
        """Return a body with a length."""
        return self._file.read(int(self.header["content-length"]))
