// A lock of redlock's agent. Copy this file; it needs Node 18 and nothing else.
//
//     import { Agent, LockHeld } from "./redlock.mjs";
//
//     const agent = new Agent("/run/redlock/redlock.sock");  // or new Agent("10.0.0.5:7070", "the token")
//     await agent.withLock("order:42", { wait: 2 }, async (lock) => {  // without wait: waits without limit; wait: 0 doesn't wait
//       await pay(lock.fence, { signal: lock.signal });                // the signal aborts what runs when the lock is lost
//       lock.check();                                                  // throws LockLost if the lock isn't certain any more
//     });
//
// The lock is held until the function has ended, or until this process ends. Call lock.check() before whatever must not happen twice:
// code that keeps the event loop busy gets no signal. docs/agent.md says how long a client may believe that it holds a lock.

import http from "node:http";

/** The lock can't be had, or there is no agent. */
export class LockError extends Error {
  name = this.constructor.name;
}

/** Another holder has the lock. retryAfter is when to try again, in seconds. */
export class LockHeld extends LockError {
  constructor(text, retryAfter) {
    super(text);
    this.retryAfter = retryAfter;
  }
}

/** The lock was lost while it was held: the work may overlap with another holder's. */
export class LockLost extends LockError {}

const patience = 10_000; // ms, for a response of the agent, beyond the wait
const patienceAtEnd = 5_000;
const late = "the agent has not said in time that the lock is still held";

/** The agent at a Unix socket, or at host:port with its token. */
export class Agent {
  constructor(address = "/run/redlock/redlock.sock", token = undefined) {
    this.address = address;
    this.token = token;
  }

  /** Run work with the lock on a key, or on the keys of a list, and return its value. */
  async withLock(keys, options, work = options) {
    const lock = await this.lock(keys, options === work ? {} : options);
    let value;
    try {
      value = await work(lock);
    } catch (error) {
      await lock.unlock().catch(() => {});
      throw error;
    }
    await lock.unlock();
    return value;
  }

  /** Take the lock: end it with unlock(), or have it by "await using". Times are in seconds. heartbeat, at least the ttl, frees the
   * keys if this process is stopped, or its event loop is busy, for so long. concurrency is how many may hold the key at a time. */
  lock(keys, { wait, ttl, maxHold, heartbeat, label, concurrency } = {}) {
    const seconds = (value) => (value === undefined ? undefined : `${value}s`);
    const ask = { keys: [keys].flat(), wait: seconds(wait), ttl: seconds(ttl), max_hold: seconds(maxHold), heartbeat: seconds(heartbeat), label, concurrency };
    if (!ask.keys.every((key) => typeof key === "string" && Buffer.from(key).toString() === key)) {
      throw new TypeError("a key is a string of whole characters");
    }
    return new Promise((had, refused) => new Lock(this, ask, wait, had, refused));
  }
}

/** A lock that is held. fence is a number that is larger than those of all holders before, of the slot if there are several; signal aborts when the lock is lost. */
class Lock {
  fence;
  slot;
  #abort = new AbortController();
  #sent = new Map([[0, clocks()]]);
  #mark = 0; // the newest that was sent
  #base = 0; // the one that the newest line answers
  #end = [0, 0];
  #lost;
  #unlocking; // the end that this side has asked for
  #released; // what the agent has said to that
  #request;
  #timer;
  #had;
  #refused;
  #closed;

