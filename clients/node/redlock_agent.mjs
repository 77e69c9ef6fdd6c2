// A lock of redlock's agent. Copy this file; it needs Node 18 and nothing else.
//
//     import { Agent, LockHeld } from "./redlock_agent.mjs";
//
//     const agent = new Agent("/run/redlock/redlock.sock");  // or new Agent("10.0.0.5:7070", "the token")
//     await agent.withLock("order:42", { wait: 2 }, async (lock) => {  // without wait: waits without limit; wait: 0 doesn't wait
//       await pay(lock.fence, { signal: lock.signal });                // the signal aborts what runs when the lock is lost
//       lock.check();                                                  // throws LockLost if the lock isn't certain any more
//     });
//
//     await agent.oncePer("report", 3600, report);   // once an hour, on one of all machines
//     await agent.once("order:42", 86400, pay);      // and its value for a day to whoever asks later
//     await using lock = await agent.lock("order:42", { signal });  // an AbortSignal ends the wait
//
// The lock is held until the function has ended, or until this process ends. Call lock.check() before whatever must not happen twice:
// code that keeps the event loop busy gets no signal. docs/agent.md says how long a client may believe that it holds a lock.

import http from "node:http";
import { setTimeout as pause } from "node:timers/promises";

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

/** Nobody gets locks now: too few masters answer, or the agent has no room or is about to stop. retryAfter is as in LockHeld. */
export class LockUnavailable extends LockError {
  constructor(text, retryAfter, moves = false) {
    super(text);
    this.retryAfter = retryAfter;
    Object.defineProperty(this, "moves", { value: moves }); // whether the agent is about to stop, and another may answer the next request
  }
}

/** The work of oncePer or once is done. result is what once remembers, as JSON. */
export class LockDone extends LockError {
  constructor(text, result) {
    super(text);
    this.result = result;
  }
}

/** The lock was lost while it was held: the work may overlap with another holder's. */
export class LockLost extends LockError {}

/** The work of oncePer or once is done, and the next caller may do it again. value is what the work has returned. */
export class LockNotRemembered extends LockError {
  constructor(text, value) {
    super(`the work is done, but the next caller may do it again: ${text}`);
    this.value = value;
  }
}

const patienceAtEnd = 5_000;
const late = "the agent has not said in time that the lock is still held";
const known = new Set(["wait", "ttl", "maxHold", "heartbeat", "label", "concurrency", "oncePer", "once", "signal"]);

/** What once remembers of a value. */
function remembered(value) {
  const text = value === undefined ? "" : JSON.stringify(value);
  if (text === undefined) throw new TypeError("once remembers what JSON has: no function, and no symbol");
  if (Buffer.byteLength(text) > 65_536) throw new LockNotRemembered("its result is longer than 64 KiB", value);
  return text;
}

const parsed = (text) => (text ? JSON.parse(text) : undefined);

/** The agent at a Unix socket, or at host:port with its token. patience is how long nothing may be heard of it, in seconds. */
export class Agent {
  constructor(address = "/run/redlock/redlock.sock", token = undefined, { patience = 10 } = {}) {
    this.address = address.replace(/^unix:/, "");
    this.token = token;
    this.patience = patience;
  }

  /** Run work with the lock on a key, or on the keys of a list, and return its value. */
  async withLock(keys, options, work = options) {
    return this.#under(await this.lock(keys, options === work ? {} : options), work);
  }

