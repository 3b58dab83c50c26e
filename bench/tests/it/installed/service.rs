//! Installed with one token, run under a service manager, upgraded in the middle of work, and taken away.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use pcfarm_bench::farm::{LONG, SOON, free_port};
use pcfarm_bench::program::Program;
use serde_json::{Value, json};

use super::site::{Ran, Site, is_root, ran, url, worker};

/// A service manager's ear, which wants to hear once a second.
struct Manager(UnixDatagram);

impl Manager {
    fn of(program: Program, site: &Site) -> (Manager, Program) {
        let path = site.farm.path("notify");
        drop(fs::remove_file(&path));
        let socket = UnixDatagram::bind(&path).expect("a socket");
        socket.set_read_timeout(Some(SOON)).expect("a deadline");
        let program = program.environment("NOTIFY_SOCKET", path.as_os_str()).environment("WATCHDOG_USEC", "1000000");
        (Manager(socket), program)
    }

    fn next(&self) -> std::io::Result<String> {
        let mut buffer = [0; 4096];
        let length = self.0.recv(&mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }

    /// Hears on until this is said, and returns all of that message.
    fn until(&self, wanted: &str) -> String {
        let deadline = Instant::now() + SOON;
        while Instant::now() < deadline {
            let said = self.next().expect("it speaks in time");
            if said.lines().any(|line| line == wanted) {
                return said;
            }
        }
        panic!("{wanted} was not said");
    }

    /// Forgets what was said, and hears whether nothing is for longer than it was promised.
    fn is_silent(&self) -> bool {
        self.0.set_nonblocking(true).expect("set");
        while self.next().is_ok() {}
        self.0.set_nonblocking(false).expect("set");
        self.0.set_read_timeout(Some(Duration::from_millis(1500))).expect("set");
        let heard = self.next();
        self.0.set_read_timeout(Some(SOON)).expect("set");
        heard.is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
    }
}

impl Site {
    /// The installed program, as its unit starts it.
    fn service(&self) -> Program {
        let unit = fs::read_to_string(self.at("etc/systemd/system/pcfarm-worker.service")).expect("a unit");
        let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("it starts something");
        let mut words = start.split(' ').map(|word| match word.strip_prefix('/') {
            Some(path) => self.at(path).into_os_string(),
            None => word.into(),
        });
        let program = words.next().expect("a program");
        let program = Program::new("service", program.as_ref(), &self.farm.path("service.log")).arguments(words);
        let directories = [("STATE", "var/lib"), ("CACHE", "var/cache"), ("RUNTIME", "run")];
        directories.into_iter().fold(program, |program, (name, below)| {
            let path = self.at(below).join("pcfarm-worker");
            fs::create_dir_all(&path).expect("made");
            program.environment(&format!("{name}_DIRECTORY"), path.as_os_str())
        })
    }

    async fn uninstall(&self, purge: bool) -> Ran {
        let mut command = worker();
        command.arg("uninstall").arg("--root").arg(&self.root).args(purge.then_some("--purge"));
        ran(command).await
    }

