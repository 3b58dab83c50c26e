"""Runs the steps of scripts/nightly one after the other, and writes the report after each."""

import argparse
import fcntl
import json
import os
import platform
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

from report import left_out, left_out_of_step, limit, markdown, still_holds
from steps import features_of, ignored_in, setup, steps

ROOT = Path(__file__).resolve().parent.parent.parent
TARGET = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
STATE = TARGET / "nightly"
LITTLE_DISK = 15 << 30
TAIL = 40
GRACE = 30  # seconds between SIGTERM and SIGKILL: the test cluster stops its PostgreSQL meanwhile


class Stop:
    """Set by a signal: the running step is ended, and the rest is not run."""

    name = ""

    @classmethod
    def on(cls, number, _):
        cls.name = signal.Signals(number).name


def say(text):
    print(text, file=sys.stderr, flush=True)


def ask(command):
    """Output of a command; empty if it failed or is missing."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def read(path):
    return path.read_text(errors="replace") if path.exists() else ""


def load(path):
    try:
        return json.loads(read(path))
    except ValueError:
        return {}


def write(path, text):
    """Replaces a file by a rename, so that a stop at any time leaves a whole one."""
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    new.replace(path)


def free_disk():
    return f"{shutil.disk_usage(TARGET).free / 2**30:.0f} GiB"


def machine(commit, changed):
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "commit": commit + (" with changes" if changed else ""),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "memory": f"{memory:.1f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "PostgreSQL": ask(setup('"$(postgres_program postgres)" --version')),
        "Rust": ask(["rustc", "--version"]),
        "free disk at the start": free_disk(),
    }


def members(session):
    """Processes of a session: nextest gives each test a process group of its own."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if path.read_text().rpartition(")")[2].split()[3] == str(session):
                yield int(path.parent.name)
        except OSError:
            pass  # the process has ended


def send(kill, target, number):
    """Sends a signal. Returns whether the target still exists."""
    try:
        kill(target, number)
        return True
    except (ProcessLookupError, PermissionError):
        return False


def end(process):
    """Ends a step's process group, and then the rest of its session."""
    send(os.killpg, process.pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE
    while time.monotonic() < deadline:
        process.poll()
        if not send(os.killpg, process.pid, 0):
            break
        time.sleep(0.1)
    send(os.killpg, process.pid, signal.SIGKILL)
    for pid in members(process.pid):
        send(os.kill, pid, signal.SIGKILL)
    process.wait()


def run(command, log, deadline, environment):
    """Runs a command in a session of its own. Returns its exit status, or None if the deadline or a signal ended it."""
    log.write(f"$ {shlex.join(command)}\n")
    log.flush()
    environment = {**os.environ, "CARGO_TERM_COLOR": "never", "NO_COLOR": "1", **environment}
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                               start_new_session=True)
    while not Stop.name and time.monotonic() < deadline:
        try:
            status = process.wait(0.5)
            log.write(f"[exit {status}]\n")
            log.flush()
            return status
        except subprocess.TimeoutExpired:
            pass
    end(process)
    return None


def run_commands(step, commands, log_path, seconds, late):
    """Runs a step's commands. Returns its outcome and the reason."""
    deadline = time.monotonic() + seconds
    environment = {"PCFARM_LEFT_OUT": str(log_path.with_suffix(".left-out")), **step.environment}
    failed = []
    with log_path.open("a") as log:
        for number, command in enumerate([setup(step.tools), *commands]):
            status = run(command, log, deadline, environment)
            if status is None:
                return ("not run", f"interrupted by {Stop.name}") if Stop.name else late
            if status and number == 0:
                return "skipped", "a tool is missing: " + read(log_path).splitlines()[-2]
            if status:
                failed.append(f"exit status {status}: {shlex.join(command)}")
                if not step.all_commands:
                    break
    return "failed" if failed else "passed", "; ".join(failed)


def run_step(step, place, options, left):
    """Runs a step within its limit, and returns its result."""
    log_path = place / f"{step.name}.log"
    noted, report = log_path.with_suffix(".left-out"), log_path.with_suffix(".json")
    for path in (log_path, noted, report):
        path.unlink(missing_ok=True)
    fill = {"{seed}": str(random.randrange(1 << 31)), "{json}": str(report)}
    commands = [[fill.get(word, word) for word in command] for command in step.commands]
    seconds, late = limit(step, options.limit, left)
    say(f"== {step.name}: at most {seconds / 60:.0f} minutes, log in {log_path}")
    began = time.monotonic()
    outcome, why = run_commands(step, commands, log_path, seconds, late)
    took, log, report = time.monotonic() - began, read(log_path), load(report)
    figures = step.figures(log, report)
    problem = figures.pop("problem", "")
    if outcome == "passed" and problem:
        outcome, why = "failed", problem
    tail = log.splitlines()[-TAIL:] if outcome != "passed" else []
    if outcome == "failed":
        say("\n".join(tail))
    say(f"   {outcome} after {took / 60:.1f} minutes {why}".rstrip())
    return {**blank(step, why), "outcome": outcome, "seconds": round(took, 1), "figures": figures, "tail": tail,
            "left_out": left_out_of_step(read(noted), report), "log": str(log_path),
            "commands": [shlex.join(command) for command in commands]}


