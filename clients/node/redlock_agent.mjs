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
// code that keeps the event loop busy gets no signal. After such code await something first, so that this process hears whether the lock
// is still held. docs/protocol.md says how long a client may believe that it holds a lock.
//
// A lock is the same in another async context. A copy, also in a worker thread, is data with its fence and slot. A lock that is dropped without
// unlock() is held until the process ends. At exit nothing is waited for; when the process ends within once, its result isn't remembered.
// A lock that is asked for with the same Agent within its own block, or in what the block begins without waiting for it, is refused.

import { AsyncLocalStorage } from "node:async_hooks";
import http from "node:http";
import { setImmediate as turn, setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";

/** The lock can't be had, or there is no agent. */
export class LockError extends Error {
  name = this.constructor.name;

  constructor(text, value) {
    super(text);
    if (value !== undefined) this.value = value; // what is remembered and isn't JSON
  }
}

/** Another holder has the lock. retryAfter is when to try again, in seconds. */
export class LockHeld extends LockError {
  constructor(text, retryAfter) {
    super(text);
    this.retryAfter = retryAfter;
  }
}

/** Nobody gets locks now: too few masters answer, there is no agent, or it has no room or is about to stop. retryAfter is as in LockHeld. */
export class LockUnavailable extends LockError {
  constructor(text, retryAfter, met) {
    super(text);
    this.retryAfter = retryAfter;
    Object.defineProperty(this, "met", { value: met }); // who has answered, where another agent may answer the next request
  }
}

/** The work of oncePer or once is done. result is what once remembers, as JSON, and retryAfter when the next period begins, in seconds. */
export class LockDone extends LockError {
  constructor(text, result, retryAfter) {
    super(text);
    this.result = result;
    this.retryAfter = retryAfter;
  }
}

/** The lock was lost while it was held: the work may overlap with another holder's. */
export class LockLost extends LockError {}

/** The work of oncePer or once is done, and the next caller may do it again. value is what the work has returned. */
export class LockNotRemembered extends LockError {
  constructor(text, value) {
    super(`the work is done, but the next caller may do it again: ${text}`, value);
  }
}

const patienceAtEnd = 5_000;
const late = "the agent has not said in time that the lock is still held";
const mayNotOpen = ": the agent's --socket-group and --socket-mode say who may open the socket";
const times = ["wait", "ttl", "maxHold", "heartbeat", "oncePer", "once"];
const known = [...times, "label", "concurrency", "values", "signal"];
const [NOBODY, SOMEBODY, AN_AGENT] = [1, 2, 3]; // who has answered a request
const blocks = new AsyncLocalStorage(); // the blocks in which this code runs: their agents, keys and locks

/** What once remembers of a value, as JSON. */
function remembered(value) {
  let text = "";
  try {
    if (value !== undefined) text = JSON.stringify(value);
  } catch (error) {
    throw new LockNotRemembered(`its result can't be written as JSON: ${error.message}`, value);
  }
  if (text === undefined) throw new LockNotRemembered("its result can't be written as JSON, which has no functions and no symbols", value);
  if (Buffer.byteLength(text) > 65_536) throw new LockNotRemembered("its result is longer than 64 KiB", value);
  return text;
}

/** The value of what once remembers. */
function parsed(text) {
  try {
    return text ? JSON.parse(text) : undefined;
  } catch {
    throw new LockError("the remembered result of this key isn't JSON: another kind of client wrote it", text);
  }
}

/** The agent at a Unix socket, or at host:port with its token. patience is how long nothing may be heard of it, in seconds. */
export class Agent {
  constructor(address = "/run/redlock/redlock.sock", token = "", { patience = 10 } = {}) {
    this.address = String(address instanceof URL && address.protocol === "file:" ? fileURLToPath(address) : address).replace(/^unix:/, "");
    const [, path, host, port] = /^(\/.*)$|^\[?([^/[\]]+)\]?:(\d+)$/.exec(this.address) ?? [];
    if (!path && !(port < 65_536)) throw new LockError(`the address ${this.address}: want the path of a socket, from its / on, or host:port`);
    this.to = path ? { socketPath: path } : { host, port };
    this.token = String(token).replace(/\r?\n$/, ""); // of a file
    if (!(patience > 0)) throw new LockError(`the patience ${patience}: want a number of seconds above 0`);
    this.patience = patience;
  }

  /** Run work with the lock on a key, or on the keys of a list, and return its value. */
  async withLock(keys, options, work = options) {
    return this.#under(named(keys, options?.values), await this.lock(keys, options === work ? {} : options), work);
  }

  async #under(keys, lock, work, once = false) {
    let value, text;
    const around = (blocks.getStore() ?? []).filter((block) => !block.lock.signal.aborted);
    try {
      if (/Generator/.test(Object.prototype.toString.call(work))) throw new LockError("the lock would end before the work begins: for a generator, take it by lock(), and unlock() it");
      value = await blocks.run([...around, { agent: this, keys, lock }], () => work(lock));
      if (once) text = remembered(value);
    } catch (error) {
      await lock.unlock({ failed: true }).catch(() => {});
      throw error;
    }
    await lock.unlock({ value, text });
    return once ? parsed(text) : value; // to whoever asks first as to those that ask later
  }

  /** Call work with the lock unless it has succeeded in this period, on any machine. Return whether this call has. */
  async oncePer(key, period, options, work = options) {
    const lock = await this.#unlessDone(key, { ...(options === work ? {} : options), oncePer: period });
    if (lock instanceof LockDone) return false;
    await this.#under(named(key, options?.values), lock, work);
    return true;
  }

  /** Return what work returns, as JSON has it, or has returned to whoever has called it within the time to keep; at most 64 KiB. */
  async once(key, keep, options, work = options) {
    const lock = await this.#unlessDone(key, { ...(options === work ? {} : options), once: keep });
    if (lock instanceof LockDone) return parsed(lock.result);
    return this.#under(named(key, options?.values), lock, work, true);
  }

  /** Take the lock, or return the LockDone that says why there is none: one that the work throws is its own. */
  #unlessDone(key, options) {
    return this.lock(key, options).catch((error) => {
      if (error instanceof LockDone) return error;
      throw error;
    });
  }

  /** Take the lock: end it with unlock(), or have it by "await using". Times are in seconds. heartbeat, at least the ttl, frees the
   * keys if this process is stopped, or its event loop is busy, for so long. concurrency is how many may hold the key at a time. With values,
   * such as { id: "CUS_1" }, the keys are templates, as in a rule: customer:{id:id}. signal ends the wait. */
  async lock(keys, options = {}) {
    for (const [name, value] of Object.entries(options)) {
      if (!known.includes(name)) throw new TypeError(`there is no option ${name}: want ${known.join(", ")}`);
      if (times.includes(name) && value != null && !Number.isFinite(value)) throw new LockError(`${name} ${value}: want a number of seconds`);
      if (name.startsWith("once") && value <= 0) throw new LockError(`${name} ${value}: want a number of seconds above 0`);
    }
    const { wait, ttl, maxHold, heartbeat, label, concurrency, values, oncePer, once, signal } = options;
    const seconds = (value) => (value == null ? undefined : `${value.toFixed(6)}s`);
    const ask = { keys: [keys].flat(), ttl: seconds(ttl), max_hold: seconds(maxHold), heartbeat: seconds(heartbeat), label, concurrency, values, once_per: seconds(oncePer), once: seconds(once) };
    if (![...ask.keys, label ?? ""].every((key) => typeof key === "string" && Buffer.from(key).toString() === key)) {
      throw new TypeError("a key or label is a string of whole characters");
    }
    if (!(concurrency == null || Number.isInteger(concurrency))) throw new LockError(`concurrency ${concurrency}: want a whole number`);
    const own = (block) => block.agent === this && !block.lock.signal.aborted && block.keys.some((key) => named(keys, values).some((other) => lockOf(other) === lockOf(key)));
    if ((concurrency ?? 1) === 1 && blocks.getStore()?.some(own)) {
      throw new LockError("this thread holds the lock itself, and would wait for itself: locks are not reentrant");
    }
    const until = wait == null ? undefined : performance.now() + wait * 1000;
    const tell = setTimeout(() => process.emitWarning(`still waiting for a lock after 10 s${label === undefined ? "" : `: ${label}`}`, "LockWarning"), 10_000).unref();
    let again; // until when another agent may take the place of one that has ended: for a moment nobody may listen
    try {
      for (;;) {
        signal?.throwIfAborted();
        const rest = until && Math.max(0, until - performance.now()) / 1000;
        try {
          return await new Promise((had, refused) => new Lock(this, { ...ask, wait: seconds(rest), pulse: seconds(Math.max(0.01, Math.min(this.patience / 3, 1e6))) }, signal, had, refused));
        } catch (error) {
          const now = performance.now();
          if (error?.met === AN_AGENT || (error?.met === SOMEBODY && again === undefined)) again = until ?? now + this.patience * 1000;
          if (!error?.met || rest === 0 || !(now < again)) throw error;
          await pause(Math.min(error.retryAfter, rest ?? Infinity) * 1000, undefined, { signal }).catch(() => {}); // the reason is thrown above
        }
      }
    } finally {
      clearTimeout(tell);
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
  #lost; // why it is not held any more
  #told; // why it was lost, as the agent says
  #unlocking; // the end that this side has asked for
  #released; // what the agent has said to that
  #forgotten = "the agent has not confirmed it"; // why no quorum of the masters remembers the work
  #request;
  #met = NOBODY;
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
    const headers = { Host: "redlock", "Redlock-Agent": "1", "Content-Type": "application/json", "Transfer-Encoding": "chunked" };
    if (agent.token) headers.Authorization = `Bearer ${agent.token}`;
    this.#request = http.request({ ...agent.to, method: "POST", path: "/v1/lock", headers, agent: false });
    this.#hope();
    this.#request.on("socket", (socket) => socket.on("connect", () => (this.#met = SOMEBODY)));
    this.#request.on("information", () => {
      this.#met = AN_AGENT; // it lives, and has no lock yet
      if (this.#had) this.#hope();
    });
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
      this.#request.on("error", (error) => this.#fail((error.message || error.code) + (error.code === "EACCES" ? mayNotOpen : ""))).on("close", () => resolve(this.#fail("the connection has ended")));
    });
    this.#request.on("response", (response) => this.#answered(response).catch((error) => this.#fail(error)));
    this.#request.write(JSON.stringify(ask) + "\n");
  }

  get signal() {
    return this.#abort.signal;
  }

  /** Whether the lock is certain now. */
  get held() {
    return this.#lost === undefined && left(this.#end) > 0;
  }

  /** Throw LockLost unless the lock is certain now. */
  check() {
    if (!this.held) throw new LockLost(this.#lost ?? late);
  }

  /** Release the lock, and throw LockLost if it had been lost, or LockNotRemembered. From now on it isn't held, and the signal is aborted. failed is for work of
   * oncePer or once that is to be done again; value is what once remembers. */
  unlock({ failed = false, value, text } = {}) {
    if (this.#unlocking === undefined) {
      let word = "", wrong;
      try {
        word = failed ? "" : this.#ask.once_per ? "done" : this.#ask.once ? `done ${text ?? remembered(value)}` : "";
      } catch (error) {
        wrong = error;
      }
      this.#unlocking = this.#unlock(this.#lost, word, wrong, value);
      this.#lose("it was released");
    }
    return this.#unlocking;
  }

  async #unlock(lost, word, wrong, value) {
    if (lost === undefined && left(this.#end) <= 0 && (await this.#late())) lost = late;
    if (lost === undefined) this.#request.end(word); // the end of the body
    else this.#request.destroy();
    const timer = setTimeout(() => this.#request.destroy(), patienceAtEnd);
    await this.#closed;
    clearTimeout(timer);
    lost ??= this.#told;
    if (lost !== undefined || this.#released === false) throw new LockLost(lost ?? "the lock had ended before the end of the work");
    if (wrong) throw wrong;
    if (word && this.#forgotten !== undefined) throw new LockNotRemembered(this.#forgotten, value);
  }

  /** The end of a block doesn't say whether the work is done, for oncePer and once: unlock() does. */
  [Symbol.asyncDispose ?? Symbol("asyncDispose")]() {
    return this.unlock({ failed: true });
  }

  async #answered(response) {
    if (response.headers["redlock-agent"] !== "1") throw new LockError(`something else than an agent of version 1 answers at ${this.#agent.address}`);
    this.#met = AN_AGENT;
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
    if (outcome === "done") throw new LockDone(detail, problem.result, problem.retry_after);
    if (response.statusCode === 503 || outcome === "no_quorum") throw new LockUnavailable(`${response.statusCode}: ${detail}`, after, response.statusCode === 503 ? AN_AGENT : undefined);
    throw new LockError(`${response.statusCode}: ${detail}`);
  }

  /** Take a line. One that answers no new mark is answered with one: so the lines never count from long ago. */
  #read(line) {
    if (line.released !== undefined) [this.#released, this.#forgotten] = [line.released, line.forgotten ? line.detail : undefined];
    if (line.released !== undefined && !this.#request.writableEnded) this.#told = "somebody else has ended it";
    if (line.lost !== undefined) this.#told = line.detail ?? line.lost;
    if (this.#told !== undefined) this.#fail(this.#told);
    if (line.valid_ms === undefined || this.#request.destroyed) return;
    this.fence ??= line.fence;
    this.slot ??= line.slot ?? 0;
    const end = this.#sent.get(line.mark).map((clock) => clock + line.valid_ms * 0.99);
    if (left(end) > left(this.#end)) this.#end = end;
    if (line.mark > this.#base) {
      for (let mark = this.#base; mark < line.mark; mark++) this.#sent.delete(mark);
      this.#base = line.mark;
    } else if (this.#mark === this.#base && !this.#request.writableEnded) {
      this.#sent.set(++this.#mark, clocks());
      this.#request.write("\n");
    }
    if (this.#lost !== undefined || (this.#had && !this.held)) return; // after a wait of many minutes, only the answer to the mark is new enough
    this.#watch();
    this.#ignore();
    if (this.#had) process.nextTick(this.#had, this); // when the mark has been sent: work may be busy at once
    this.#had = undefined;
  }

  /** Fail unless more is heard of the agent in time. */
  #hope() {
    clearTimeout(this.#timer);
    const timer = (this.#timer = setTimeout(async () => {
      await heard();
      if (this.#timer === timer) this.#fail("it does not answer in time");
    }, Math.min(this.#agent.patience * 1000, 2 ** 31 - 1)));
  }

  /** Abort the signal at the end, unless a line that has already arrived moves it on. */
  #watch() {
    clearTimeout(this.#timer);
    if (this.#lost !== undefined) return;
    const look = async () => ((await this.#late()) ? this.#fail(late) : this.#watch()); // a timer may be early
    this.#timer = setTimeout(look, Math.min(left(this.#end) + 1, 2 ** 30));
  }

  /** Whether the end is over, and no line that has already arrived moves it on: this process may have been busy. */
  async #late() {
    for (let end; left(this.#end) <= 0; await heard()) {
      if (end === this.#end) return true;
      end = this.#end;
    }
    return false;
  }

  /** The request has failed, or the lock is lost, unless it was released. */
  #fail(reason) {
    clearTimeout(this.#timer);
    if (this.#lost !== undefined) return;
    this.#ignore();
    this.#lose(reason.message ?? reason);
    if (this.#had) {
      this.#had = undefined;
      this.#refused(reason instanceof LockError ? reason : new LockUnavailable(`the agent at ${this.#agent.address} can't be asked: ${this.#lost}`, 1, this.#met));
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

/** Give the keys by which a lock is known: templates with their values. */
function named(keys, values) {
  return [keys].flat().map((key) => (values ? `${key}${JSON.stringify(values)}` : key));
}

/** Give what keys have in common that share a lock: they differ in the case of ASCII letters alone. */
function lockOf(key) {
  return key.replace(/[A-Z]+/g, (letters) => letters.toLowerCase());
}

/** Two clocks, in ms: the monotonic one stands still while a machine is suspended, and the other can be set. */
function clocks() {
  return [performance.now(), Date.now()];
}

/** How long it is until an end on both clocks, in ms. */
function left(end) {
  return Math.min(...clocks().map((now, i) => end[i] - now));
}

/** Wait until all is read that has arrived: the second turn of the event loop begins after this one. */
async function heard() {
  await turn();
  await turn();
}
