"""A farm on this machine, with TLS and a private PostgreSQL, that the virtual machine's agent joins."""

import json
import os
import re
import subprocess
import time

from machine import Failed, free_port

# Address of this machine in QEMU's user network.
HOST = "10.0.2.2"
START_SECONDS = 180


class Farm:
    def __init__(self, programs, directory):
        self.programs = programs
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.server = None
        self.environment = {**os.environ, "PCFARM_SERVER": f"https://localhost:{self.port}", "HOME": str(directory),
                            "PCFARM_CA": str(directory / "tls/authority.pem")}

    def start(self):
        database = ["--embedded", str(self.directory / "database")]
        tls = ["--tls", str(self.directory / "tls")]
        made = self.run("pcfarm-server", "init", *tls, *database, "--name", f"{HOST},localhost", "--administrator", "root")
        self.environment["PCFARM_TOKEN"] = made.strip().splitlines()[-1]
        log = (self.directory / "server.log").open("ab")
        command = [self.programs / "pcfarm-server", *database, *tls, "--listen", f"127.0.0.1:{self.port}",
                   "--authentication", "required"]
        self.server = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while self.pcfarm("status", check=False).returncode != 0:
            if self.server.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"the server does not serve: see {self.directory / 'server.log'}")
            time.sleep(0.5)
        self.pcfarm("types", "set", "compute", "--controller", "exec:compute")
        return self

    def stop(self):
        if self.server and self.server.poll() is None:
            self.server.terminate()
            self.server.wait(timeout=60)

    def run(self, program, *words, check=True, given=None):
        command = [str(self.programs / program), *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, input=given or "", env=self.environment, timeout=120)
        if check and done.returncode != 0:
            raise Failed(f"`{' '.join(command)}` failed with {done.returncode}: {done.stderr[-800:]}")
        return done.stdout if check else done

    def pcfarm(self, *words, **options):
        return self.run("pcfarm", *words, **options)

    def json(self, *words):
        return json.loads(self.pcfarm(*words, "--output", "json"))

    def join_file(self):
        """Content of /etc/pcfarm/join-token: the token and the server's address."""
        printed = self.pcfarm("join-token", "create", "--uses", "5")
        token = re.search(r"pcfj_[A-Za-z0-9_.-]+", printed).group()
        return f"{token}\nhttps://{HOST}:{self.port}\n"

    def load(self, name, count, seconds):
        """Loads a job of problems that compute for `seconds` each."""
        lines = "".join(json.dumps({"key": str(number), "payload": {"seconds": seconds}}) + "\n" for number in range(count))
        self.pcfarm("job", "load", "-", "--format", "ndjson", "--name", name, "--type", "compute", given=lines)

    def jobs(self, name):
        return [job for job in self.json("jobs", "--all")["jobs"] if job["name"] == name]

    def cancel(self, name):
        for job in self.jobs(name):
            self.pcfarm("job", "cancel", job["job_id"])

    def workstations(self):
        return self.json("workstations")["workstations"]

    def events(self, what):
        return self.json("events", "--what", what)["events"]
