"""A controller for the checks: computes for `seconds` of a problem's payload."""

import json
import sys
import time

for line in sys.stdin:
    seconds = json.loads(line)["payload"]["seconds"]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))
    print(json.dumps({"result": seconds}), flush=True)
