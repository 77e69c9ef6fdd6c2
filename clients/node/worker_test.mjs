// Run by clients_test.go: takes a lock, and prints what becomes of it.
import fs from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { Agent, LockError, LockHeld, LockLost } from "./redlock.mjs";

const { ADDRESS, TOKEN, WAIT, TTL, MAX_HOLD, HEARTBEAT, CONCURRENCY, STOP } = process.env;
const [mode, ...keys] = process.argv.slice(2);
const seconds = (text) => (text ? Number(text) : undefined);
const agent = new Agent(ADDRESS, TOKEN || undefined);

async function count(file) {
  const n = Number(fs.readFileSync(file, "utf8"));
  await sleep(2);
  fs.writeFileSync(file, String(n + 1));
}

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

try {
  const options = { wait: seconds(WAIT), ttl: seconds(TTL), maxHold: seconds(MAX_HOLD), heartbeat: seconds(HEARTBEAT), concurrency: seconds(CONCURRENCY) };
  if (mode === "count") for (let i = 0; i < 5; i++) await agent.withLock("counter", options, () => count(keys[0]));
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
  else if (error instanceof LockError) console.log(`error ${error.message}`);
  else throw error;
}
