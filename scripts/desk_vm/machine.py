"""A virtual machine: started with QEMU, controlled by SSH, and by QMP for the power button, suspend and screenshots."""

import json
import os
import shlex
import signal
import socket
import subprocess
import time
from pathlib import Path

# Software emulation on a busy machine with two cores.
BOOT_SECONDS = 600
COMMAND_SECONDS = 180


class Failed(Exception):
    """A step of a check did not come out as it should."""


class Machine:
    def __init__(self, name, image, directory, *, disk=None):
        """`disk`: an existing disk that this machine starts from, such as a copy of another machine's."""
        self.name = name
        self.image = image
        self.directory = directory / name
        self.directory.mkdir(parents=True, exist_ok=True)
        self.disk = self.directory / "disk.qcow2"
        # A user's commands are sessions; those of root are the checks' own, and no session.
        self.ports = {"root": free_port(), "user": free_port()}
        self.qemu = None
        backing = disk or image
        self.disk.unlink(missing_ok=True)
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "-b", str(backing), "-F", "qcow2", str(self.disk)], check=True)

    def start(self):
        boot = self.image.parent
        seed = sum(self.name.encode()) % 200
        # The compositor and the X server draw by themselves: no graphics acceleration is assumed.
        command = [
            "qemu-system-x86_64", "-name", self.name, "-machine", "pc", "-m", "1536", "-smp", "2", "-accel", "tcg,thread=multi", "-cpu", "max",
            "-kernel", boot / "kernel", "-initrd", boot / "initrd",
            "-append", "root=/dev/vda rw console=ttyS0 quiet systemd.show_status=0 net.ifnames=1",
            "-drive", f"file={self.disk},if=virtio,cache=unsafe",
            "-device", f"virtio-net-pci,netdev=net,mac=52:54:00:64:73:{seed:02x}",
            "-netdev", f"user,id=net,hostfwd=tcp:127.0.0.1:{self.ports['root']}-:2222,hostfwd=tcp:127.0.0.1:{self.ports['user']}-:22",
            "-device", "virtio-rng-pci", "-vga", "virtio", "-display", "none",
            "-serial", f"file:{self.directory / 'console.log'}", "-monitor", "none",
            "-qmp", f"unix:{self.qmp_path()},server=on,wait=off",
        ]
        log = (self.directory / "qemu.log").open("ab")
        self.qemu = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        self.wait_until(lambda: self.ssh("true", check=False, seconds=20).returncode == 0, "SSH answers", BOOT_SECONDS)
        return self

    def stop(self):
        """Ends the machine as a power cut does."""
        if self.qemu and self.qemu.poll() is None:
            os.killpg(self.qemu.pid, signal.SIGKILL)
            self.qemu.wait(timeout=30)

    def shut_down(self):
        """Shuts down in good order."""
        self.ssh("systemctl poweroff", check=False)
        self.qemu.wait(timeout=BOOT_SECONDS)

    # Commands in the guest.

    def ssh_words(self, user="root", *options):
        port = self.ports.get(user, self.ports["user"])
        return ["ssh", "-q", "-i", str(self.image.parent / "key"), "-p", str(port), "-o", "StrictHostKeyChecking=no",
                "-o", "UserKnownHostsFile=/dev/null", "-o", "ConnectTimeout=20", "-o", "BatchMode=yes", *options, f"{user}@127.0.0.1"]

    def ssh(self, command, *, user="root", check=True, seconds=COMMAND_SECONDS, given=None):
        """Runs a shell command in the guest, without a terminal; returns the completed process."""
        words = [*self.ssh_words(user), command]
        try:
            done = subprocess.run(words, capture_output=True, text=True, input=given or "", timeout=seconds)
        except subprocess.TimeoutExpired as error:
            if check:
                raise Failed(f"{self.name}: `{command}` took longer than {seconds} s") from error
            return subprocess.CompletedProcess(words, 255, "", "timeout")
        if check and done.returncode != 0:
            raise Failed(f"{self.name}: `{command}` failed with {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}")
        return done

    def out(self, command, **options):
        return self.ssh(command, **options).stdout.strip()

    def begin(self, command, *, user="root", terminal=False):
        """Starts a command in the guest and returns its process: standard input and output are pipes."""
        words = [*self.ssh_words(user, *(["-tt"] if terminal else [])), command]
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def put(self, local, remote):
        words = self.ssh_words()
        with open(local, "rb") as file:
            command = f"cat > {shlex.quote(str(remote))} && chmod {oct(os.stat(local).st_mode & 0o777)[2:]} {shlex.quote(str(remote))}"
            subprocess.run([*words, command], stdin=file, check=True, timeout=COMMAND_SECONDS)

    def write(self, path, text, mode="0644"):
        self.ssh(f"mkdir -p $(dirname {path}) && cat > {path} && chmod {mode} {path}", given=text)

    def wait_until(self, condition, what, seconds=COMMAND_SECONDS, pause=0.5):
        """Waits until `condition` returns something true, and returns it; fails with `what` after `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            found = condition()
            if found:
                return found
            if self.qemu.poll() is not None:
                raise Failed(f"{self.name}: the virtual machine ended with {self.qemu.returncode}: see {self.directory}")
            if time.monotonic() > deadline:
                raise Failed(f"{self.name}: not within {seconds} s: {what}")
            time.sleep(pause)

    # The machine's own controls.

    def qmp_path(self):
        # A socket's path is at most 107 bytes long.
        return Path("/tmp") / f"desk-vm-{os.getpid()}-{self.name}.qmp"

    def qmp(self, command, **arguments):
        with socket.socket(socket.AF_UNIX) as stream:
            stream.settimeout(30)
            stream.connect(str(self.qmp_path()))
            lines = stream.makefile("rw")
            lines.readline()  # the greeting
            for asked in ({"execute": "qmp_capabilities"}, {"execute": command, "arguments": arguments}):
                lines.write(json.dumps(asked) + "\n")
                lines.flush()
                while "event" in (answer := json.loads(lines.readline())):
                    pass
                if "error" in answer:
                    raise Failed(f"{self.name}: QMP {command}: {answer['error']['desc']}")
            return answer["return"]

    def screenshot(self, name):
        path = self.directory / f"{name}.png"
        self.qmp("screendump", filename=str(path), format="png")
        return path


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
