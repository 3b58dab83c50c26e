"""Checks on a virtual desktop. Each is one function of a Desk; they run in this order and leave the agent idle."""

import json

from machine import Failed


def expect(condition, what):
    if not condition:
        raise Failed(what)


def package_installs_and_joins(desk):
    """The package starts the service, and the farm lists the workstation."""
    expect(desk.machine.out("systemctl is-active pcfarm-worker") == "active", "the service is not active")
    desk.wait(lambda: any(w["hostname"] == "desk" for w in desk.farm.workstations()), "the farm lists the workstation")
    expect(desk.machine.ssh("test -e /etc/pcfarm/join-token", check=False).returncode != 0, "the join token was left behind")


def idle_terminal_lets_the_agent_begin(desk):
    """An idle pts and listings of /dev/pts do not stop the agent; typing does."""
    terminal = desk.machine.begin("cat", user="ada", terminal=True)
    try:
        desk.wait(lambda: desk.machine.out("ls /dev/pts | grep -c [0-9] || true") != "0", "the terminal is open")
        desk.wait_rests()
        desk.wait_works()
        desk.machine.ssh("for i in $(seq 40); do ls /dev/pts /dev/input /dev >/dev/null; done")
        desk.stays(desk.works, "listings of devices let the agent work")
        terminal.stdin.write("typed\n")
        terminal.stdin.flush()
        desk.wait_rests()
    finally:
        terminal.kill()
    desk.wait_works()


def idle_agent_sleeps(desk):
    """At most 8 wake-ups in 5 s while nobody is there and there is nothing to do."""
    count = "cat /proc/$(systemctl show -P MainPID pcfarm-worker)/task/*/status | awk '/^voluntary_ctxt/ { n += $2 } END { print n }'"
    rates = []
    for _ in range(7):
        first, second = map(int, desk.machine.out(f"{count}; sleep 5; {count}").split())
        rates.append(second - first)
    print(f"    wake-ups in 5 s: {rates}")
    expect(sorted(rates)[3] <= 8, f"more than 8 wake-ups in 5 s: {rates}")


def console_keyboard_stops_work(desk):
    desk.wait_works()
    with desk.device("keyboard", "console keyboard") as keyboard:
        desk.wait_works()
        keyboard.does("key")
        desk.wait_rests()
        # The removal of the device is no activity: the agent begins again after the usual time.
    desk.wait_works()


def x11_session_is_seen(desk):
    session(desk, "desk-x11", "x11")


def wayland_session_is_seen(desk):
    session(desk, "desk-sway", "wayland")


def session(desk, unit, kind):
    """The helper starts with the session; a keyboard stops the work; the agent works in an idle session."""
    desk.machine.ssh(f"systemctl start {unit}")
    helper = lambda: desk.machine.ssh("pgrep -u ada -f '[p]cfarm-worker session'", check=False).stdout.strip()
    desk.wait(helper, f"the session helper runs in {kind}", 120)
    desk.wait_works()
    desk.machine.screenshot(kind)
    idle_agent_sleeps(desk)
    noise_is_recognised(desk)
    with desk.device("keyboard", f"{kind} keyboard") as keyboard:
        desk.wait_works()
        keyboard.does("key")
        desk.wait_rests()
    desk.wait_works()


def helper_without_variables_knows_its_seat(desk):
    """As gnome-session does, the user's service manager starts the helper, without the session's variables; noise is no person there."""
    helpers = lambda: desk.machine.out("pgrep -u ada -f '[p]cfarm-worker session' || true").split()
    variables = lambda: desk.machine.out(f"cat /proc/{helpers()[0]}/environ | tr '\\0' '\\n'")
    desk.machine.ssh("systemctl start desk-sway")
    desk.wait(helpers, "the session helper runs", 120)
    display = [line for line in variables().splitlines() if line.startswith(("WAYLAND_DISPLAY=", "XDG_SESSION_TYPE="))]
    expect(len(display) == 2, f"the helper's session is no Wayland session: {display}")
    desk.machine.ssh("pkill -KILL -u ada -f '[p]cfarm-worker session'")
    uid = desk.machine.out("id -u ada")
    manager = f"runuser -u ada -- env -i PATH=/usr/bin:/bin XDG_RUNTIME_DIR=/run/user/{uid}"
    run = "systemd-run --user --collect --unit=pcfarm-session " + " ".join(f"--setenv={one}" for one in display)
    desk.machine.ssh(f"{manager} {run} /usr/bin/pcfarm-worker session --autostart")
    try:
        desk.wait(helpers, "the user's service manager starts the helper")
        # A recent systemd sets XDG_SESSION_ID to the session of the manager, which has no seat.
        cgroup = desk.machine.out(f"cat /proc/{helpers()[0]}/cgroup")
        expect("XDG_SEAT=" not in variables() and f"user@{uid}.service" in cgroup, f"not as gnome-session starts it: {cgroup}")
        noise_is_recognised(desk)
    finally:
        desk.machine.ssh(f"{manager} systemctl --user stop pcfarm-session || true")


