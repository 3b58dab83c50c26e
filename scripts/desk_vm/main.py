"""Runs the checks of scripts/desk-vm, and prints one line for each."""

import argparse
import shutil
import sys
import time
import traceback
from pathlib import Path

import checks
import clones
import image
from desk import Desk
from farm import Farm
from machine import Failed, Machine

ON_A_DESK = [
    checks.package_installs_and_joins,
    checks.idle_terminal_lets_the_agent_begin,
    checks.idle_agent_sleeps,
    checks.console_keyboard_stops_work,
    checks.noise_is_recognised,
    checks.moved_mouse_stops_work,
    checks.device_grab_is_detected,
    checks.doctor_names_the_line_to_change,
    checks.session_without_a_terminal_counts,
    checks.inhibitor_counts_as_presence,
    checks.x11_session_is_seen,
    checks.frozen_helper_counts_as_unknown,
    checks.ended_helper_is_named,
    checks.stopped_agent_does_not_disturb,
    checks.wayland_session_is_seen,
    checks.helper_without_variables_knows_its_seat,
    checks.suspended_machine_goes_on,
]


def main():
    arguments = parse()
    directory = arguments.directory.resolve()
    root = image.ensure(directory / "image")
    run = directory / "run"
    shutil.rmtree(run, ignore_errors=True)
    farm, desk, failures = None, None, []
    try:
        farm = Farm(arguments.programs.resolve(), run / "farm").start()
        machine = Machine("desk", root, run).start()
        desk = Desk(machine, farm)
        desk.install(arguments.package)
        desk.configure()
        chosen = lambda check: not arguments.only or check.__name__ in arguments.only
        for check in filter(chosen, ON_A_DESK):
            perform(failures, check, desk)
        if chosen(checks.upgrade_keeps_the_workstation):
            perform(failures, checks.upgrade_keeps_the_workstation, desk, arguments.next_package)
        if chosen(clones.clone_does_not_disturb_the_original):
            perform(failures, clones.clone_does_not_disturb_the_original, desk)
        if chosen(checks.removal_leaves_nothing):
            perform(failures, checks.removal_leaves_nothing, desk)
    finally:
        for part in (desk and desk.machine, farm):
            if part:
                part.stop()
    print(f"{'FAILED: ' + ', '.join(failures) if failures else 'all checks passed'}; logs are in {run}")
    return 1 if failures else 0


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=Path, required=True)
    parser.add_argument("--package", type=Path, required=True)
    parser.add_argument("--next-package", type=Path, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--only", action="append", default=[])
    return parser.parse_args()


def perform(failures, check, desk, *more):
    began = time.monotonic()
    try:
        check(desk, *more)
        outcome = "ok    "
    except Exception as error:
        outcome = "FAILED"
        failures.append(check.__name__)
        traceback.print_exc() if not isinstance(error, Failed) else print(error)
        keep_logs(desk, check.__name__)
    print(f"{outcome} {check.__name__} ({time.monotonic() - began:.0f} s)", flush=True)


def keep_logs(desk, name):
    log = desk.machine.ssh("journalctl -b --no-pager | tail -n 2000", check=False)
    (desk.machine.directory / f"{name}.log").write_text(log.stdout)


if __name__ == "__main__":
    sys.exit(main())
