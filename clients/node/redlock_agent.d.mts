/** The lock can't be had, or there is no agent. */
export class LockError extends Error {
  /** Of once, what another kind of client has remembered, and isn't JSON. */
  readonly value?: unknown;
}

/** Another holder has the lock. */
export class LockHeld extends LockError {
  /** When to try again, in seconds. */
  readonly retryAfter: number;
}

/** Nobody gets locks now: too few masters answer, there is no agent, or it has no room or is about to stop. */
export class LockUnavailable extends LockError {
  /** When to try again, in seconds. */
  readonly retryAfter: number;
}

/** The work of oncePer or once is done. */
export class LockDone extends LockError {
  /** What once remembers, as JSON. */
  readonly result?: string;
  /** When the next period of oncePer begins, in seconds. */
  readonly retryAfter?: number;
}

/** The lock was lost while it was held: the work may overlap with another holder's. */
export class LockLost extends LockError {}

/** The work of oncePer or once is done, and the next caller may do it again. */
export class LockNotRemembered extends LockError {
  /** What the work has returned. */
  readonly value: unknown;
}

/** Times are in seconds. */
export interface LockOptions {
  /** How long to wait; without it without limit, and with 0 not at all. */
  wait?: number;
  ttl?: number;
  maxHold?: number;
  /** At least the ttl: frees the keys if this process is stopped, or its event loop is busy, for so long. */
  heartbeat?: number;
  label?: string;
  /** How many may hold the key at a time. */
  concurrency?: number;
  /** With values, such as { id: "CUS_1" }, the keys are templates, as in a rule: customer:{id:id}. */
  values?: Record<string, string>;
  /** A period in which the work is to succeed once: others get LockDone. */
  oncePer?: number;
  /** How long the value that unlock() is given is kept: others get LockDone with it. */
  once?: number;
  /** Ends the wait. */
  signal?: AbortSignal;
}

/** A lock that is held. */
export interface Lock extends AsyncDisposable {
  /** A number that is larger than those of all holders before, of the slot if there are several. */
  readonly fence: number;
  readonly slot: number;
  /** Aborted when the lock is lost or released. */
  readonly signal: AbortSignal;
  /** Whether the lock is certain now: after work that keeps the event loop busy, await something first. */
  readonly held: boolean;
  /** Throws LockLost unless the lock is certain now. */
  check(): void;
  /** Releases the lock, and throws LockLost if it had been lost, or LockNotRemembered. */
  unlock(options?: { failed?: boolean; value?: unknown }): Promise<void>;
}

type Options = Omit<LockOptions, "oncePer" | "once">;

/** The agent at a Unix socket, or at host:port with its token. */
export class Agent {
  constructor(address?: string | URL, token?: string, options?: { patience?: number });
  withLock<T>(keys: string | string[], work: (lock: Lock) => T | Promise<T>): Promise<T>;
  withLock<T>(keys: string | string[], options: LockOptions, work: (lock: Lock) => T | Promise<T>): Promise<T>;
  oncePer(key: string, period: number, work: (lock: Lock) => unknown): Promise<boolean>;
  oncePer(key: string, period: number, options: Options, work: (lock: Lock) => unknown): Promise<boolean>;
  once<T>(key: string, keep: number, work: (lock: Lock) => T | Promise<T>): Promise<T>;
  once<T>(key: string, keep: number, options: Options, work: (lock: Lock) => T | Promise<T>): Promise<T>;
  lock(keys: string | string[], options?: LockOptions): Promise<Lock>;
}