def frozen_helper_counts_as_unknown(desk):
    """A helper that freezes stops the work within 10 s, `explain` names it, and the farm counts the agent as one that cannot tell."""
    desk.wait_works()
    desk.machine.ssh("pkill -STOP -u ada -f '[p]cfarm-worker session'")
    try:
        desk.wait_rests(60)
        desk.wait(lambda: "has not answered since" in desk.machine.out("pcfarm-worker explain"), "explain names the silent helper")
        desk.wait(lambda: any(w["hostname"] == "desk" and w["cannot_tell"] for w in desk.farm.workstations()), "the farm says that it cannot tell")
    finally:
        desk.machine.ssh("pkill -CONT -u ada -f '[p]cfarm-worker session'")
    desk.wait_works()


def ended_helper_is_named(desk):
    """`explain` names a helper that ended, with its user's number."""
    desk.machine.ssh("pkill -KILL -u ada -f '[p]cfarm-worker session'")
    uid = desk.machine.out("id -u ada")
    ended = lambda: any(uid in line for line in desk.machine.out("pcfarm-worker explain").splitlines() if "helper" in line)
    desk.wait(ended, "explain names the helper that ended, and its user")


def stopped_agent_does_not_disturb(desk):
    """With the agent stopped, its supervisor stops its programs."""
    desk.farm.load("long", 100, 60)
    desk.wait_works()
    desk.wait(desk.computes, "a program computes")
    desk.machine.ssh("kill -STOP $(systemctl show -P MainPID pcfarm-worker)")
    try:
        desk.wait(lambda: not desk.computes(), "programs stand still while the agent is stopped")
    finally:
        desk.machine.ssh("kill -CONT $(systemctl show -P MainPID pcfarm-worker) || true")
    desk.wait(desk.computes, "programs compute again", 120)
    desk.farm.cancel("long")
    desk.wait(lambda: not desk.computes(), "programs stop")


def inhibitor_counts_as_presence(desk):
    desk.wait_works()
    inhibitor = desk.machine.begin("systemd-inhibit --what=idle --who=cinema --why=film sleep 600")
    try:
        desk.wait_rests()
        desk.wait(lambda: "cinema" in desk.machine.out("pcfarm-worker explain"), "explain names the inhibitor")
    finally:
        inhibitor.kill()
        desk.machine.ssh("pkill -f '[s]ystemd-inhibit' || true")
    desk.wait_works()


def session_without_a_terminal_counts(desk):
    """A remote session that uses the CPU counts until the time of the setting is over."""
    busy = "python3 -c 'import time\nend = time.time() + 30\nwhile time.time() < end: pass\ntime.sleep(600)'"
    remote = desk.machine.begin(busy, user="ada")
    try:
        named = lambda: any("ada" in line and "sshd" in line and "; counts" in line for line in desk.machine.out("pcfarm-worker explain").splitlines())
        desk.wait(named, "explain names the session", 120)
        desk.wait_rests()
    finally:
        remote.kill()
        desk.machine.ssh("pkill -u ada python3 || true")
    desk.wait_works()


def noise_is_recognised(desk):
    """The agent works while a mouse jitters by one count, and while a joystick drifts."""
    for kind, command in (("mouse", "jitter 3000 0.2"), ("joystick", "drift 3000 0.2")):
        with desk.device(kind, f"noisy {kind}") as device:
            device.begins(command)
            # Six quiet windows of ten seconds make noise.
            desk.wait(lambda: f"noisy {kind}" in desk.machine.out("pcfarm-worker explain"), f"explain names the noisy {kind}", 240)
            desk.wait_works()
            desk.stays(desk.works, f"the agent works beside the noisy {kind}")
            device.breaks_off()
    desk.wait_works()


def moved_mouse_stops_work(desk):
    desk.wait_works()
    with desk.device("mouse", "real mouse") as mouse:
        desk.wait_works()
        mouse.does("move 40 25")
        desk.wait_rests()
    desk.wait_works()


