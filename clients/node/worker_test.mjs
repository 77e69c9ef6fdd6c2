// Run by clients_test.go: takes a lock, and prints what becomes of it.
import assert from "node:assert";
import { spawnSync } from "node:child_process";
import fs from "node:fs";
import http from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import util from "node:util";
import { Agent, LockDone, LockError, LockHeld, LockLost, LockNotRemembered, LockUnavailable } from "./redlock_agent.mjs";

const { ADDRESS, TOKEN, WAIT, TTL, MAX_HOLD, HEARTBEAT, CONCURRENCY, PATIENCE, SLOWLY, STOP, KEEP, VALUES } = process.env;
const [mode, ...keys] = process.argv.slice(2);
const seconds = (text) => (text ? Number(text) : undefined);
const keep = seconds(KEEP) ?? 3600;
const agent = new Agent(ADDRESS, TOKEN || undefined, { patience: seconds(PATIENCE) ?? 10 });

let before = 0;
let last;
async function hold(lock) {
  last = lock;
  console.log(`held ${CONCURRENCY ? lock.slot : lock.fence}`);
  while (!fs.existsSync(STOP)) {
    const now = Date.now();
    lock.check();
    before = now;
    await sleep(20, undefined, { signal: lock.signal }).catch(() => {});
  }
}

/** Try what only Node has. */
async function own(key) {
  await assert.rejects(agent.lock(key, { waits: 2 }), /there is no option waits/);
  const lock = await agent.lock(key);
  const controller = new AbortController();
  const wait = agent.lock(key, { signal: controller.signal });
  setTimeout(() => controller.abort(new Error("no more")), 50);
  await assert.rejects(wait, /no more/);
  await assert.rejects(agent.lock(key, { signal: AbortSignal.abort(new Error("never")) }), /never/);
  await abortPause(key);
  await lock.unlock();
  await busy(key);
  await unwritable(key);
  await converted(`${key} converted`);
  await silent();
  await assert.rejects(answered(409, { "Redlock-Outcome": "done" }, '{"retry_after":7}'), (error) => error instanceof LockDone && error.retryAfter === 7);
  for (const options of [{ label: 10n }, { label: "\ud800" }, { concurrency: NaN }]) {
    await assert.rejects(new Agent("/nonexistent/s").lock(key, options), /: want a whole number|string of whole characters/);
  }
  assert.throws(() => new Agent("/s", "", { patience: "soon" }), LockError);
  addresses();
  for (const later of [function* () {}, async function* () {}]) await assert.rejects(agent.oncePer(`${key} later`, 60, later), /before the work begins/);
  assert.equal(await agent.oncePer(`${key} later`, 60, () => {}), true);
  await atExit(`${key} at exit`);
  await assert.rejects(new Agent("/nonexistent/s").lock(key, { wait: 60 }), (error) => error instanceof LockUnavailable && /ENOENT/.test(error.message));
  await assert.rejects(agent.lock(key, { ttl: "5s" }), /ttl 5s: want a number of seconds/);
  const again = await agent.lock(key, { signal: controller.signal.aborted ? undefined : controller.signal });
  if (Symbol.asyncDispose) await again[Symbol.asyncDispose]();
  else await again.unlock();
  assert(!again.held && again.signal.aborted);
}

/** Keeps the event loop busy for longer than a lease, which the agent renews, in the first turn of one block and with another lock held. */
async function busy(key) {
  const other = await agent.lock(`${key} beside`, { ttl: 6 });
  await agent.withLock(key, { ttl: 6 }, () => void Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 8000));
  other.check();
  await other.unlock();
}

/** Has a result that JSON lacks: the work is done, and the error has its value. */
async function unwritable(key) {
  for (const value of [() => {}, { toJSON: () => assert.fail() }]) {
    await assert.rejects(agent.once(`${key} unwritable`, 60, () => value), (error) => error instanceof LockNotRemembered && error.value === value);
  }
}

/** Has a result whose JSON is different each time: whoever asks first has that which is remembered. */
async function converted(key) {
  let times = 0;
  const value = () => agent.once(key, 60, () => ({ toJSON: () => ++times }));
  assert.deepEqual([await value(), await value()], [1, 1]);
}

/** Waits for a lock, and loses it to an agent that says nothing more: it leaves the block at once. Timers are early, but none ends a release. */
async function silent() {
  const timeout = globalThis.setTimeout;
  globalThis.setTimeout = (f, ms, ...rest) => (ms === 5_000 ? timeout(() => {}, 0) : timeout(f, ms === 10_000 ? 0 : ms / 2, ...rest));
  const warned = new Promise((resolve) => process.once("warning", resolve));
  const line = '{"fence":7,"mark":0,"valid_ms":1000}\n{"mark":1,"valid_ms":1000}\n';
  await assert.rejects(serve((_, response) => {
    warned.then(() => response.writeHead(200, { "Redlock-Agent": "1" }).write(line));
  }, (elsewhere) => elsewhere.withLock("k", { label: "pay" }, async (lock) => {
    await new Promise((lost) => lock.signal.addEventListener("abort", lost));
    lock.check();
  })), LockLost);
  assert.equal(`${await warned}`, "LockWarning: still waiting for a lock after 10 s: pay");
  globalThis.setTimeout = timeout;
}

/** Calls use with an agent that answers in this way. */
async function serve(answer, use) {
  const server = http.createServer(answer);
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  try {
    return await use(new Agent(`127.0.0.1:${server.address().port}`, "the token\n", { patience: 100 }));
  } finally {
    server.close();
  }
}

