"""What the peers in Python share: the command line, the load, and the one line that they print."""

import argparse
import json
import time
from collections.abc import Iterator

import asyncpg

BATCH = 10_000


def arguments(description: str, **settings: int) -> argparse.Namespace:
    """The options that every peer has, and its own settings.

    The settings' defaults are the best that were found; they are options for those who doubt it.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--database-url", required=True)
    parser.add_argument("--problems", type=int, required=True)
    parser.add_argument("--payload-bytes", type=int, default=100)
    parser.add_argument("--processes", type=int, default=settings.pop("processes", 1))
    for name, best in settings.items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=best)
    return parser.parse_args()


def payload(options: argparse.Namespace, number: int) -> str:
    """A JSON object of exactly the wanted length, if that is long enough for its number."""
    bare = len(json.dumps({"number": number, "filler": ""}))
    return json.dumps({"number": number, "filler": "x" * max(0, options.payload_bytes - bare)})


def batches(options: argparse.Namespace) -> Iterator[list[str]]:
    for first in range(0, options.problems, BATCH):
        yield [payload(options, number) for number in range(first, min(first + BATCH, options.problems))]


async def connect(url: str) -> asyncpg.Connection:
    connection = await asyncpg.connect(url)
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        value = await connection.fetchval("select current_setting($1)", setting)
        if value != "on":
            raise SystemExit(f"{setting} is {value}: the figures are worth something only when it is on")
    return connection


async def settle(connection: asyncpg.Connection) -> None:
    """Loading is not measured: what it leaves to be written or vacuumed must not be paid for by the workers."""
    await connection.execute("vacuum (analyze)")
    await connection.execute("checkpoint")


def wait_for(what: str, patience_seconds: float, done) -> None:
    began = time.monotonic()
    while not done():
        if time.monotonic() - began > patience_seconds:
            raise SystemExit(f"after {patience_seconds} s still waiting for {what}")
        time.sleep(0.002)


def report(options: argparse.Namespace, **outcome: object) -> None:
    line = {
        **outcome,
        "problems": options.problems,
        "per_second": options.problems / outcome["seconds"],
        "processes": options.processes,
    }
    print(json.dumps(line), flush=True)
