// Run by clients_test.go: takes a lock, and prints what becomes of it.
import assert from "node:assert";
import fs from "node:fs";
import http from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import util from "node:util";
import { Agent, LockDone, LockError, LockHeld, LockLost, LockNotRemembered, LockUnavailable } from "./redlock_agent.mjs";

const { ADDRESS, TOKEN, WAIT, TTL, MAX_HOLD, HEARTBEAT, CONCURRENCY, PATIENCE, SLOWLY, STOP } = process.env;
const [mode, ...keys] = process.argv.slice(2);
const seconds = (text) => (text ? Number(text) : undefined);
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
  const again = await agent.lock(key, { signal: controller.signal.aborted ? undefined : controller.signal });
  if (Symbol.asyncDispose) await again[Symbol.asyncDispose]();
  else await again.unlock();
  assert(!again.held && again.signal.aborted);
}

/** Aborts the pause of a client whose agent is about to stop. */
async function abortPause(key) {
  const controller = new AbortController();
  const stopping = http.createServer((_, response) => {
    response.writeHead(503, { "Redlock-Agent": "1", "Retry-After": "60" }).end("{}");
    response.on("close", () => setTimeout(() => controller.abort(new Error("no pause")), 50));
  });
  await new Promise((listening) => stopping.listen(0, "127.0.0.1", listening));
  const elsewhere = new Agent(`127.0.0.1:${stopping.address().port}`);
  await assert.rejects(elsewhere.lock(key, { signal: controller.signal }), /no pause/);
  stopping.close();
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
  const options = { wait: seconds(WAIT), ttl: seconds(TTL), maxHold: seconds(MAX_HOLD), heartbeat: seconds(HEARTBEAT), concurrency: seconds(CONCURRENCY) };
  if (mode === "compete") await compete(keys[0], options);
  else if (mode === "own") await own(keys[0]);
  else if (mode === "once_per") console.log(`ran ${await agent.oncePer(keys[0], 3600, options, work)}`);
  else if (mode === "once") console.log(`value ${JSON.stringify(await agent.once(keys[0], 3600, options, work))}`);
  else if (mode === "equal") {
    const values = () => agent.once(keys[0], 3600, options, () => ({ date: new Date(0), none: undefined })); // JSON has neither
    console.log(`equal ${util.isDeepStrictEqual(await values(), await values())}`);
  } else if (mode === "kept") {
    const lock = await agent.lock(keys[0], options);
    lock.check();
    console.log(`held ${lock.fence}`);
    await lock.unlock();
  } else await agent.withLock(keys, options, hold);
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
  else if (error instanceof LockDone) console.log(`already ${error.message}`);
  else if (error instanceof LockNotRemembered) console.log(`forgotten ${JSON.stringify(error.value)} ${error.message}`);
  else if (error instanceof LockError) console.log(`error ${error.message}`);
  else throw error;
}
