"""Root file system of the virtual desktop: Debian with systemd, logind, X11 and a Wayland compositor."""

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

# Programs that are built on this machine need a C library that is at least as new.
SUITE = "bookworm" if tuple(map(int, os.confstr("CS_GNU_LIBC_VERSION").split()[1].split("."))) <= (2, 36) else "trixie"
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
DISK_BYTES = 4 << 30

PACKAGES = """
    systemd systemd-sysv systemd-timesyncd dbus dbus-user-session libpam-systemd polkitd udev kmod kbd procps
    linux-image-amd64 initramfs-tools zstd iproute2 openssh-server ca-certificates
    python3 python3-evdev
    xserver-xorg-core xserver-xorg-input-libinput xinit x11-xserver-utils x11-utils xterm openbox python3-xdg
    sway foot
""".split()

GUEST = Path(__file__).parent / "guest"


def ensure(directory):
    """Returns the image of the current recipe in `directory`; builds it if the recipe changed."""
    wanted = recipe()
    stamp = directory / "recipe"
    image = directory / "root.qcow2"
    if image.exists() and stamp.exists() and stamp.read_text() == wanted:
        return image
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    root = directory / "root"
    print(f"Building Debian {SUITE} for the virtual desktop: 3 to 10 minutes …", flush=True)
    run("debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, root, MIRROR,
        log=directory / "debootstrap.log")
    configure(root, directory)
    shutil.copy(next((root / "boot").glob("vmlinuz-*")), directory / "kernel")
    shutil.copy(next((root / "boot").glob("initrd.img-*")), directory / "initrd")
    raw = directory / "root.raw"
    with raw.open("wb") as file:
        file.truncate(DISK_BYTES)
    run("mkfs.ext4", "-q", "-F", "-L", "desk", "-d", root, raw, log=directory / "mkfs.log")
    run("qemu-img", "convert", "-O", "qcow2", raw, image, log=directory / "convert.log")
    raw.unlink()
    shutil.rmtree(root)
    stamp.write_text(wanted)
    return image


def recipe():
    text = json.dumps([SUITE, MIRROR, DISK_BYTES, PACKAGES])
    parts = [text, Path(__file__).read_text(), *(file.read_text() for file in sorted(GUEST.iterdir()) if file.is_file())]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def configure(root, directory):
    """Adds a desktop user, a network by DHCP, the key of this machine, and units that start the desktops."""
    key = directory / "key"
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key, log=directory / "key.log")
    files = {
        "etc/hostname": "desk\n",
        "etc/hosts": "127.0.0.1 localhost desk\n",
        "etc/fstab": "/dev/vda / ext4 rw,noatime 0 1\n",
        "etc/systemd/network/10-all.network": "[Match]\nName=en* eth*\n\n[Network]\nDHCP=ipv4\n",
        "etc/ssh/sshd_config.d/desk.conf": "UseDNS no\nPermitRootLogin prohibit-password\n",
        "etc/modules-load.d/desk.conf": "uinput\n",
        "root/.ssh/authorized_keys": key.with_suffix(".pub").read_text(),
    }
    for path, text in files.items():
        write(root / path, text)
    for file in GUEST.iterdir():
        target = "etc/systemd/system" if file.suffix == ".service" else "usr/local/lib/desk"
        write(root / target / file.name, file.read_text())
    (root / "root/.ssh").chmod(0o700)
    inside = lambda *command: run("chroot", root, *command, log=directory / "configure.log")
    # The group `input` is left out: a session receives its devices from logind.
    inside("useradd", "--create-home", "--shell", "/bin/bash", "ada")
    shutil.copytree(root / "root/.ssh", root / "home/ada/.ssh")
    inside("chown", "-R", "ada:ada", "/home/ada/.ssh")
    inside("systemctl", "enable", "systemd-networkd", "ssh", "control")
    inside("systemctl", "disable", "systemd-timesyncd")
    # Each virtual machine makes its own at the first start.
    write(root / "etc/machine-id", "")


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def run(*command, log):
    words = [str(word) for word in command]
    with log.open("ab") as file:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
        done = subprocess.run(words, stdout=file, stderr=file, stdin=subprocess.DEVNULL, env=environment, timeout=3600)
    if done.returncode != 0:
        raise SystemExit(f"{words[0]} failed with exit code {done.returncode}: see {log}")