/** Asks an agent that answers with one response for a lock. */
function answered(status, headers, text) {
  return serve((request, response) => {
    assert.equal(request.headers.authorization, "Bearer the token");
    response.writeHead(status, { "Redlock-Agent": "1", ...headers }).end(text);
  }, (elsewhere) => elsewhere.lock("k"));
}

/** Aborts the pause of a client whose agent is about to stop. */
async function abortPause(key) {
  const controller = new AbortController();
  await assert.rejects(serve((_, response) => {
    response.writeHead(503, { "Redlock-Agent": "1", "Retry-After": "60" }).end("{}");
    response.on("close", () => setTimeout(() => controller.abort(new Error("no pause")), 50));
  }, (elsewhere) => elsewhere.lock(key, { signal: controller.signal })), /no pause/);
}

/** Asks for a lock, and for its end, when its process exits. A copy of it is data. */
async function atExit(key) {
  const child = `
    import { Agent } from "./redlock_agent.mjs";
    const lock = await new Agent(process.env.ADDRESS).lock(${JSON.stringify(key)});
    process.on("exit", () => {
      lock.check();
      console.log(lock.held, lock.fence > 0, Object.keys(structuredClone(lock)).join());
      lock.unlock();
    });
    process.exit();`;
  const { stdout, stderr } = spawnSync(process.execPath, ["--input-type=module", "--eval", child], { encoding: "utf8" });
  assert.equal(stdout, "true true fence,slot\n", stderr);
  await (await agent.lock(key)).unlock();
}

/** Names agents by addresses that are none, and by a URL. */
function addresses() {
  for (const address of ["a.sock", "localhost", "http://127.0.0.1:7070", "127.0.0.1:70000", {}, new URL("http://127.0.0.1:7070")]) {
    assert.throws(() => new Agent(address), LockError, `${address}`);
  }
  assert.equal(new Agent(new URL("file:///a%20b")).address, "/a b");
}

/** Takes the lock again and again, and prints what becomes of it. */
async function compete(key, options) {
  while (!fs.existsSync(STOP)) {
    let fence = 0;
    try {
      await agent.withLock(key, options, async (lock) => {
        fence = lock.fence;
        console.log(`has ${fence} ${process.hrtime.bigint()}`);
        for (let n = Math.floor(Math.random() * 10); n > 0; n--) {
          const now = process.hrtime.bigint();
          lock.check();
          console.log(`had ${fence} ${now}`);
          await sleep(20);
        }
        if (Math.random() < 0.1) await sleep(2000); // work that doesn't look
        console.log(`left ${fence} ${process.hrtime.bigint()}`);
      });
      console.log(`freed ${fence}`);
    } catch (error) {
      if (error instanceof LockLost) console.log(`lost ${fence}`);
      else if (error instanceof LockError) await sleep(100);
      else throw error;
    }
  }
}

async function work(lock) {
  if (keys.length > 1) throw new (keys[1] === "not mine" ? LockDone : LockError)(keys[1]);
  if (SLOWLY) console.log("works");
  while (SLOWLY && !fs.existsSync(STOP)) await sleep(20);
  return { paid: lock.fence > 0 };
}

try {
  const options = { wait: seconds(WAIT), ttl: seconds(TTL), maxHold: seconds(MAX_HOLD), heartbeat: seconds(HEARTBEAT), concurrency: seconds(CONCURRENCY), values: VALUES && Object.fromEntries([VALUES.split("=")]) };
  if (mode === "compete") await compete(keys[0], options);
  else if (mode === "own") await own(keys[0]);
  else if (mode === "once_per") console.log(`ran ${await agent.oncePer(keys[0], keep, options, work)}`);
  else if (mode === "once") console.log(`value ${JSON.stringify(await agent.once(keys[0], keep, options, work))}`);
  else if (mode === "unwritable") {
    await agent.once(keys[0], keep, options, () => 1n).catch((error) => console.log(`unwritable, and its value is there: ${error.value === 1n} ${error.message}`));
  } else if (mode === "equal") {
    const values = () => agent.once(keys[0], 3600, options, () => ({ date: new Date(0), none: undefined })); // JSON has neither
    console.log(`equal ${util.isDeepStrictEqual(await values(), await values())}`);
  } else if (mode === "kept") {
    const lock = await agent.lock(keys[0], options);
    lock.check();
    console.log(`held ${lock.fence}`);
    await lock.unlock();
  } else if (mode === "nested") await agent.withLock(keys[0], () => agent.withLock(keys.at(-1), options, hold));
  else if (mode === "period") await agent.withLock(keys, { ...options, oncePer: keep }, hold);
  else await agent.withLock(keys, options, hold);
  if (mode === "after") {
    await last.unlock();
    if (!last.signal.aborted) console.log("the signal is not aborted");
    last.check();
  }
  console.log("done");
} catch (error) {
  if (error instanceof LockHeld) console.log(`refused ${error.retryAfter}`);
  else if (error instanceof LockLost) console.log(`lost ${before} ${error.message}`);
  else if (error instanceof LockUnavailable) console.log(`unavailable ${error.retryAfter}`);
  else if (error instanceof LockDone) console.log(`already ${error.message}${error.retryAfter === undefined ? "" : `, retry after ${error.retryAfter}`}`);
  else if (error instanceof LockNotRemembered) console.log(`forgotten ${JSON.stringify(error.value)} ${error.message}`);
  else if (error instanceof LockError) console.log(`error ${error.message}${error.value === undefined ? "" : `: ${error.value}`}`);
  else throw error;
}