def device_grab_is_detected(desk):
    """`explain` names a device that another program has for itself, and the agent works again after the grab."""
    with desk.device("keyboard", "grabbed keyboard") as keyboard:
        # The device stays open as long as a name holds it.
        grab = f"import evdev, time; held = evdev.InputDevice('{keyboard.path}'); held.grab(); print('grabbed', flush=True); time.sleep(900)"
        grabber = desk.machine.begin(f'python3 -c "{grab}"')
        try:
            expect(grabber.stdout.readline().strip() == "grabbed", "the device was not grabbed")
            # The agent probes a device after a minute without input.
            named = lambda: 'grabbed input device "grabbed keyboard"' in desk.machine.out("pcfarm-worker explain")
            desk.wait(named, "explain names the grabbed device", 300)
        finally:
            grabber.kill()
            desk.machine.ssh("pkill -f '[.]grab[(]' || true")
        desk.wait(lambda: not named(), "explain does not name the device after the grab", 300)
    desk.wait_works()


# A static 32-bit program that ends with 0: no package of another architecture is needed.
THIRTY_TWO = (
    "f0VMRgEBAQAAAAAAAAAAAAIAAwABAAAAVIAECDQAAAAAAAAAAAAAADQAIAABAAAAAAAAAAEAAAAAAAAAAIAECACABAhdAAAAXQAAAAUAAAAAEAAAuAEAAAAx282A"
)

# Programs with the lines of the unit that block their checks, and the advice for each: a documented drop-in, or the setting to change
# where none helps.
BLOCKED = {
    "thirty-two": ("/usr/local/bin/thirty-two", [], "SystemCallArchitectures=native", "32-bit.conf"),
    "links": ("/usr/sbin/ip", ["link"], "RestrictAddressFamilies=", "netlink.conf"),
    "sandbox": ("/usr/bin/unshare", ["--user", "/usr/bin/true"], "RestrictNamespaces=yes", "browser-sandbox.conf"),
}

PTRACE = "import ctypes, os; pid = os.fork(); pid or os._exit(ctypes.CDLL(None).ptrace(0, 0, 0, 0) != 0); raise SystemExit(os.waitpid(pid, 0)[1] != 0)"
UNHELPED = {
    "fuse": ("/bin/sh", ["-c", ": <>/dev/fuse"], "DevicePolicy=closed", "another DeviceAllow="),
    "tracer": ("/usr/bin/python3", ["-c", PTRACE], "SystemCallFilter=", "another SystemCallFilter="),
}

# Programs whose checks depend on variables: arguments, settings, and the outcome. The service has LICENSE, the doctor's shell ROOTS.
VARIABLES = {
    "licensed": ('test "$LICENSE" = 27000@lic', 'pass_env = ["LICENSE"]', "ok"),
    "unlicensed": ('test -n "$LICENSE"', "", "failed"),
    "of-shell": ('test -n "$ROOTS"', 'pass_env = ["ROOTS"]', "failed"),
    "own-path": ('test "$PATH" = /opt/fluids/bin', 'env = {PATH = "/opt/fluids/bin", LD_LIBRARY_PATH = "/opt/fluids/lib"}', "ok"),
}


def doctor_names_the_line_to_change(desk):
    """Under the unit's rules `doctor` names the line that blocks a check; with the drop-in that it names the check passes."""
    machine, place = desk.machine, "/etc/systemd/system/pcfarm-worker.service.d"
    machine.ssh(f"echo {THIRTY_TWO} | base64 -d > /usr/local/bin/thirty-two; chmod 755 /usr/local/bin/thirty-two; /usr/sbin/modprobe fuse")
    drop_ins = " ".join(drop_in for _, _, _, drop_in in BLOCKED.values())
    programs = {name: (path, check) for name, (path, check, _, _) in (BLOCKED | UNHELPED).items()}
    # A program that needs nothing, and one whose failure looks like one of systemd-run.
    programs["fine"] = ("/usr/bin/python3", ["--version"])
    programs["broken"] = ("/bin/sh", ["-c", "echo Failed to connect to bus: no licence >&2; exit 1"])
    tables = [
        f'[[program]]\nname = "{name}"\npath = "{path}"\nmode = "one-shot"\ncheck = {json.dumps(check)}\n'
        for name, (path, check) in programs.items()
    ]
    for name, (test, settings, _) in VARIABLES.items():
        check = json.dumps(["-c", test])
        tables.append(f'[[program]]\nname = "{name}"\npath = "/bin/sh"\nmode = "one-shot"\ncheck = {check}\n{settings}\n')
    machine.ssh(f"mkdir -p {place} && printf '[Service]\\nEnvironment=LICENSE=27000@lic\\n' > {place}/licence.conf && systemctl daemon-reload")
    desk.configure(more="\n".join(tables))
    try:
        for name, (_, _, line, drop_in) in BLOCKED.items():
            finding = found_by_doctor(desk, name)
            expect(finding["outcome"] == "failed" and line in finding["says"] and drop_in in finding["advice"], finding)
        for name, (_, _, line, advice) in UNHELPED.items():
            finding = found_by_doctor(desk, name)
            expect(finding["outcome"] == "failed" and line in finding["says"] and advice in finding["advice"], finding)
            expect(".conf" not in finding["advice"], finding)
        for name, (_, _, outcome) in VARIABLES.items():
            expect(found_by_doctor(desk, name)["outcome"] == outcome, found_by_doctor(desk, name))
        expect(found_by_doctor(desk, "fine")["outcome"] == "ok", found_by_doctor(desk, "fine"))
        broken = found_by_doctor(desk, "broken")
        expect(broken["outcome"] == "failed" and "also without the unit's rules" in broken["says"], broken)
        left = machine.out("systemctl list-units --all --no-legend 'pcfarm-worker-check-*'")
        expect(not left, f"doctor left transient units:\n{left}")
        machine.ssh(f"cd /usr/share/pcfarm-worker/drop-ins && install -Dm644 -t {place} {drop_ins} && systemctl daemon-reload")
        desk.doctor = None
        for name in BLOCKED:
            expect(found_by_doctor(desk, name)["outcome"] == "ok", found_by_doctor(desk, name))
    finally:
        desk.doctor = None
        machine.ssh(f"cd {place} 2>/dev/null && rm -f {drop_ins} licence.conf; systemctl daemon-reload")
        desk.configure()
    desk.wait_works()