def blank(step, why):
    """Result of a step that has not run."""
    return {"step": step.name, "outcome": "not run", "why": why, "seconds": 0, "figures": {}, "left_out": [], "tail": [],
            "log": "", "commit": "", "key": "", "commands": [shlex.join(command) for command in step.commands]}


def spare_disk(step):
    """Removes files that only this step uses, if little disk is left. Inputs of fuzzing stay."""
    if step.name not in ("fuzz", "coverage") or shutil.disk_usage(TARGET).free >= LITTLE_DISK:
        return
    say(f"   {free_disk()} of disk are free: removing the build of {step.name}")
    if step.name == "coverage":
        # Programs outside deps/ are the ordinary ones again.
        for name in filter(lambda name: "/deps/" in name, read(TARGET / "coverage/executables").splitlines()):
            Path(name).unlink(missing_ok=True)
    else:
        for path in (TARGET / "fuzz").iterdir():
            if path.is_dir() and path.name not in ("inputs", "found"):
                shutil.rmtree(path, ignore_errors=True)


def publish(place, facts, results, ignored):
    facts["free disk at the end"] = free_disk()
    results = list(results.values())
    report = {"machine": facts, "steps": results, "left_out": left_out(results, ignored)}
    write(place / "report.json", json.dumps(report, indent=1) + "\n")
    write(place / "report.md", markdown(report))


def run_all(all_steps, wanted, options, place, ignored):
    """Runs the wanted steps that have not passed for this commit. Returns the exit status."""
    began, commit, changed = time.monotonic(), ask(["git", "rev-parse", "HEAD"]), bool(ask(["git", "status", "--porcelain"]))
    clean_commit = "" if changed else commit
    kept = {} if options.fresh else load(STATE / "state.json")
    if options.fresh:
        (STATE / "planted.jsonl").unlink(missing_ok=True)
    facts, results = machine(commit, changed), {}
    for step in all_steps:
        key = f"{step.commands} {step.environment}"
        earlier = still_holds(kept.get(step.name), key, clean_commit)
        why = "not reached" if step in wanted else "not chosen (--only)"
        results[step.name] = {**kept[step.name], "earlier": True} if earlier else {**blank(step, why), "key": key}
    for step in wanted:
        result, left = results[step.name], options.hours * 3600 - (time.monotonic() - began)
        if result.get("earlier"):
            say(f"== {step.name}: passed earlier for this commit (--fresh runs it again)")
        elif Stop.name or left <= 0:
            result["why"] = f"interrupted by {Stop.name}" if Stop.name else "time ran out (--hours)"
        else:
            result["why"] = "started, and not ended when this report was written"
            publish(place, facts, results, ignored)
            result.update({**run_step(step, place, options, left), "commit": clean_commit, "key": result["key"]})
            write(STATE / "state.json", json.dumps({**kept, **{name: one for name, one in results.items() if one["commit"]}}))
            spare_disk(step)
        publish(place, facts, results, ignored)
    say(f"report: {place}/report.md")
    return 0 if all(results[step.name]["outcome"] == "passed" for step in wanted) else 1


def minutes_of(text):
    name, minutes = text.split("=")
    return name, float(minutes)


def parser():
    parser = argparse.ArgumentParser("scripts/nightly", add_help=False, allow_abbrev=False, usage="see scripts/nightly --help")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--report", type=Path, default=STATE)
    parser.add_argument("--hours", type=float, default=float("inf"))
    parser.add_argument("--limit", type=minutes_of, action="append", default=[])
    for flag, amount in [("--faults", 160), ("--orders", 260), ("--seconds", 60), ("--examples", 100), ("--seed", None)]:
        parser.add_argument(flag, type=int, default=amount)
    # To try this script: parts of the suite, of the planted bugs and of the parsers.
    for flag in ("--tests", "--bugs", "--parsers"):
        parser.add_argument(flag, default="")
    return parser


def hold_lock(arguments):
    """Refuses to run beside another scripts/nightly of this target folder. Returns the lock, held until the program ends."""
    lock = (STATE / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        arguments.error(f"another scripts/nightly uses {STATE}")
    return lock


def main():
    arguments = parser()
    options = arguments.parse_args()
    options.only, options.limit = [name for names in options.only for name in names.split(",")], dict(options.limit)
    metadata = ask(["cargo", "metadata", "--no-deps", "--format-version", "1"])
    features = features_of(json.loads(metadata)) if metadata else {}
    sources = [ROOT / name for name in ask(["git", "ls-files", "*.rs"]).splitlines()]
    ignored = [pair for path in sources for pair in ignored_in(read(path))]
    all_steps = steps(options, TARGET, features, ignored, nextest=bool(ask(["cargo", "nextest", "--version"])))
    names = [step.name for step in all_steps]
    for name in [*options.only, *options.limit]:
        if name not in names:
            arguments.error(f"no step is named {name}: there are {', '.join(names)}")
    if options.list:
        print("\n".join(f"{step.name:14} at most {step.minutes} minutes  {step.about}" for step in all_steps))
        return 0
    place = options.report.resolve()
    for directory in (STATE, place):
        directory.mkdir(parents=True, exist_ok=True)
    _lock = hold_lock(arguments)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, Stop.on)
    wanted = [step for step in all_steps if not options.only or step.name in options.only]
    return run_all(all_steps, wanted, options, place, ignored)


if __name__ == "__main__":
    sys.exit(main())