    async fn status(&self) -> (Option<i32>, Value) {
        let mut command = self.doctor();
        command.arg("--socket").arg(self.at("run/pcfarm-worker/agent.sock")).args(["status", "--output", "json"]);
        let ran = ran(command).await;
        (ran.code, serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}")))
    }
}

#[tokio::test]
async fn who_cannot_join_is_told_why_and_nothing_is_left() {
    let site = Site::new().await;
    let other = Site::new().await;
    let (server, others) = (site.serving("a").await, other.serving("others").await);
    let token = site.join_token(&server, 1).await;
    let used = site.join_token(&server, 1).await;
    let elsewhere = other.join_token(&others, 1).await;
    if is_root() {
        let mut command = worker();
        let first = tempfile::tempdir().expect("a directory");
        let file = site.token_file(&format!("{}\n{used}\n", url(&server)));
        command.args(["install", "--unattended", "--root"]).arg(first.path()).arg("--token-file").arg(file);
        let first = ran(command).await;
        assert_eq!(first.code, Some(0), "a token file that names its server is all there need be: {first:?}");
    }
    let nowhere = format!("https://localhost:{}", free_port());
    let mut cases = vec![
        (url(&server), "pcfj_short".to_owned(), 2, "this is not a join token"),
        ("ftp://farm:1".to_owned(), token.clone(), 2, "only http and https are spoken"),
        (nowhere, token.clone(), 3, "FAILED  port"),
        ("https://no-such-host.invalid:1".to_owned(), token.clone(), 3, "FAILED  name"),
        (url(&server), elsewhere, 5, "FAILED  token        it is another farm's"),
    ];
    if is_root() {
        cases.push((url(&server), used, 5, "FAILED  token        this join token was used up"));
    }
    for (address, token, code, says) in cases {
        let refused = site.install(&address, &token).await;
        assert_eq!(refused.code, Some(code), "{address}: {refused:?}");
        assert!(refused.stderr.contains(says), "{address}: {refused:?}");
        assert!(site.files().is_empty(), "{address} left {:?}", site.files());
        let users = fs::read_to_string(site.at("etc/passwd")).unwrap_or_default();
        assert!(!users.contains("pcfarm-worker"), "{address} left {users}");
    }
    let joined = site.joined(&server).await.len();
    assert_eq!(joined, usize::from(is_root()), "nobody else has joined");
    // Without a server there is nothing to ask.
    let mut command = worker();
    command.args(["install", "--root"]).arg(&site.root);
    let refused = ran(command).await;
    assert!(refused.code == Some(2) && refused.stderr.contains("--server"), "{refused:?}");
}

#[tokio::test]
async fn an_installed_agent_runs_survives_its_upgrade_and_is_taken_away() {
    if !is_root() {
        return;
    }
    let site = Site::new().await;
    let server = site.serving("a").await;
    let token = site.join_token(&server, 1).await;
    let installed = site.install(&url(&server), &token).await;
    assert_eq!(installed.code, Some(0), "{installed:?}");
    let expected = [
        "etc/pcfarm/worker.toml",
        "etc/systemd/system/multi-user.target.wants/pcfarm-worker.service",
        "etc/systemd/system/pcfarm-worker.service",
        "usr/local/bin/pcfarm-worker",
        "var/lib/pcfarm-worker/authority.pem",
        "var/lib/pcfarm-worker/certificate.pem",
        "var/lib/pcfarm-worker/identity",
        "var/lib/pcfarm-worker/key.pem",
        "var/lib/pcfarm-worker/renew_at",
    ];
    assert_eq!(site.files().into_iter().collect::<Vec<_>>(), expected);
    let wanted = site.at("etc/systemd/system/multi-user.target.wants/pcfarm-worker.service");
    let target = fs::read_link(wanted).expect("a link");
    assert_eq!(target.to_str(), Some("/etc/systemd/system/pcfarm-worker.service"));
    // The service's user has its state to itself, and reads the settings, which others do not.
    let known = fs::read_to_string(site.at("etc/passwd")).expect("users");
    let user = known.lines().find(|line| line.starts_with("pcfarm-worker:")).expect("the service's user");
    let uid: u32 = user.split(':').nth(2).expect("a number").parse().expect("a number");
    for (path, mode, owner) in [
        ("var/lib/pcfarm-worker", 0o700, uid),
        ("var/lib/pcfarm-worker/key.pem", 0o600, uid),
        ("var/lib/pcfarm-worker/identity", 0o600, uid),
        ("etc/pcfarm/worker.toml", 0o640, 0),
        ("etc/pcfarm", 0o755, 0),
        ("usr/local/bin/pcfarm-worker", 0o755, 0),
    ] {
        let metadata = fs::metadata(site.at(path)).expect(path);
        assert_eq!((metadata.permissions().mode() & 0o777, metadata.uid()), (mode, owner), "{path}");
    }
    let groups = fs::read_to_string(site.at("etc/group")).expect("groups");
    assert!(groups.lines().any(|line| line.starts_with("input:") && line.ends_with("pcfarm-worker")), "{groups}");

    // Once more is harmless, keeps who it is, and what a person has written.
    let identity = site.identity();
    let config = site.at("etc/pcfarm/worker.toml");
    let text =
        fs::read_to_string(&config).expect("settings").replace("# grace = 10\n", "grace = 12\n") + "\n# by hand\n";
    fs::write(&config, &text).expect("written");
    let again = site.install(&url(&server), &token).await;
    assert!(again.code == Some(0) && again.stdout.contains("is in the farm already"), "{again:?}");
    let conflict = site.install("https://elsewhere:1", &token).await;
    assert!(conflict.code == Some(2) && conflict.stderr.contains("is not changed"), "{conflict:?}");
    assert_eq!((site.identity(), fs::read_to_string(&config).expect("settings")), (identity.clone(), text));
    assert_eq!(site.joined(&server).await, [identity.as_str()]);

    runs_and_is_upgraded(&site, &identity).await;

    let gone = site.uninstall(false).await;
    assert_eq!(gone.code, Some(0), "{gone:?}");
    assert_eq!(site.files().into_iter().collect::<Vec<_>>(), ["etc/pcfarm/worker.toml"]);
    assert!(!site.at("var/lib/pcfarm-worker").exists() && !site.at("var/cache/pcfarm-worker").exists());
    let gone = site.uninstall(true).await;
    assert_eq!(gone.code, Some(0), "{gone:?}");
    assert!(site.files().is_empty(), "{:?}", site.files());
    let known = fs::read_to_string(site.at("etc/passwd")).expect("users");
    assert!(!known.contains("pcfarm-worker:"), "{gone:?}: {known}");
    let nothing = site.uninstall(true).await;
    assert!(nothing.code == Some(0) && nothing.stdout.contains("nothing was there"), "{nothing:?}");
}

/// Under a manager, which replaces it by its next version while it works.
async fn runs_and_is_upgraded(site: &Site, identity: &str) {
    site.farm.job_type("nap", "sleep", json!({})).await;
    let (code, status) = site.status().await;
    assert!(code == Some(3) && status["identity"] == identity && status["explanation"].is_null(), "{status}");

    let (manager, mut agent) = Manager::of(site.service(), site);
    agent.start();
    manager.until("READY=1");
    for _ in 0..3 {
        manager.until("WATCHDOG=1");
    }
    site.farm.until(LONG, "select count(*) = 1 from pcfarm.workstation where state = 'waiting'").await;
    let (code, status) = site.status().await;
    assert_eq!(
        (code, &status["hostname"], &status["identity"]),
        (Some(0), &json!("pc17"), &json!(identity)),
        "{status}"
    );
    let id: String = site.farm.query("select workstation_id::text from pcfarm.workstation", &[]).await[0].get(0);
    assert_eq!(status["session"]["workstation_id"], id, "{status}");
    assert_eq!(status["explanation"]["activity"], "works", "{status}");
    agent.freeze();
    assert!(manager.is_silent(), "what stands still says that it is well");
    agent.thaw();
    manager.until("WATCHDOG=1");

    // Told to stop in the middle of work it finishes that, and says how long it may take.
    let job = site.farm.submit_sleeps("nap", 6, 1500, 1).await;
    site.farm.until(LONG, "select count(*) >= 1 from pcfarm.result").await;
    agent.terminate();
    let said = manager.until("STOPPING=1");
    assert!(said.contains("EXTEND_TIMEOUT_USEC=42000000"), "its own grace, and 30 s for goodbyes: {said}");
    assert!(agent.ended(SOON).await.success(), "{}", agent.log());
    let done = site.farm.number("select count(*) from pcfarm.result").await;
    assert!((3..6).contains(&done), "what it had begun is done, and no more: {done}");
    let (_manager, mut next) = Manager::of(site.service(), site);
    next.start();
    assert_eq!(site.farm.ended(job, LONG).await, "done");
    assert_eq!(site.farm.number("select count(*) from pcfarm.workstation").await, 1, "it is the same workstation");
    let attempts = site.farm.number("select count(*) from pcfarm.failed_attempt").await;
    assert_eq!(attempts, 0, "what was given back costs nothing");
    next.terminate();
    assert!(next.ended(SOON).await.success(), "{}", next.log());
}
