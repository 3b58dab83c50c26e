"""Decisions and report of scripts/nightly. Everything here is pure."""

import re

from steps import is_nightly


def still_holds(result, key, commit):
    """Whether an earlier result spares another run. `commit` is empty if the work tree has changes."""
    return bool(commit and result) and (result["outcome"], result["commit"], result["key"]) == ("passed", commit, key)


def limit(step, limits, left):
    """Seconds that a step may take, and the outcome and reason if it takes longer."""
    minutes = limits.get(step.name, step.minutes)
    if left < minutes * 60:
        return left, ("not run", "time ran out (--hours)")
    return minutes * 60, ("failed", f"still running after {minutes:g} minutes (--limit {step.name}=MINUTES)")


def left_out_of_step(noted, report):
    """Tests that left themselves out, from lines `test: reason`, and faults that were not injected."""
    rows = [line.split(": ", 1) for line in sorted(set(noted.splitlines())) if ": " in line]
    return rows + [[f"fault {one['what']}", f"{one['why']} ({one['times']} times)"] for one in report.get("skipped", [])]


def left_out(results, ignored):
    """Everything that was not checked, each once: step, name, reason."""
    rows = [[r["step"], "the step", r["why"]] for r in results if r["outcome"] in ("skipped", "not run")]
    rows += [["tests", name, f"ignored: {reason}"] for name, reason in ignored if not is_nightly(reason)]
    seen = set()
    for result in results:
        for name, reason in result["left_out"]:
            if (name, reason) not in seen:
                seen.add((name, reason))
                rows.append([result["step"], name, reason])
    return rows


def table(head, rows):
    def line(cells):
        return "| " + " | ".join(re.sub(r"\s+", " ", str(cell)).replace("|", "\\|") for cell in cells) + " |"

    return "\n".join(map(line, [head, ["---"] * len(head), *rows]))


def markdown(report):
    results = report["steps"]
    rows = [[r["step"], r["outcome"] + (" (earlier run)" if r.get("earlier") else ""), f"{r['seconds'] / 60:.1f}",
             ", ".join(f"{name}: {value}" for name, value in r["figures"].items()), r["why"]] for r in results]
    parts = ["# Nightly report", table(["", ""], report["machine"].items()),
             table(["step", "outcome", "minutes", "figures", "reason"], rows)]
    for r in results:
        if r["outcome"] == "failed":
            parts += [f"## End of the log of {r['step']}", "````text\n" + "\n".join(r["tail"]) + "\n````"]
    parts += ["## Left out", table(["step", "name", "reason"], report["left_out"]) if report["left_out"] else "Nothing."]
    commands = [[r["step"], f"`{command}`", r["log"]] for r in results if r["log"] for command in r["commands"]]
    return "\n\n".join([*parts, "## Commands", table(["step", "command", "log"], commands)]) + "\n"
