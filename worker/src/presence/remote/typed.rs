//! Terminals of sessions by SSH.
//!
//! sshd opens a session before it allocates a terminal, so logind's file of the session names none. The processes below sshd tell.

use std::fs;
use std::path::Path;

/// Bound of the commands that one connection runs at a time. sshd's own bound is 10 by default.
const COMMANDS_LIMIT: usize = 64;

/// One process of sshd waits for the other, which serves the user.
const SERVERS_DEPTH: usize = 2;

/// Tells whether each command of the session runs in a terminal, so that the terminals tell of its user's input. `leader` is the
/// process that opened the session. A remote editor runs beside terminals of its own, without a terminal.
pub fn only_in_terminals(proc: &Path, leader: u32) -> bool {
    let mut commands = Vec::new();
    collect(proc, leader, SERVERS_DEPTH, &mut commands);
    !commands.is_empty() && commands.len() <= COMMANDS_LIMIT && commands.into_iter().all(|has_terminal| has_terminal)
}

fn collect(proc: &Path, parent: u32, depth: usize, commands: &mut Vec<bool>) {
    let children = fs::read_to_string(proc.join(format!("{parent}/task/{parent}/children"))).unwrap_or_default();
    for child in children.split_whitespace().take(COMMANDS_LIMIT + 1).filter_map(|child| child.parse().ok()) {
        match process(proc, child) {
            // It has ended meanwhile.
            None => {}
            Some((name, _)) if name.starts_with("sshd") && depth > 1 => collect(proc, child, depth - 1, commands),
            Some((_, has_terminal)) => commands.push(has_terminal),
        }
    }
}

/// Name of a process, and whether it has a controlling terminal.
fn process(proc: &Path, process: u32) -> Option<(String, bool)> {
    let stat = fs::read_to_string(proc.join(format!("{process}/stat"))).ok()?;
    // The name may hold blanks and parentheses. State, parent, group, session and terminal follow it.
    let (before, after) = stat.rsplit_once(')')?;
    let name = before.split_once('(')?.1.to_owned();
    let terminal: i64 = after.split_whitespace().nth(4)?.parse().ok()?;
    Some((name, terminal != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Processes as `(number, parent, name, terminal)`.
    fn seen(processes: &[(u32, u32, &str, i64)]) -> bool {
        let dir = tempfile::tempdir().expect("a directory");
        for (number, parent, name, terminal) in processes {
            let task = dir.path().join(format!("{number}/task/{number}"));
            fs::create_dir_all(&task).expect("made");
            let stat = format!("{number} ({name}) S {parent} {number} {number} {terminal} -1 0");
            fs::write(dir.path().join(format!("{number}/stat")), stat).expect("written");
            let children = processes.iter().filter(|other| other.1 == *number).map(|other| other.0.to_string());
            fs::write(task.join("children"), children.collect::<Vec<_>>().join(" ")).expect("written");
        }
        only_in_terminals(dir.path(), 10)
    }

    #[test]
    fn terminals_tell_of_sessions_with_terminals_alone() {
        let user = [(10, 1, "sshd", 0), (11, 10, "sshd", 0)];
        let with = |more: &[(u32, u32, &str, i64)]| seen(&[&user, more].concat());
        assert!(with(&[(12, 11, "bash", 34816)]), "a shell in a terminal");
        assert!(with(&[(12, 11, "bash", 34816), (13, 11, "a) b (c", 34817)]), "two of them");
        assert!(!with(&[(12, 11, "code-server", 0)]), "an editor");
        assert!(!with(&[(12, 11, "bash", 34816), (13, 11, "code-server", 0)]), "an editor beside a shell");
        assert!(!with(&[(12, 11, "bash", 0), (13, 12, "bash", 34816)]), "an editor's own terminal");
        assert!(!with(&[]), "a tunnel");
        assert!(seen(&[(10, 1, "sshd-session", 0), (12, 10, "bash", 34816)]), "root's, which one process serves");
        assert!(!seen(&[]), "it has ended");
    }
}
