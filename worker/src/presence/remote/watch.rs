//! Sessions and services that people use without a terminal, or beside one, from one look to the next.
//!
//! Remembers the CPU use of each, and that of sessions that have ended for `start_after`.
//!
//! A remote editor leaves its server behind when its connection breaks, in the cgroup of the session that is `closing`. The next
//! connection finds that server. What such a cgroup uses from then on counts for the user's live sessions.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::cpu::{self, Meter};
use super::logind::{self, Session};
use super::{Remote, Rules, Use, typed};
use crate::presence::settings::Settings;
use crate::presence::signals::Moment;

/// Bound of the remembered sessions that have ended.
const ENDED_LIMIT: usize = 64;

/// Accounts of services have lower numbers (`SYS_UID_MAX` of login.defs); root's is a person's.
const FIRST_PERSON: u32 = 1000;

pub struct Watch {
    run: PathBuf,
    hierarchy: PathBuf,
    proc: PathBuf,
    /// The account of the agent's service, in which no person logs in.
    service: Option<u32>,
    /// The cgroup that this agent computes in.
    own: String,
    /// By id and time of beginning.
    sessions: BTreeMap<String, Known>,
    services: BTreeMap<String, Meter>,
    ended: Vec<Use>,
    left_behind: LeftBehind,
}

/// Use of the CPU by programs of sessions that are closing.
#[derive(Default)]
struct LeftBehind {
    /// By user and cgroup, as of the last look.
    seen: BTreeMap<(u32, String), Duration>,
    /// By user, over all looks: it never shrinks.
    used: BTreeMap<u32, Duration>,
}

impl LeftBehind {
    fn read(&mut self, closing: Vec<((u32, String), Duration)>) {
        let before = std::mem::take(&mut self.seen);
        for ((user, scope), used) in closing {
            let key = (user, scope);
            // Before the first look the cgroup belonged to a session that counted by itself.
            let more = before.get(&key).map_or(Duration::ZERO, |before| used.saturating_sub(*before));
            let total = self.used.entry(user).or_default();
            *total = total.saturating_add(more);
            self.seen.insert(key, used);
        }
    }

    fn by(&self, user: u32) -> Duration {
        self.used.get(&user).copied().unwrap_or_default()
    }
}

/// A session, as it was last seen.
struct Known {
    by: String,
    what: String,
    meter: Meter,
    /// Use by programs of closing sessions of the same user before this session was seen.
    left_behind: Duration,
}

/// The account of this agent, if that is a service's.
pub fn service_account() -> Option<u32> {
    let own = rustix::process::getuid().as_raw();
    (1..FIRST_PERSON).contains(&own).then_some(own)
}

impl Watch {
    pub fn new(settings: &Settings) -> Watch {
        Watch {
            run: settings.run.clone(),
            hierarchy: cpu::hierarchy(&settings.sys),
            proc: settings.proc.clone(),
            service: service_account(),
            own: fs::read_to_string(settings.proc.join("self/cgroup")).unwrap_or_default(),
            sessions: BTreeMap::new(),
            services: BTreeMap::new(),
            ended: Vec::new(),
            left_behind: LeftBehind::default(),
        }
    }

    /// Reads the lists. `start_after`: how long a session counts after its end.
    pub fn read(&mut self, rules: &Rules, start_after: Duration, now: Moment) -> Result<Remote, String> {
        let listed = if rules.count { logind::sessions(&self.run)? } else { Some(Vec::new()) };
        let unlisted = listed.is_none().then_some("no logind runs here");
        let mut known = std::mem::take(&mut self.sessions);
        let mut uses = Vec::new();
        let listed = listed.unwrap_or_default();
        self.left_behind.read(self.closing(&listed));
        for session in listed {
            if !session.is_unseen() || !self.is_of_person(&session, rules) {
                continue;
            }
            let key = format!("{} {}", session.id, session.since);
            let mut known =
                known.remove(&key).unwrap_or_else(|| Known::new(&session, self.left_behind.by(session.uid)));
            let limit = Duration::from_secs_f64(rules.cpu);
            let left_behind = self.left_behind.by(session.uid).saturating_sub(known.left_behind);
            let used = self.used_by(&session).map(|used| used.saturating_add(left_behind));
            let last = used.map(|used| known.meter.read(used, limit, now));
            let is_typed = session.leader.is_some_and(|leader| typed::only_in_terminals(&self.proc, leader));
            uses.extend(known.used(last, is_typed, start_after, rules));
            self.sessions.insert(key, known);
        }
        for service in &rules.services {
            uses.extend(self.service(service, rules, now));
        }
        self.remember(known, start_after.min(rules.after), now);
        uses.extend(self.ended.iter().cloned());
        Ok(Remote { unlisted, uses })
    }

