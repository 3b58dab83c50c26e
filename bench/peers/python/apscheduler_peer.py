"""APScheduler with its job store in PostgreSQL: how many jobs a second it starts when so many are due.

What a job does is to count, to its advantage: nothing is enqueued anywhere. The store's writes of next run times are durable.
"""

import itertools
import logging
import os
import time
from datetime import timezone
from importlib.metadata import version

import peer
import psycopg
import schedules
from apscheduler.executors.debug import DebugExecutor
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.interval import IntervalTrigger
from sqlalchemy import create_engine

counted = itertools.count()
last = 0


def trigger(number: int) -> None:
    global last
    last = next(counted) + 1


def main() -> None:
    options = schedules.arguments(__doc__)
    logging.getLogger("apscheduler").setLevel(logging.CRITICAL)  # it tells of each run that it missed
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(options.database_url))
    scheduler = BackgroundScheduler(
        jobstores={"default": SQLAlchemyJobStore(engine=engine)},
        # In the scheduler's own thread, which is quicker than a pool of threads with jobs that do next to nothing.
        executors={"default": DebugExecutor()},
        # Of a job that is late, one run: what comes is what was due, and not the same a second time.
        job_defaults={"coalesce": True, "misfire_grace_time": None},
        timezone=timezone.utc,
    )
    for number in range(options.schedules):
        every = IntervalTrigger(seconds=options.every_seconds, timezone=timezone.utc)
        scheduler.add_job(trigger, every, kwargs={"number": number}, id=f"s{number}")
    # Writes them all to its store first.
    scheduler.start()
    peer.wait_for("the first job", 120, lambda: last > 0)
    began, before = time.monotonic(), last
    time.sleep(options.seconds)
    triggers, seconds = last - before, time.monotonic() - began
    schedules.report(
        options,
        triggers,
        seconds,
        peer="APScheduler with PostgreSQL",
        version=version("apscheduler"),
        settings="SQLAlchemyJobStore, run in the scheduler's thread, missed runs coalesced; its jobs do nothing",
        durable=True,
    )
    # Its thread may be amid forty thousand jobs, and is not waited for.
    os._exit(0)


if __name__ == "__main__":
    main()
