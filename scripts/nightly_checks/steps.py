"""Steps of scripts/nightly: their commands, their limits, and the figures in their output. Everything here is pure."""

import re
from dataclasses import dataclass, field
from typing import Callable

PROGRAMS = ["pcfarm", "pcfarm-server", "pcfarm-recycler", "pcfarm-worker"]  # pcfarm-worker is the SDK, too


@dataclass
class Step:
    name: str
    about: str
    minutes: int  # limit of its time
    tools: str  # functions of scripts/setup.sh; if one fails, the step is skipped
    commands: list
    figures: Callable  # of the log's text and of the step's JSON file, {} if it wrote none
    all_commands: bool = False  # runs the rest after one has failed
    environment: dict = field(default_factory=dict)


def setup(functions):
    """Runs functions of scripts/setup.sh."""
    return ["bash", "-euo", "pipefail", "-c", f". scripts/setup.sh; {functions}"]


def steps(amounts, target, features, ignored, nextest):
    """All steps, the most useful for their time first. `{seed}` and `{json}` in commands are filled in when a step starts."""
    build, cluster = setup("build_all"), [f"{target}/debug/pcfarm-test-cluster", "run", "--"]
    suite = tests(amounts.tests, [name for name, reason in ignored if not is_nightly(reason)], nextest)
    orders = tests("interleaved::", [], nextest)
    seed = "{seed}" if amounts.seed is None else str(amounts.seed)
    chaos = ["scripts/chaos", "--json", "{json}"]
    faults = chaos + ["--faults", str(amounts.faults), "--seed", seed]
    planted = chaos + ["--planted", "--runs", f"{target}/nightly/planted.jsonl", *with_value("--bugs", amounts.bugs)]
    api = ["scripts/fuzz-api", "--examples", str(amounts.examples), "--seed", seed]
    fuzz = ["scripts/fuzz", "--seconds", str(amounts.seconds), *filter(None, [amounts.parsers])]
    return [
        Step("tests", "the whole suite, with tests marked as nightly", 180, "ensure_test_tools",
             [build, cluster + suite], test_figures),
        Step("interleavings", "every interleaving of each pair of statements", 120, "ensure_tools",
             [build, cluster + orders], test_figures, environment={"PCFARM_ORDERS": str(amounts.orders)}),
        Step("faults", "random faults on a farm", 90, "ensure_faketime", [faults], chaos_figures),
        Step("api", "REST, fuzzed from its OpenAPI document", 90, "ensure_schemathesis",
             [build, api], api_figures, environment={"PCFARM_BIN": f"{target}/debug"}),
        Step("slim", "programs and SDK without features and with each alone", 120, "ensure_tools",
             slim(features), slim_figures, all_commands=True),
        Step("desk", "the agent on a virtual desktop", 120, "ensure_desk_vm", [["scripts/desk-vm"]], desk_figures),
        Step("planted", "planted bugs that scripts/chaos must find", 180, "ensure_faketime", [planted], planted_figures),
        Step("fuzz", "parsers of outside input, fuzzed by coverage", 180, "ensure_cxx", [fuzz], fuzz_figures),
        # It leaves no programs; the build links the ordinary ones again.
        Step("coverage", "lines and branches that tests reach", 240, "ensure_test_tools; ensure_coverage_tools",
             [["scripts/coverage"], build], coverage_figures, all_commands=True),
    ]


def with_value(flag, value):
    return [flag, value] if value else []


def tests(wanted, left_out, nextest):
    """Runs tests whose name contains `wanted`, ignored ones too, except those left out by name.

    It names no package: with other features than the build's, dependencies would be built again.
    """
    common = ["--workspace", "--all-features", "--locked", "--no-fail-fast", *filter(None, [wanted])]
    if not nextest:
        skips = [word for name in left_out for word in ("--skip", name)]
        return ["cargo", "test", "--lib", "--bins", "--tests", *common, "--", "--include-ignored", *skips]
    others = with_value("-E", left_out and f"not test(/(^|::)({'|'.join(left_out)})$/)")
    return ["cargo", "nextest", "run", "--run-ignored", "all", "--retries", "0", *common, *others]