    /// Cgroups of closing sessions, with their use. A cgroup that cannot be read belongs to no live session.
    fn closing(&self, listed: &[Session]) -> Vec<((u32, String), Duration)> {
        let closing = listed.iter().filter(|session| session.is_closing() && !session.scope.is_empty());
        let used = |session: &Session| {
            let scope = format!("user.slice/user-{}.slice/{}", session.uid, session.scope);
            let used = cpu::used(&self.hierarchy.join(&scope)).ok().flatten()?;
            Some(((session.uid, session.scope.clone()), used))
        };
        closing.filter_map(used).collect()
    }

    fn is_of_person(&self, session: &Session, rules: &Rules) -> bool {
        // An agent that a person started by hand computes in this person's session.
        let is_own =
            !session.scope.is_empty() && self.own.lines().any(|line| line.contains(&format!("/{}", session.scope)));
        self.service != Some(session.uid) && !is_own && !rules.ignored_users.contains(&session.user)
    }

    /// Desktops start programs in the cgroup of the user's service manager. For a session without a desktop that cgroup belongs to
    /// another session.
    fn used_by(&self, session: &Session) -> Result<Duration, String> {
        let user = self.hierarchy.join(format!("user.slice/user-{}.slice", session.uid));
        if session.scope.is_empty() && !session.is_opening() {
            return Err("logind names no cgroup of it".to_owned());
        }
        let own = cpu::used(&user.join(&session.scope))?.or(session.is_opening().then_some(Duration::ZERO));
        let own = own.ok_or_else(|| format!("no cgroup {} below {}", session.scope, user.display()))?;
        let manager = user.join(format!("user@{}.service", session.uid));
        let managed = if session.is_graphical { cpu::used(&manager)? } else { None };
        Ok(own.saturating_add(managed.unwrap_or_default()))
    }

    /// Returns none for a service that does not run.
    fn service(&mut self, name: &str, rules: &Rules, now: Moment) -> Option<Use> {
        let limit = Duration::from_secs_f64(rules.cpu);
        let used = candidates(name).into_iter().map(|place| cpu::used(&self.hierarchy.join(place)));
        let used = used.filter_map(Result::transpose).next()?;
        let meter = self.services.entry(name.to_owned()).or_default();
        let last = used.map(|used| meter.read(used, limit, now));
        let what = format!("service {name}");
        Some(Use { by: what.clone(), what, last, counts_for: rules.after })
    }

    fn remember(&mut self, gone: BTreeMap<String, Known>, counts_for: Duration, now: Moment) {
        let gone = gone.into_values().filter(|known| known.meter.last().is_some());
        self.ended.extend(gone.map(|known| Use {
            what: format!("{}, ended", known.what),
            by: format!("{}, ended", known.by),
            last: Ok(known.meter.last()),
            counts_for,
        }));
        self.ended.retain(|ended| ended.counts(now));
        let too_many = self.ended.len().saturating_sub(ENDED_LIMIT);
        self.ended.drain(..too_many);
    }
}

impl Known {
    fn new(session: &Session, left_behind: Duration) -> Known {
        let Session { id, user, service, since, .. } = session;
        let service = if service.is_empty() { String::new() } else { format!(" by {service}") };
        let since = if since.is_empty() { String::new() } else { format!(", since {since}") };
        Known {
            what: format!("session {id} of {user}{service}{since}"),
            by: format!("session {id}{service}{since}"),
            meter: Meter::default(),
            left_behind,
        }
    }

    /// The terminals tell of input into them. A person may work through the session all the same: with a program behind a tunnel, or with a
    /// window of X11. So CPU use by such a session counts as long as input does, and one that cannot be read is no sign of a person.
    fn used(
        &self,
        last: Result<Option<Moment>, String>,
        is_typed: bool,
        start_after: Duration,
        rules: &Rules,
    ) -> Option<Use> {
        let (what, by) = (self.what.clone(), self.by.clone());
        if !is_typed {
            return Some(Use { what, by, last, counts_for: rules.after });
        }
        let [what, by] = [what, by].map(|name| format!("{name}, beside its terminal"));
        last.is_ok().then(|| Use { what, by, last, counts_for: start_after.min(rules.after) })
    }
}

