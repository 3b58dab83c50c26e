"""Dask's distributed scheduler with worker processes, for orientation: its queue is in the scheduler's memory."""

import json
import time
from importlib.metadata import version

import dask
import peer

# Before `distributed` is imported: what is only watched costs time for each task.
dask.config.set(
    {
        "distributed.admin.event-loop": "uvloop",
        "distributed.scheduler.work-stealing": False,
        "distributed.scheduler.active-memory-manager.start": False,
        "distributed.scheduler.worker-saturation": float("inf"),
        "distributed.worker.profile.enabled": False,
        "distributed.worker.memory.spill": False,
    }
)

from distributed import Client, LocalCluster, wait  # noqa: E402


def problem(text: str) -> bool:
    json.loads(text)
    return True


def known_tasks(dask_scheduler) -> int:
    return len(dask_scheduler.tasks)


def main() -> None:
    options = peer.arguments(__doc__, workers=2, threads=1, batch=1000)
    settings = dict(processes=True, threads_per_worker=options.threads, dashboard_address=None, silence_logs=50)
    with LocalCluster(n_workers=0, **settings) as cluster, Client(cluster) as client:
        began = time.monotonic()
        futures = []
        for batch in peer.batches(options):
            futures += client.map(problem, batch, pure=False, batch_size=options.batch)
        peer.wait_for("the scheduler", 300, lambda: client.run_on_scheduler(known_tasks) >= options.problems)
        load_seconds = time.monotonic() - began

        cluster.scale(options.workers)
        client.wait_for_workers(options.workers, timeout=60)
        began = time.monotonic()
        wait(futures, timeout=900)
        seconds = time.monotonic() - began
        handled = sum(client.gather(futures))
    if handled != options.problems:
        raise SystemExit(f"{handled} tasks were done of {options.problems}")
    peer.report(
        options,
        peer="Dask",
        version=version("distributed"),
        settings=f"{options.workers} worker processes of {options.threads} thread, worker-saturation inf, no stealing, memory manager or dashboard, uvloop",
        seconds=seconds,
        load_seconds=load_seconds,
        durable=False,
    )


if __name__ == "__main__":
    main()
