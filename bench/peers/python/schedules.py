"""What the peers that are schedulers share: the command line, and the one line that they print."""

import argparse
import json


def arguments(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--database-url", required=True)
    parser.add_argument("--schedules", type=int, required=True)
    parser.add_argument("--every-seconds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=60)
    return parser.parse_args()


def report(options: argparse.Namespace, triggers: int, seconds: float, **outcome: object) -> None:
    """A rate of triggers in a time that began when the first came: what reading the schedules takes is not in it."""
    line = {
        **outcome,
        "schedules": options.schedules,
        "triggers": triggers,
        "seconds": seconds,
        "per_second": triggers / seconds,
    }
    print(json.dumps(line), flush=True)
