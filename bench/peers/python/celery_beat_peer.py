"""Celery's scheduler (beat) on a private Redis: how many tasks a second it sends when so many entries are due.

The same file is the application that beat imports. Nobody works the tasks off, to its advantage.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import celery_peer
import peer
import redis
import schedules
from celery import Celery

app = Celery("celery_beat_peer", broker=os.environ.get("PEER_REDIS_URL", "redis://127.0.0.1:1"))
app.conf.update(
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
    # In memory: the default one writes a file, too.
    beat_scheduler="celery.beat:Scheduler",
    beat_schedule={
        f"s{number}": {"task": "trigger", "schedule": float(os.environ["PEER_EVERY"]), "kwargs": {"number": number}}
        for number in range(int(os.environ.get("PEER_SCHEDULES", "0")))
    },
)


@app.task(name="trigger")
def trigger(number: int) -> None:
    pass


def main() -> None:
    options = schedules.arguments(__doc__)
    with tempfile.TemporaryDirectory(prefix="peer-celery-beat-") as directory:
        server, url = celery_peer.start_redis(Path(directory))
        client = redis.Redis.from_url(url)
        settings = {"PEER_REDIS_URL": url, "PEER_SCHEDULES": str(options.schedules), "PEER_EVERY": str(options.every_seconds)}
        command = [sys.executable, "-m", "celery", "--app", "celery_beat_peer", "--quiet", "beat", "--loglevel", "ERROR", "--pidfile", ""]
        beat = subprocess.Popen(
            command, cwd=Path(__file__).parent, env={**os.environ, **settings}, stdout=subprocess.DEVNULL, start_new_session=True
        )
        try:
            peer.wait_for("the first task", 600, lambda: client.llen("celery") > 0)
            began, before = time.monotonic(), client.llen("celery")
            time.sleep(options.seconds)
            triggers, seconds = client.llen("celery") - before, time.monotonic() - began
        finally:
            os.killpg(beat.pid, signal.SIGKILL)
            beat.wait()
            server.kill()
            server.wait()
    schedules.report(
        options,
        triggers,
        seconds,
        peer="Celery's beat with Redis",
        version=version("celery"),
        settings="entries in memory, nobody works the tasks off",
        durable=False,
    )


if __name__ == "__main__":
    main()
