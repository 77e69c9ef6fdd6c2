// Compiled by make clients, and never run: what programs may write with redlock_agent.d.mts.
import { Agent, LockDone, LockError, LockHeld, LockLost, LockNotRemembered, LockUnavailable, type Lock, type LockOptions } from "../node/redlock_agent.mjs";

const agent = new Agent("10.0.0.5:7070", "the token", { patience: 5 });
const options: LockOptions = { wait: 2, ttl: 10, maxHold: 60, heartbeat: 10, label: "pay", concurrency: 2, values: { id: "42" }, signal: new AbortController().signal };

export const local = new Agent(new URL("file:///run/redlock/redlock.sock"));
export const fence: number = await agent.withLock("order:42", (lock) => lock.fence);
export const text: string = await agent.withLock(["order:42", "order:43"], options, async (lock: Lock) => {
  lock.check();
  return `${lock.held} ${lock.slot} ${lock.signal.aborted}`;
});
export const ran: boolean = await agent.oncePer("report", 3600, { wait: 0 }, () => {});
export const paid: { id: number } = await agent.once("order:42", 86_400, async () => ({ id: 1 }));

try {
  await using lock = await agent.lock("order:42", { once: 60 });
  await lock.unlock({ value: 1 });
  await lock.unlock({ failed: true });
} catch (error) {
  if (error instanceof LockHeld || error instanceof LockUnavailable) console.log(error.retryAfter.toFixed());
  if (error instanceof LockDone) console.log(error.result?.length, error.retryAfter?.toFixed());
  if (error instanceof LockNotRemembered) console.log(error.value);
  if (error instanceof LockLost || error instanceof LockError) console.log(error.message);
}

// @ts-expect-error there is no such option
await agent.lock("order:42", { waits: 2 });
// @ts-expect-error the period has its own place
await agent.oncePer("report", 3600, { oncePer: 3600 }, () => {});