  constructor(agent, ask, wait, had, refused) {
    this.#had = had;
    this.#refused = refused;
    const colon = agent.address.lastIndexOf(":");
    const to = agent.address.startsWith("/")
      ? { socketPath: agent.address }
      : { host: agent.address.slice(0, colon).replace(/^\[|\]$/g, ""), port: agent.address.slice(colon + 1) };
    const headers = { Host: "redlock", "Redlock-Agent": "1", "Content-Type": "application/json", "Transfer-Encoding": "chunked" };
    if (agent.token) headers.Authorization = `Bearer ${agent.token}`;
    this.#request = http.request({ ...to, method: "POST", path: "/v1/lock", headers, agent: false });
    if (wait !== undefined) this.#timer = setTimeout(() => this.#fail("it does not answer in time"), wait * 1000 + patience);
    this.#closed = new Promise((resolve) => {
      this.#request.on("error", (error) => this.#fail(error.message)).on("close", () => resolve(this.#fail("the connection has ended")));
    });
    this.#request.on("response", (response) => this.#answered(agent, response).catch((error) => this.#fail(error)));
    this.#request.write(JSON.stringify(ask) + "\n");
  }

  get signal() {
    return this.#abort.signal;
  }

  /** Whether the lock is certain now. */
  get held() {
    return this.#lost === undefined && clocks().every((now, i) => now < this.#end[i]);
  }

  /** Throw LockLost unless the lock is certain now. */
  check() {
    if (!this.held) throw new LockLost(this.#lost ?? late);
  }

  /** Release the lock, and throw LockLost if it had been lost. From now on it isn't held, and the signal is aborted. */
  unlock() {
    if (this.#unlocking === undefined) {
      this.#unlocking = this.#unlock(this.#lost ?? (this.held ? undefined : late));
      this.#lose("it was released");
    }
    return this.#unlocking;
  }

  async #unlock(lost) {
    this.#request.end(); // the end of the body
    const timer = setTimeout(() => this.#request.destroy(), patienceAtEnd);
    await this.#closed;
    clearTimeout(timer);
    if (lost || this.#released === false) throw new LockLost(lost ?? "the lock had ended before the end of the work");
  }

  [Symbol.asyncDispose ?? Symbol("asyncDispose")]() {
    return this.unlock();
  }

  async #answered(agent, response) {
    if (response.headers["redlock-agent"] !== "1") throw new LockError(`something else than an agent of version 1 answers at ${agent.address}`);
    let text = "";
    for await (const part of response.setEncoding("utf8")) {
      text += part;
      for (let i; response.statusCode === 200 && (i = text.indexOf("\n")) >= 0; text = text.slice(i + 1)) this.#read(JSON.parse(text.slice(0, i)));
    }
    if (response.statusCode === 200) return;
    const problem = JSON.parse(text);
    const detail = problem.detail ?? problem.title;
    throw response.statusCode === 423 ? new LockHeld(detail, Number(response.headers["retry-after"] ?? 1)) : new LockError(`${response.statusCode}: ${detail}`);
  }

  /** Take a line. One that answers no new mark is answered with one: so the lines never count from long ago. */
  #read(line) {
    if (line.released !== undefined) this.#released = line.released;
    if (line.released !== undefined) this.#fail("somebody else has ended it"); // unless this side has asked for the end
    if (line.lost !== undefined) this.#fail(line.detail ?? line.lost);
    if (line.valid_ms === undefined || this.#lost !== undefined) return;
    this.fence ??= line.fence;
    this.slot ??= line.slot ?? 0;
    const end = this.#sent.get(line.mark).map((clock) => clock + line.valid_ms * 0.99);
    this.#end = end;
    if (line.mark > this.#base) {
      for (let mark = this.#base; mark < line.mark; mark++) this.#sent.delete(mark);
      this.#base = line.mark;
    } else if (this.#mark === this.#base && !this.#request.writableEnded) {
      this.#sent.set(++this.#mark, clocks());
      this.#request.write("\n");
    }
    if (this.#had && !this.held) return; // after a wait of many minutes, only the answer to the mark is new enough
    this.#watch();
    this.#had?.(this);
    this.#had = undefined;
  }

  /** Abort the signal at the end, unless a line that has already arrived moves it on. */
  #watch() {
    clearTimeout(this.#timer);
    const left = Math.min(...clocks().map((now, i) => this.#end[i] - now));
    this.#timer = setTimeout(() => setImmediate(() => this.held || this.#lost !== undefined || this.#fail(late)), Math.min(left + 1, 2 ** 30));
  }

  /** The request has failed, or the lock is lost, unless it was released. */
  #fail(reason) {
    clearTimeout(this.#timer);
    if (this.#lost !== undefined) return;
    this.#lose(reason.message ?? reason);
    if (this.#had) {
      this.#had = undefined;
      this.#refused(reason instanceof LockError ? reason : new LockError(`the agent can't be asked: ${this.#lost}`));
    }
    this.#request.destroy();
  }

  #lose(reason) {
    clearTimeout(this.#timer);
    if (this.#lost !== undefined) return;
    this.#lost = reason;
    this.#abort.abort(new LockLost(reason));
  }
}

/** Two clocks, in ms: the monotonic one stands still while a machine is suspended, and the other can be set. */
function clocks() {
  return [performance.now(), Date.now()];
}
