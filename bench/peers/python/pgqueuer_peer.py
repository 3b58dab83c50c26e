"""pgqueuer, in one or more processes of their own event loops."""

import asyncio
import multiprocessing
import time
from datetime import timedelta
from importlib.metadata import version

import asyncpg
import peer
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries


async def load(options) -> float:
    connection = await peer.connect(options.database_url)
    queries = Queries.from_asyncpg_connection(connection)
    await queries.install()
    began = time.monotonic()
    for batch in peer.batches(options):
        size = len(batch)
        await queries.enqueue(["problem"] * size, [text.encode() for text in batch], [0] * size)
    await peer.settle(connection)
    await connection.close()
    return time.monotonic() - began


async def work(options, handled, fetching) -> None:
    """Until killed. Writes the number of handled jobs to `handled`."""
    async with asyncpg.create_pool(options.database_url, min_size=options.connections, max_size=options.connections) as pool:
        queue = PgQueuer(AsyncpgPoolDriver(pool))

        @queue.entrypoint("problem")
        async def problem(job: Job) -> None:
            handled.value += 1

        fetching.wait()
        await queue.run(batch_size=options.batch, dequeue_timeout=timedelta(seconds=1))


def worker(options, handled, fetching) -> None:
    uvloop.run(work(options, handled, fetching))


async def wait_until_empty(options, handled) -> float:
    """When the question was asked whose answer was that nothing is left: to answer it is not the peer's time."""
    connection = await peer.connect(options.database_url)
    until = time.monotonic() + 900
    while sum(count.value for count in handled) < options.problems:
        if time.monotonic() > until:
            raise SystemExit("after 900 s still waiting for the handlers")
        await asyncio.sleep(0.002)
    asked = time.monotonic()
    while await connection.fetchval("select exists (select from pgqueuer)"):
        if time.monotonic() > until:
            raise SystemExit("jobs are left")
        await asyncio.sleep(0.002)
        asked = time.monotonic()
    await connection.close()
    return asked


def main() -> None:
    options = peer.arguments(__doc__, batch=1000, connections=8, processes=2)
    load_seconds = uvloop.run(load(options))
    # Without locks: each count has one writer.
    handled = [multiprocessing.Value("q", 0, lock=False) for _ in range(options.processes)]
    # All of them, and the clock.
    fetching = multiprocessing.Barrier(options.processes + 1, timeout=60)
    workers = [multiprocessing.Process(target=worker, args=(options, count, fetching), daemon=True) for count in handled]
    for process in workers:
        process.start()
    fetching.wait()
    began = time.monotonic()
    seconds = uvloop.run(wait_until_empty(options, handled)) - began
    for process in workers:
        process.kill()
    total = sum(count.value for count in handled)
    if total != options.problems:
        raise SystemExit(f"{total} handlers ran for {options.problems} jobs")
    peer.report(
        options,
        peer="pgqueuer",
        version=version("pgqueuer"),
        settings=f"batch_size {options.batch}, asyncpg pool of {options.connections} each, dequeue_timeout 1 s, uvloop, durability durable",
        seconds=seconds,
        load_seconds=load_seconds,
        durable=True,
    )


if __name__ == "__main__":
    main()
