"""Celery on a private Redis, for orientation: Redis keeps its queue in memory, so nothing here survives a power failure.

The same file is the application that Celery's worker processes import.
"""

import json
import mmap
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import peer
import redis
from celery import Celery

COUNTERS = 4096

app = Celery("celery_peer", broker=os.environ.get("PEER_REDIS_URL", "redis://127.0.0.1:1"))
app.conf.update(
    task_ignore_result=True,
    task_store_errors_even_if_ignored=False,
    task_acks_late=False,
    task_create_missing_queues=True,
    worker_prefetch_multiplier=int(os.environ.get("PEER_PREFETCH", "0")),
    worker_send_task_events=False,
    worker_disable_rate_limits=True,
    worker_enable_remote_control=False,
    broker_connection_retry_on_startup=True,
)

counters = None


def handled() -> mmap.mmap:
    """A file of counters, each with one writer: the process whose number modulo their count it is."""
    global counters
    if counters is None:
        with open(os.environ["PEER_COUNTERS"], "r+b") as file:
            counters = mmap.mmap(file.fileno(), 8 * COUNTERS)
    return counters


@app.task(name="problem")
def problem(number: int, filler: str) -> None:
    at = 8 * (os.getpid() % COUNTERS)
    (count,) = struct.unpack_from("<q", handled(), at)
    struct.pack_into("<q", handled(), at, count + 1)


def total() -> int:
    return sum(struct.unpack(f"<{COUNTERS}q", handled()[:]))


def start_redis(directory: Path) -> tuple[subprocess.Popen, str]:
    """On a free port, without files, its output into the void."""
    program = shutil.which("redis-server")
    if program is None:
        raise SystemExit("redis-server is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no", "--dir", str(directory)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    url = f"redis://127.0.0.1:{port}/0"

    def answers() -> bool:
        try:
            return redis.Redis.from_url(url).ping()
        except redis.ConnectionError:
            return False

    peer.wait_for("Redis", 20, answers)
    return server, url


def load(options) -> float:
    began = time.monotonic()
    with app.producer_pool.acquire(block=True) as producer:
        for batch in peer.batches(options):
            for text in batch:
                problem.apply_async(kwargs=json.loads(text), producer=producer)
    return time.monotonic() - began


def start_workers(options) -> list[subprocess.Popen]:
    pool = ["--pool", "solo"] if options.solo else ["--pool", "prefork", "--concurrency", str(options.concurrency)]
    command = [sys.executable, "-m", "celery", "--app", "celery_peer", "--quiet", "worker", *pool]
    command += ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "ERROR"]
    count = options.concurrency if options.solo else 1
    here = Path(__file__).parent
    return [
        subprocess.Popen(
            [*command, "--hostname", f"worker{number}@localhost"],
            cwd=here,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        for number in range(count)
    ]


def main() -> None:
    options = peer.arguments(__doc__, solo=1, concurrency=2, prefetch=0)
    with tempfile.TemporaryDirectory(prefix="peer-celery-") as directory:
        counter_file = Path(directory, "counters")
        counter_file.write_bytes(bytes(8 * COUNTERS))
        server, url = start_redis(Path(directory))
        os.environ.update(PEER_REDIS_URL=url, PEER_COUNTERS=str(counter_file), PEER_PREFETCH=str(options.prefetch), C_FORCE_ROOT="yes", PYTHONWARNINGS="ignore")
        app.conf.broker_url = url
        client = redis.Redis.from_url(url)
        workers = []
        try:
            load_seconds = load(options)
            workers = start_workers(options)
            # A worker imports its application for a while: the time runs from the first task that it takes.
            peer.wait_for("the first task", 60, lambda: client.llen("celery") < options.problems)
            began = time.monotonic()
            peer.wait_for("the tasks", 900, lambda: total() >= options.problems)
            seconds = time.monotonic() - began
            left = client.llen("celery")
            redis_version = client.info("server")["redis_version"]
        finally:
            for process in workers:
                os.killpg(process.pid, signal.SIGKILL)  # with the pool's processes
                process.wait()
            server.kill()
            server.wait()
    if left or total() != options.problems:
        raise SystemExit(f"{total()} handlers ran for {options.problems} jobs, and {left} are left")
    pool = f"{options.concurrency} processes of --pool solo" if options.solo else f"--pool prefork --concurrency {options.concurrency}"
    peer.report(
        options,
        peer="Celery",
        version=f"{version('celery')} with Redis {redis_version}",
        settings=f"{pool}, worker_prefetch_multiplier {options.prefetch}, no results, early acknowledgement, no rate limits, gossip, mingle or heartbeat",
        seconds=seconds,
        load_seconds=load_seconds,
        durable=False,
    )


if __name__ == "__main__":
    main()