/// Possible cgroups of a service: systemd gives templates a slice of their own. A name with a slash is a path.
fn candidates(name: &str) -> Vec<PathBuf> {
    if name.contains('/') {
        return vec![Path::new(name.trim_start_matches('/')).to_owned()];
    }
    let system = Path::new("system.slice");
    let template = name.split_once('@').map(|(prefix, _)| {
        let slice = format!("system-{}.slice", prefix.replace('-', "\\x2d"));
        system.join(slice).join(name)
    });
    [Some(system.join(name)), template].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with logind and cgroups, as files.
    struct Machine {
        dir: tempfile::TempDir,
        watch: Watch,
        rules: Rules,
    }

    impl Machine {
        fn new() -> Machine {
            let dir = tempfile::tempdir().expect("a directory");
            fs::create_dir_all(dir.path().join("run/systemd/sessions")).expect("made");
            fs::create_dir_all(dir.path().join("proc/self")).expect("made");
            let mut settings = Settings::of_a_desk();
            settings.run = dir.path().join("run");
            settings.sys = dir.path().join("sys");
            settings.proc = dir.path().join("proc");
            let cgroups = "0::/user.slice/user-1000.slice/session-9.scope\n";
            fs::write(dir.path().join("proc/self/cgroup"), cgroups).expect("written");
            let watch = Watch::new(&settings);
            Machine { dir, watch, rules: Rules::of_a_desk() }
        }

        fn session(&self, id: &str, user: &str, more: &str) {
            let text = format!(
                "UID=1000\nUSER={user}\nSTATE=active\nCLASS=user\nSCOPE=session-{id}.scope\nSERVICE=sshd\n{more}\n"
            );
            fs::write(self.dir.path().join("run/systemd/sessions").join(id), text).expect("written");
        }

        fn used(&self, cgroup: &str, seconds: u64) {
            let cgroup = self.dir.path().join("sys/fs/cgroup").join(cgroup);
            fs::create_dir_all(&cgroup).expect("made");
            fs::write(cgroup.join("cpu.stat"), format!("usage_usec {}\n", seconds * 1_000_000)).expect("written");
        }

        fn used_in(&self, scope: &str, seconds: u64) {
            self.used(&format!("user.slice/user-1000.slice/{scope}"), seconds);
        }

        fn read(&mut self, at: u64) -> Result<Option<String>, String> {
            let now = Duration::from_secs(at);
            let remote = self.watch.read(&self.rules, Duration::from_secs(900), now)?;
            Ok(remote.objection(now))
        }

        fn counts(&mut self, at: u64) -> bool {
            self.read(at).expect("it is known").is_some()
        }
    }

    #[test]
    fn a_remote_editor_counts_until_two_hours_after_its_last_use() {
        let mut machine = Machine::new();
        machine.rules.cpu = 2.0;
        assert!(!machine.counts(990), "nobody is there");
        machine.session("3", "alice", "");
        machine.used_in("session-3.scope", 1);
        assert!(!machine.counts(1000), "a check by ssh is no person");
        machine.used_in("session-3.scope", 20);
        let reason = machine.read(1030).expect("it is known").expect("it counts");
        assert_eq!(reason, "its person works here without a terminal, or did less than 2 h ago (session 3 by sshd)");
        for minute in 1..120 {
            machine.used_in("session-3.scope", 20 + minute);
            assert!(machine.counts(1030 + minute * 60), "{minute}");
        }
        machine.used_in("session-3.scope", 140);
        assert!(!machine.counts(1030 + 120 * 60), "an idle language server is no person");
        machine.used_in("session-3.scope", 150);
        assert!(machine.counts(10_000));
    }

    #[test]
    fn one_that_has_ended_counts_for_as_long_as_without_input() {
        let mut machine = Machine::new();
        machine.session("3", "alice", "");
        machine.used_in("session-3.scope", 20);
        assert!(machine.counts(1000));
        machine.session("3", "alice", "STATE=closing");
        let reason = machine.read(1010).expect("it is known").expect("it counts");
        assert!(reason.ends_with("less than 15 min ago (session 3 by sshd, ended)"), "{reason}");
        assert!(machine.counts(1899));
        assert!(!machine.counts(1900));
    }

    #[test]
    fn an_editor_that_connects_again_finds_its_server_in_the_closing_session() {
        let mut machine = Machine::new();
        machine.session("3", "alice", "STATE=closing");
        machine.used_in("session-3.scope", 500);
        machine.session("4", "alice", "");
        machine.used_in("session-4.scope", 0);
        assert!(!machine.counts(1000), "it has done nothing since");
        machine.used_in("session-3.scope", 510);
        let reason = machine.read(1030).expect("it is known").expect("it counts");
        assert!(reason.ends_with("(session 4 by sshd)"), "{reason}");
        // The last of its programs ends. Its use is not taken back, which would look like another cgroup.
        fs::remove_file(machine.dir.path().join("run/systemd/sessions/3")).expect("it is there");
        assert!(!machine.counts(1030 + 7200));
        // A session that begins later has no part in what was used before.
        machine.session("5", "alice", "");
        machine.used_in("session-5.scope", 0);
        assert!(!machine.counts(9000));
        // Without a live session such programs are no person.
        let mut machine = Machine::new();
        machine.session("3", "alice", "STATE=closing");
        machine.used_in("session-3.scope", 500);
        assert!(!machine.counts(1000));
        machine.used_in("session-3.scope", 600);
        assert!(!machine.counts(1030));
    }

    #[test]
    fn a_desktop_works_in_the_cgroup_of_its_users_manager() {
        let mut machine = Machine::new();
        machine.session("3", "alice", "TYPE=x11");
        machine.used_in("session-3.scope", 0);
        machine.used_in("user@1000.service", 0);
        assert!(!machine.counts(1000));
        machine.used_in("user@1000.service", 20);
        assert!(machine.counts(1030));
        // Beside a session without a desktop it is that of another.
        let mut machine = Machine::new();
        machine.session("3", "alice", "TYPE=tty");
        machine.used_in("session-3.scope", 0);
        machine.used_in("user@1000.service", 20);
        assert!(!machine.counts(1000));
    }

    #[test]
    fn what_is_no_persons_never_counts() {
        let mut machine = Machine::new();
        machine.used_in("session-9.scope", 20);
        machine.session("9", "alice", "");
        assert!(!machine.counts(1000), "the agent's own");
        machine.used_in("session-4.scope", 20);
        machine.session("4", "backup", "");
        machine.rules.ignored_users = vec!["backup".to_owned()];
        assert!(!machine.counts(1005), "an ignored one");
        machine.used_in("session-5.scope", 20);
        machine.session("5", "alice", "CLASS=manager");
        machine.session("6", "alice", "SEAT=seat0");
        assert!(!machine.counts(1010));
        machine.rules = Rules { count: false, ..Rules::of_a_desk() };
        machine.session("7", "alice", "");
        assert!(!machine.counts(1015), "they do not matter");
    }

    #[test]
    fn use_beside_a_terminal_counts_for_as_long_as_input() {
        let mut machine = Machine::new();
        // sshd, and below it a shell in a terminal.
        let proc = machine.dir.path().join("proc");
        let process = |number: u32, parent: u32, terminal: u32, children: &str| {
            let process = proc.join(number.to_string());
            fs::create_dir_all(process.join(format!("task/{number}"))).expect("made");
            fs::write(process.join(format!("task/{number}/children")), children).expect("written");
            let stat = format!("{number} (sh) S {parent} {number} {number} {terminal} -1 0");
            fs::write(process.join("stat"), stat).expect("written");
        };
        process(10, 1, 0, "12");
        process(12, 10, 34816, "");
        machine.session("3", "alice", "LEADER=10");
        assert!(!machine.counts(990), "its terminal tells of input, so nothing is unknown");
        machine.used_in("session-3.scope", 0);
        assert!(!machine.counts(1000), "an idle shell");
        machine.used_in("session-3.scope", 20);
        let reason = machine.read(1030).expect("it is known").expect("a notebook behind its tunnel");
        assert!(reason.ends_with("did less than 15 min ago (session 3 by sshd, beside its terminal)"), "{reason}");
        assert!(machine.counts(1929));
        assert!(!machine.counts(1930));
        // Beside an editor the session counts for longer.
        fs::write(proc.join("10/task/10/children"), "12 13").expect("written");
        process(13, 10, 0, "");
        assert!(machine.counts(1935));
    }

    #[test]
    fn use_that_cannot_be_told_counts() {
        let mut machine = Machine::new();
        machine.session("3", "alice", "");
        let reason = machine.read(1000).expect("it is known").expect("it counts");
        assert!(reason.contains("no cgroup session-3.scope below "), "{reason}");
        machine.session("3", "alice", "STATE=opening");
        assert!(!machine.counts(1002), "its cgroup comes in a moment");
        machine.session("3", "alice", "SCOPE=");
        assert!(machine.read(1005).expect("it is known").expect("it counts").contains("names no cgroup"));
        fs::write(machine.dir.path().join("run/systemd/sessions/4"), "what").expect("written");
        assert!(machine.read(1010).is_err());
    }

    #[test]
    fn services_in_which_people_work_count_if_their_owner_says_so() {
        let mut machine = Machine::new();
        machine.rules.services =
            ["jupyter.service", "code-server@bob.service", "/docker/abc"].map(str::to_owned).into();
        assert!(!machine.counts(1000), "none of them runs");
        for (at, cgroup, expected) in [
            (1100, "system.slice/jupyter.service", "(service jupyter.service)"),
            (
                10_000,
                r"system.slice/system-code\x2dserver.slice/code-server@bob.service",
                "(service code-server@bob.service)",
            ),
            (20_000, "docker/abc", "(service /docker/abc)"),
        ] {
            machine.used(cgroup, 20);
            let reason = machine.read(at).expect("it is known").expect("it counts");
            assert!(reason.ends_with(expected), "{reason}");
        }
        assert!(!machine.counts(30_000));
    }
}
