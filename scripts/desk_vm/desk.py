"""A virtual desktop with PC Farm's agent: its settings, what the agent says, and input by virtual devices."""

import json
import re

from machine import Failed

# A loaded machine that emulates another one in software: bounds are generous, and no check measures speed.
SOON = 60

SETTINGS = {
    "start_after": "15",
    "resume_after": "15",
    "load": "inf",
    "free_memory": "0",
}

PROGRAM = """
[[program]]
name = "compute"
mode = "fed"
path = "/usr/bin/python3"
args = ["/usr/local/lib/desk/compute.py"]
"""


class Desk:
    def __init__(self, machine, farm):
        self.machine = machine
        self.farm = farm

    def install(self, package):
        self.machine.put(package, "/root/pcfarm-worker.deb")
        self.machine.write("/etc/pcfarm/join-token", self.farm.join_file(), mode="0600")
        self.machine.ssh("dpkg -i /root/pcfarm-worker.deb")

    def configure(self, more="", **presence):
        """Writes settings of the table [presence] and further tables, and starts the agent anew."""
        text = self.machine.out("cat /usr/share/pcfarm-worker/worker.toml")
        server = re.search(r"https://\S+", self.farm.join_file()).group()
        for name, value in {**SETTINGS, **presence}.items():
            text, count = re.subn(rf"^# {name} = .*$", f"{name} = {value}", text, count=1, flags=re.MULTILINE)
            if not count:
                raise Failed(f"worker.toml of the package does not name the setting {name}")
        text = f'server = ["{server}"]\n{text}\n{PROGRAM}\n{more}'
        self.machine.write("/etc/pcfarm/worker.toml", text, mode="0640")
        self.machine.ssh("chgrp pcfarm-worker /etc/pcfarm/worker.toml && systemctl restart pcfarm-worker")

    def explain(self):
        said = self.machine.ssh("pcfarm-worker explain --output json", check=False)
        return json.loads(said.stdout) if said.returncode == 0 else {"activity": "unknown", "reasons": [said.stderr], "signals": []}

    def works(self):
        return self.explain()["activity"] == "works"

    def computes(self):
        """Whether a program of the farm used a processor in the last two seconds."""
        used = "cat /proc/$(pgrep -d '/stat /proc/' -f '/[c]ompute.py')/stat 2>/dev/null | awk '{ n += $14 } END { print n + 0 }'"
        first, second = map(int, self.machine.out(f"{used}; sleep 2; {used}").split())
        return second - first > 20

    def wait_works(self, seconds=SOON * 2):
        self.wait(self.works, "the agent works", seconds)

    def wait_rests(self, seconds=SOON):
        self.wait(lambda: not self.works(), "the agent does not work", seconds)

    def wait(self, condition, what, seconds=SOON):
        try:
            return self.machine.wait_until(condition, what, seconds)
        except Failed as error:
            said = self.machine.ssh("pcfarm-worker explain", check=False)
            raise Failed(f"{error}\n{said.stdout}{said.stderr}") from error

    def stays(self, condition, what, looks=4):
        for _ in range(looks):
            if not condition():
                raise Failed(f"not at every look: {what}\n{self.machine.out('pcfarm-worker explain')}")

    def device(self, kind, name):
        return Device(self.machine, kind, name)

    def typed(self):
        """Types a key on a virtual keyboard; the keyboard stays."""
        with self.device("keyboard", "desk keyboard") as keyboard:
            keyboard.does("key")


class Device:
    """A device made with uinput in the guest; it is removed when the block ends."""

    def __init__(self, machine, kind, name):
        self.machine, self.command = machine, f"device.py {kind} {name}"
        self.process = machine.begin(f"python3 /usr/local/lib/desk/device.py {kind} '{name}'")
        words = self.process.stdout.readline().split()
        if not words or words[0] != "ready":
            raise Failed(f"no virtual {kind} was made")
        self.path = words[1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(timeout=60)

    def does(self, command):
        self.begins(command)
        self.ended()

    def begins(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def breaks_off(self):
        """Ends a command before its time; the device disappears."""
        self.machine.ssh(f"pkill -f '[d]{self.command[1:]}'")

    def ended(self):
        if self.process.stdout.readline().strip() != "done":
            raise Failed("the virtual device is gone")
