"""Checked by make clients with mypy, and never run: what programs may write with the hints of redlock_agent.py."""

from redlock_agent import Agent, AsyncAgent, AsyncHold, Hold, LockDone, LockError, LockHeld, LockNotRemembered

agent = Agent("10.0.0.5:7070", token="the token", patience=5)


def pay(hold: Hold) -> int:
    hold.check()
    return hold.fence + hold.slot


@agent.lock("report", wait=0)
def report(day: str) -> str:
    return day


def block() -> str:
    try:
        with agent.lock("order:42", "order:43", wait=2, ttl=10, max_hold=60, heartbeat=10, label="pay", concurrency=2, values={"id": "42"}, once_per=60) as hold:
            pay(hold)
    except LockHeld as e:
        print(e.retry_after + 1)
    except (LockDone, LockNotRemembered) as e:
        print(e)
    except LockError:
        pass
    ran: bool = agent.once_per("report", 3600, pay, wait=2)
    paid: int = agent.once("order:42", 86400, pay, ttl=10, max_hold=60, heartbeat=10, label="pay")
    return report("Monday") * paid * ran


async def pay_later(hold: AsyncHold) -> int:
    return hold.fence


async def blocks() -> int:
    later = AsyncAgent()
    lock = later.lock("order:42", wait=2)
    async with lock as hold:
        print(hold.held, lock.fence, lock.slot)
    await later.once_per("report", 3600, pay_later, label="report")
    return await later.once("order:42", 86400, pay_later, wait=2)


agent.lock("order:42", waits=2)  # type: ignore[call-arg]
agent.once("order:42", 86400, pay, concurrency=2)  # type: ignore[call-arg]
agent.lock("order:42", wait="2s")  # type: ignore[arg-type]
