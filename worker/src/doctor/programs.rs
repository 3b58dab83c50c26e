//! What holds back each of the owner's programs on this machine, in words: by its user, by the kernel's fence, by limits.
//!
//! Changes nothing, starts only the checks that the owner names, and asks the questions of the launcher.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::geteuid;

use super::{Finding, Step};
use crate::agent::chain;
use crate::exec::fence::{self, Kernel};
use crate::exec::settings::Program;
use crate::settings::Settings;

/// A line for each, or one that says that there are none. What its owner trusts or what an old kernel lacks is said as advice: an agent
/// works with it. It fails if the agent would not start.
pub fn programs(settings: &Settings) -> Vec<Finding> {
    let list = match settings.programs_of(agent_is_root(&settings.state_dir)) {
        Ok(list) => list,
        Err(error) => return vec![Finding::failed(Step::Programs, chain(&error), "the agent does not start with it")],
    };
    if list.is_empty() {
        return vec![Finding::skipped(Step::Programs, "none: no [[program]] in the settings")];
    }
    let kernel = fence::kernel();
    let mut findings: Vec<Finding> = list.iter().map(|program| finding(program, kernel, program.installed())).collect();
    findings.extend(super::check::checks(settings, &list));
    findings
}

/// Whoever asks may be root where the agent is a user of its own: its state is that user's.
fn agent_is_root(state_dir: &Path) -> bool {
    std::fs::metadata(state_dir).map_or_else(|_| geteuid().is_root(), |state| state.uid() == 0)
}

