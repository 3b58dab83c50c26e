"""OpenStack Swift without its daemons' packages: `storage DIR PORT PORT PORT` makes the rings and serves accounts, containers and
objects; `proxy DIR` serves S3."""

import ctypes
import importlib
import os
import signal
import sys

from swift.common.ring.builder import RingBuilder
from swift.common.utils import set_swift_dir
from swift.common.wsgi import run_wsgi

KINDS = {"account": "swift.account.server", "container": "swift.container.server", "object": "swift.obj.server"}
DIES_WITH_ITS_PARENT = 1


def ring(directory, kind, port):
    builder = RingBuilder(2, 1, 0)
    place = {"ip": "127.0.0.1", "port": port, "replication_ip": "127.0.0.1", "replication_port": port}
    builder.add_dev({"id": 0, "region": 1, "zone": 1, "device": "disk", "weight": 1, "meta": "", **place})
    builder.rebalance()
    builder.get_ring().save(f"{directory}/{kind}.ring.gz")


def serve(directory, kind, **more):
    sys.exit(run_wsgi(f"{directory}/{kind}.conf", f"{kind}-server", **more))


directory = sys.argv[2]
set_swift_dir(directory)
if sys.argv[1] == "proxy":
    serve(directory, "proxy")
for kind, port in zip(KINDS, sys.argv[3:]):
    ring(directory, kind, int(port))
for kind, module in KINDS.items():
    module = importlib.import_module(module)
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(DIES_WITH_ITS_PARENT, signal.SIGKILL)
        more = {"global_conf_callback": module.global_conf_callback} if kind == "object" else {}
        serve(directory, kind, **more)
while True:
    os.wait()