def found_by_doctor(desk, program):
    """Finding of `doctor` about a program. One run of it serves until desk.doctor is None."""
    if getattr(desk, "doctor", None) is None:
        # Each check is bisected with transient units, which take seconds on an emulated processor.
        said = desk.machine.ssh("ROOTS=1 pcfarm-worker doctor --output json", check=False, seconds=1800)
        desk.doctor = json.loads(said.stdout)["steps"]
    # Another finding of the same step tells of limits and the fence.
    about = [one for one in desk.doctor if one["says"].startswith(f"exec:{program}: its check")]
    expect(len(about) == 1, f"doctor has {len(about)} findings about the check of {program}: {desk.doctor}")
    return about[0]


def suspended_machine_goes_on(desk):
    """A PC that its user suspends is asleep to the farm, and never dead. After resume the agent works; no problem is lost."""
    deaths = lambda: len(desk.farm.events("workstation dead"))
    asleep = lambda: any(one["asleep"] and one["state"] == "offline" for one in desk.farm.workstations())
    before = deaths()
    desk.farm.load("night", 20, 5)
    desk.wait(desk.computes, "a program computes")
    delayed = desk.machine.out("systemd-inhibit --list --no-legend")
    expect(any("pcfarm-worker" in line and "delay" in line for line in delayed.splitlines()), f"the agent delays no sleep:\n{delayed}")
    desk.machine.ssh("systemd-run --no-block --on-active=1 systemctl suspend")
    desk.machine.wait_until(lambda: desk.machine.qmp("query-status")["status"] == "suspended", "the machine is suspended")
    try:
        # The farm calls a workstation offline when it has been silent for the lease of 20 s.
        desk.machine.wait_until(asleep, "the farm shows the suspended machine as asleep")
    finally:
        desk.machine.qmp("system_wakeup")
    desk.machine.wait_until(lambda: desk.machine.ssh("true", check=False, seconds=20).returncode == 0, "the machine wakes up")
    desk.wait_works()
    expect(deaths() == before, "the farm declared the suspended machine dead")
    desk.wait(lambda: not any(one["asleep"] for one in desk.farm.workstations()), "the farm shows that the machine is awake")
    jobs = lambda: desk.farm.jobs("night")
    desk.wait(lambda: jobs() and jobs()[0]["done"] == 20, "every problem of the night is solved", 300)


def upgrade_keeps_the_workstation(desk, package):
    """An upgrade keeps identity and settings, and the new program runs."""
    before = desk.explain()["agent"]["identity"]
    settings = desk.machine.out("sha256sum /etc/pcfarm/worker.toml")
    desk.machine.put(package, "/root/next.deb")
    desk.machine.ssh("dpkg -i /root/next.deb")
    desk.wait(lambda: desk.explain().get("agent", {}).get("identity") == before, "the agent keeps its identity")
    expect(desk.machine.out("sha256sum /etc/pcfarm/worker.toml") == settings, "the upgrade changed the settings")
    desk.wait_works()


def removal_leaves_nothing(desk):
    desk.machine.ssh("dpkg --purge pcfarm-worker")
    left = desk.machine.out("ls -d /usr/bin/pcfarm-worker /etc/pcfarm /var/lib/pcfarm-worker /etc/xdg/autostart/*pcfarm* 2>/dev/null || true")
    expect(not left, f"the package left {left}")
    expect(not desk.machine.ssh("pgrep -f [p]cfarm-worker", check=False).stdout, "a program of the package still runs")