fn finding(program: &Program, kernel: Kernel, installed: Result<(), String>) -> Finding {
    let name = program.controller();
    if let Err(why) = installed {
        let advice = "the farm is not told of it, and its problems go to other workstations";
        return Finding { advice: advice.to_owned(), ..Finding::skipped(Step::Programs, format!("{name}: {why}")) };
    }
    let mut advice = Vec::new();
    let whose = match program.user {
        Some(user) => format!("as user {}", user.uid),
        None => "as the agent's own user".to_owned(),
    };
    let files = match (kernel.files, program.user) {
        (true, _) if program.writable.is_empty() => {
            "reads neither the agent's key nor what is hidden, writes to its own directories alone (Landlock)"
        }
        (true, _) => {
            "reads neither the agent's key nor what is hidden, writes to its own directories and what writable names (Landlock)"
        }
        (false, Some(_)) => "reads and writes what that user may (no Landlock here)",
        (false, None) => {
            advice.push("this system has no Landlock: give it a user of its own (run_as, on an agent that is root)");
            "MAY READ THE AGENT'S KEY and write where the agent may: its owner trusts it"
        }
    };
    let spoils = match (kernel.files, program.user) {
        (true, None) if kernel.truncate => "; may change modes and times of the agent's files",
        (true, None) => {
            advice.push(
                "before Linux 6.2 nothing but a user of its own (run_as) keeps it from emptying the agent's files",
            );
            "; MAY EMPTY THE AGENT'S FILES, its key among them, and change their modes"
        }
        (_, Some(_)) | (false, None) => "",
    };
    let signals = match (kernel.signals, program.user) {
        (true, _) => "cannot signal what it has not started",
        (false, Some(_)) => "may signal what runs as that user",
        (false, None) => {
            advice.push("before Linux 6.12 nothing but a user of its own (run_as) keeps it from signalling the agent");
            "MAY SIGNAL THE AGENT"
        }
    };
    let network = match (program.network, kernel.tcp) {
        (true, _) => "has the network",
        (false, true) => "no TCP",
        (false, false) => {
            advice.push("network = false needs Linux 6.7 or newer with Landlock: here it has no effect");
            "HAS THE NETWORK although network = false"
        }
    };
    let mib = |bytes: u64| bytes >> 20;
    let limits = &program.limits;
    let says = format!(
        "{name}: {whose}; {files}{spoils}; {signals}; {network}; at most {} MiB of memory with all that it starts \
         (looked at twenty times a second), {} processes, {} MiB of disk (once a second)",
        mib(limits.memory_bytes),
        limits.processes,
        mib(limits.disk_bytes)
    );
    Finding { advice: advice.join("; "), ..Finding::ok(Step::Programs, says) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::plan::User;

    const NEW: Kernel = Kernel { files: true, truncate: true, tcp: true, signals: true };
    const OLD: Kernel = Kernel { files: false, truncate: false, tcp: false, signals: false };

    fn program(more: &str) -> Program {
        #[derive(serde::Deserialize)]
        struct File {
            program: Vec<crate::exec::settings::ProgramSettings>,
        }
        let text = format!("[[program]]\nname = \"a\"\npath = \"/bin/cat\"\nmode = \"fed\"\ntrusted = true\n{more}");
        let file: File = toml::from_str(&text).expect("a list");
        let machine = crate::exec::settings::Machine { memory_bytes: 16 << 30, cores: 4, is_root: false };
        crate::exec::settings::check(&file.program, &machine).expect("a good list").remove(0)
    }

    #[test]
    fn an_owner_reads_what_holds_a_program_back_and_what_does_not() {
        let shut = finding(&program("network = false\nmemory_mib = 512\nprocesses = 3"), NEW, Ok(()));
        assert_eq!(shut.outcome, super::super::Outcome::Ok);
        assert_eq!(shut.advice, "");
        assert_eq!(
            shut.says,
            "exec:a: as the agent's own user; reads neither the agent's key nor what is hidden, writes to its own directories alone \
             (Landlock); may change modes and times of the agent's files; cannot signal what it has not started; no TCP; at most 512 MiB of memory with all that it starts \
             (looked at twenty times a second), 3 processes, 1024 MiB of disk (once a second)"
        );

        let open = finding(&program("network = false"), OLD, Ok(()));
        assert!(!open.has_failed());
        for word in ["MAY READ THE AGENT'S KEY", "MAY SIGNAL THE AGENT", "HAS THE NETWORK although network = false"] {
            assert!(open.says.contains(word), "{word}: {}", open.says);
        }
        for word in ["Landlock", "run_as", "6.12", "6.7"] {
            assert!(open.advice.contains(word), "{word}: {}", open.advice);
        }

        let early = finding(&program(""), Kernel { files: true, ..OLD }, Ok(()));
        assert!(early.says.contains("(Landlock); MAY EMPTY THE AGENT'S FILES"), "{}", early.says);
        assert!(early.advice.contains("before Linux 6.2 nothing but a user of its own"), "{}", early.advice);

        let wide = finding(&program("writable = [\"/dev/shm\"]"), NEW, Ok(()));
        assert!(wide.says.contains("and what writable names"), "{}", wide.says);

        let other = Program { user: Some(User { uid: 65534, gid: 65534 }), ..program("") };
        for (kernel, says) in [(OLD, "reads and writes what that user may"), (NEW, "reads neither the agent's key")] {
            let finding = finding(&other, kernel, Ok(()));
            assert!(finding.says.starts_with(&format!("exec:a: as user 65534; {says}")), "{}", finding.says);
            assert!(!finding.says.contains("the agent's files") && finding.advice.is_empty(), "{finding:?}");
        }
    }

    #[test]
    fn the_agent_is_whoever_has_its_state() {
        let state = tempfile::tempdir().expect("a directory");
        assert_eq!(agent_is_root(state.path()), geteuid().is_root());
        if geteuid().is_root() {
            std::os::unix::fs::chown(state.path(), Some(65534), None).expect("root may");
            assert!(!agent_is_root(state.path()));
        }
    }

    #[test]
    fn a_program_that_is_not_there_says_so() {
        let missing = finding(&program(""), NEW, Err("/nowhere: not found".to_owned()));
        assert_eq!(missing.outcome, super::super::Outcome::Skipped);
        assert_eq!(missing.says, "exec:a: /nowhere: not found");
        assert!(missing.advice.contains("other workstations"));
    }
}