  async #under(lock, work) {
    let value;
    try {
      value = await work(lock);
    } catch (error) {
      await lock.unlock({ failed: true }).catch(() => {});
      throw error;
    }
    await lock.unlock({ value });
    return value;
  }

  /** Call work with the lock unless it has succeeded in this period, on any machine. Return whether this call has. */
  async oncePer(key, period, options, work = options) {
    const lock = await this.#unlessDone(key, { ...(options === work ? {} : options), oncePer: period });
    if (lock instanceof LockDone) return false;
    await this.#under(lock, work);
    return true;
  }

  /** Return what work returns, as JSON has it, or has returned to whoever has called it within the time to keep; at most 64 KiB. */
  async once(key, keep, options, work = options) {
    const lock = await this.#unlessDone(key, { ...(options === work ? {} : options), once: keep });
    if (lock instanceof LockDone) return parsed(lock.result);
    return parsed(remembered(await this.#under(lock, work))); // to whoever asks first as to those that ask later
  }

  /** Take the lock, or return the LockDone that says why there is none: one that the work throws is its own. */
  #unlessDone(key, options) {
    return this.lock(key, options).catch((error) => {
      if (error instanceof LockDone) return error;
      throw error;
    });
  }

  /** Take the lock: end it with unlock(), or have it by "await using". Times are in seconds. heartbeat, at least the ttl, frees the
   * keys if this process is stopped, or its event loop is busy, for so long. concurrency is how many may hold the key at a time. signal
   * ends the wait. */
  async lock(keys, options = {}) {
    for (const name of Object.keys(options)) if (!known.has(name)) throw new TypeError(`there is no option ${name}: want ${[...known].join(", ")}`);
    const { wait, ttl, maxHold, heartbeat, label, concurrency, oncePer, once, signal } = options;
    const seconds = (value) => (value === undefined ? undefined : `${Number(value).toFixed(6)}s`);
    const ask = { keys: [keys].flat(), ttl: seconds(ttl), max_hold: seconds(maxHold), heartbeat: seconds(heartbeat), label, concurrency, once_per: seconds(oncePer), once: seconds(once) };
    if (!ask.keys.every((key) => typeof key === "string" && Buffer.from(key).toString() === key)) {
      throw new TypeError("a key is a string of whole characters");
    }
    const until = wait == null ? undefined : performance.now() + wait * 1000;
    let moves = 0; // until when another agent may take the place of one that was about to stop: for a moment nobody may listen
    for (;;) {
      signal?.throwIfAborted();
      const left = until === undefined ? undefined : Math.max(0, until - performance.now()) / 1000;
      try {
        return await new Promise((had, refused) => new Lock(this, { ...ask, wait: seconds(left), pulse: seconds(Math.min(this.patience / 3, 1e6)) }, signal, had, refused));
      } catch (error) {
        const now = performance.now();
        if (error?.moves) moves = until ?? now + this.patience * 1000;
        if (!(error?.moves || error?.gone) || left === 0 || now >= moves) throw error;
        await pause(Math.min(error.retryAfter ?? 1, left ?? Infinity) * 1000, undefined, { signal }).catch(() => {}); // the reason is thrown above
      }
    }
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
  #forgotten = "the agent has not confirmed it"; // why no quorum of the masters remembers the work
  #request;
  #timer;
  #had;
  #refused;
  #closed;
  #agent;
  #ask;
  #ignore = () => {}; // ends the listening to the signal of the caller

  constructor(agent, ask, signal, had, refused) {
    this.#agent = agent;
    this.#ask = ask;
    this.#had = had;
    this.#refused = refused;
    const colon = agent.address.lastIndexOf(":");
    const to = agent.address.startsWith("/")
      ? { socketPath: agent.address }
      : { host: agent.address.slice(0, colon).replace(/^\[|\]$/g, ""), port: agent.address.slice(colon + 1) };
    const headers = { Host: "redlock", "Redlock-Agent": "1", "Content-Type": "application/json", "Transfer-Encoding": "chunked" };
    if (agent.token) headers.Authorization = `Bearer ${agent.token}`;
    this.#request = http.request({ ...to, method: "POST", path: "/v1/lock", headers, agent: false });
    this.#hope();
    this.#request.on("information", () => this.#had && this.#hope()); // of an agent that lives, and has no lock yet
    if (signal) {
      const leave = () => {
        this.#refused(signal.reason);
        this.#had = undefined;
        this.#fail("the wait was aborted");
      };
      signal.addEventListener("abort", leave, { once: true });
      this.#ignore = () => signal.removeEventListener("abort", leave);
    }
    this.#closed = new Promise((resolve) => {
      this.#request.on("error", (error) => this.#fail(error.message || error.code)).on("close", () => resolve(this.#fail("the connection has ended")));
    });
    this.#request.on("response", (response) => this.#answered(response).catch((error) => this.#fail(error)));
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

  /** Release the lock, and throw LockLost if it had been lost, or LockNotRemembered. From now on it isn't held, and the signal is aborted. failed is for work of
   * oncePer or once that is to be done again; value is what once remembers. */
  unlock({ failed = false, value } = {}) {
    if (this.#unlocking === undefined) {
      let word = "", wrong;
      try {
        word = failed ? "" : this.#ask.once_per ? "done" : this.#ask.once ? `done ${remembered(value)}` : "";
      } catch (error) {
        wrong = error;
      }
      this.#unlocking = this.#unlock(this.#lost ?? (this.held ? undefined : late), word, wrong, value);
      this.#lose("it was released");
    }
    return this.#unlocking;
  }

  async #unlock(lost, word, wrong, value) {
    this.#request.end(word); // the end of the body
    const timer = setTimeout(() => this.#request.destroy(), patienceAtEnd);
    await this.#closed;
    clearTimeout(timer);
    if (lost || this.#released === false) throw new LockLost(lost ?? "the lock had ended before the end of the work");
    if (wrong) throw wrong;
    if (word && this.#forgotten !== undefined) throw new LockNotRemembered(this.#forgotten, value);
  }

  /** The end of a block doesn't say whether the work is done, for oncePer and once: unlock() does. */
  [Symbol.asyncDispose ?? Symbol("asyncDispose")]() {
    return this.unlock({ failed: true });
  }

  async #answered(response) {
    if (response.headers["redlock-agent"] !== "1") throw new LockError(`something else than an agent of version 1 answers at ${this.#agent.address}`);
    let text = "";
    for await (const part of response.setEncoding("utf8")) {
      text += part;
      for (let i; response.statusCode === 200 && (i = text.indexOf("\n")) >= 0; text = text.slice(i + 1)) this.#read(JSON.parse(text.slice(0, i)));
    }
    if (response.statusCode === 200) return;
    const problem = JSON.parse(text);
    const detail = problem.detail ?? problem.title;
    const after = Number(response.headers["retry-after"] ?? 1);
    const outcome = response.headers["redlock-outcome"];
    if (response.statusCode === 423) throw new LockHeld(detail, after);
    if (outcome === "done") throw new LockDone(detail, problem.result);
    if (response.statusCode === 503 || outcome === "no_quorum") throw new LockUnavailable(`${response.statusCode}: ${detail}`, after, response.statusCode === 503);
    throw new LockError(`${response.statusCode}: ${detail}`);
  }

  /** Take a line. One that answers no new mark is answered with one: so the lines never count from long ago. */
  #read(line) {
    if (line.released !== undefined) [this.#released, this.#forgotten] = [line.released, line.forgotten ? line.detail : undefined];
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
    this.#ignore();
    this.#had?.(this);
    this.#had = undefined;
  }

  /** Fail unless more is heard of the agent in time. */
  #hope() {
    clearTimeout(this.#timer);
    const timer = (this.#timer = setTimeout(() => {
      setImmediate(() => this.#timer === timer && this.#fail("it does not answer in time")); // unless something has already arrived
    }, Math.min(this.#agent.patience * 1000, 2 ** 31 - 1)));
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
    this.#ignore();
    this.#lose(reason.message ?? reason);
    if (this.#had) {
      this.#had = undefined;
      this.#refused(reason instanceof LockError ? reason : Object.defineProperty(new LockError(`the agent at ${this.#agent.address} can't be asked: ${this.#lost}`), "gone", { value: true }));
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
