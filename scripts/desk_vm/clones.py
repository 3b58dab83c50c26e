"""A second machine from a copy of the first one's disk."""

import shutil
import time

from desk import Desk
from machine import Failed, Machine


def clone_does_not_disturb_the_original(desk):
    """A copied image with equal machine-ids: the original stays connected, and the administrator is told."""
    original = desk.machine
    desk.wait_works()
    original.ssh("sync")
    # Paused, so that the copy of the disk is of one moment.
    original.qmp("stop")
    copy = original.directory.parent / "copied.qcow2"
    shutil.copy(original.disk, copy)
    original.qmp("cont")
    clone = Desk(Machine("clone", original.image, original.directory.parent, disk=copy).start(), desk.farm)
    try:
        if clone.machine.out("cat /etc/machine-id") != original.out("cat /etc/machine-id"):
            raise Failed("the copy has another machine-id: the check would show nothing")
        identity = desk.explain()["agent"]["identity"]
        clone.wait(lambda: clone.explain().get("agent", {}).get("identity") != identity, "the clone does not use the original's identity", 180)
        time.sleep(30)
        if desk.machine.out("systemctl is-active pcfarm-worker") != "active":
            raise Failed("the original's service ended")
        desk.wait_works()
        events = desk.farm.pcfarm("events")
        if "clone" not in events:
            raise Failed(f"no event tells of the clone:\n{events}")
    finally:
        clone.machine.stop()