def slim(features):
    check = ["cargo", "check", "--locked", "--quiet", "--no-default-features", "--package"]
    each = [(name, feature) for name in PROGRAMS for feature in ["", *features.get(name, [])]]
    checks = [[*check, name, *with_value("--features", feature)] for name, feature in each]
    # Some tests exist only where a feature is missing. Tests of the server need PostgreSQL, except these.
    test = ["cargo", "test", "--locked", "--quiet", "--no-default-features", "--lib", "--package"]
    return [*checks, [*test, "pcfarm-worker"], [*test, "pcfarm-server", "settings::"]]


def features_of(metadata):
    """Features of each package, from `cargo metadata`."""
    return {package["name"]: sorted(set(package["features"]) - {"default"}) for package in metadata["packages"]}


def ignored_in(text):
    """Names and reasons of a Rust source's ignored tests."""
    return [(name, reason) for reason, name in re.findall(r'#\[ignore = "([^"]*)"\][^{}]*?\bfn (\w+)', text)]


def is_nightly(reason):
    return reason.startswith("nightly:")


def test_figures(log, _):
    kinds = {}
    for line in re.findall(r"Summary \[.*\] .*tests? run: (.*)|test result: \w+\. (.*)", log):
        for count, kind in re.findall(r"(\d+) (passed|failed|timed out|ignored|skipped)\b", "".join(line)):
            kinds[kind] = kinds.get(kind, 0) + int(count)
    run = sum(count for kind, count in kinds.items() if kind not in ("ignored", "skipped"))
    return {"tests run": run, **kinds, **({} if run else {"problem": "no test was run"})}


def chaos_figures(_, report):
    names = ["faults", "seed", "jobs", "processed", "lost", "doubled", "applied_from_revoked", "wrong"]
    kinds = {"kinds": len(report["kinds"])} if "kinds" in report else {}
    return {**kinds, **{name.replace("_", " "): report[name] for name in names if name in report}}


def planted_figures(_, report):
    names = {"caught": "caught", "planted": "of planted", "false_alarms": "false alarms", "clean": "in clean runs"}
    missed = [run["planted"] for run in report.get("runs", []) if run["planted"] and not run["found"]]
    alarms = [str(run["seed"]) for run in report.get("runs", []) if run["found"] and not run["planted"]]
    details = {"missed": " ".join(missed), "seeds of false alarms": " ".join(alarms)}
    return {**{text: report[name] for name, text in names.items() if name in report}, **{k: v for k, v in details.items() if v}}


def desk_figures(log, _):
    outcomes = re.findall(r"^(ok    |FAILED) (\w+) \(\d+ s\)$", log, re.M)
    failed = [name for outcome, name in outcomes if outcome == "FAILED"]
    nothing = {} if outcomes else {"problem": "no check was run"}
    return {"checks": len(outcomes), "failed": len(failed), **nothing, **({"names": " ".join(failed)} if failed else {})}


def fuzz_figures(log, _):
    inputs = [int(count) for count in re.findall(r"^(\d+) inputs$", log, re.M)]
    return {"targets": len(inputs), "inputs": sum(inputs)}


def api_figures(log, _):
    rounds = re.findall(r"Selected: \d+/(\d+)\s+Tested: (\d+)", log)
    cases = sum(int(count.replace(",", "")) for count in re.findall(r"Test cases:\s+([\d,]+) generated", log))
    operations = max((int(total) for total, _ in rounds), default=0)
    return {"operations": operations, "tested by round": " + ".join(tested for _, tested in rounds), "requests": cases}


def slim_figures(log, _):
    return {"checked": len(re.findall(r"^\$ cargo (?:check|test)", log, re.M)), "failed": len(re.findall(r"^\[exit [^0]", log, re.M))}


def coverage_figures(log, _):
    total = (re.findall(r"^TOTAL .*$", log, re.M) or [""])[-1]
    return {**dict(zip(["functions", "lines", "branches"], re.findall(r"[\d.]+%", total))), **test_figures(log, _)}
