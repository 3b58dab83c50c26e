//! `deploy/rollout`: what it refuses, and a host that is reached by a real ssh.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use pcfarm_bench::farm::free_port;
use tokio::net::TcpStream;
use tokio::time::{Duration, Instant, sleep};

use super::package::{package, repository};
use super::site::{Ran, Site, has, is_root, ran, url};

async fn rollout(arguments: &[&str]) -> Ran {
    let mut command = Command::new(repository().join("deploy/rollout"));
    command.args(arguments).stdin(Stdio::null());
    ran(command).await
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_before_any_host_is_asked() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("text").to_owned()
    };
    let (package, token) = (file("a.deb", ""), file("token", "pcfj_x"));
    let (empty, bad) = (file("empty", "# nobody\n\n"), file("bad", "pc1\n-oProxyCommand=sh\n"));
    let whole = ["--package", &package, "--token-file", &token];
    for (arguments, says) in [
        (vec![], "which package?"),
        (vec!["--package", &package, "pc1"], "which token?"),
        (vec!["--package"], "--package needs a value"),
        (vec!["--package", "/nowhere.deb", "--token-file", &token, "pc1"], "/nowhere.deb cannot be read"),
        (vec!["--package", &token, "--token-file", &token, "pc1"], "is not a Debian package"),
        (whole.to_vec(), "which hosts?"),
        ([&whole[..], &["--hosts", &empty]].concat(), "which hosts?"),
        ([&whole[..], &["--hosts", &bad]].concat(), "not the name of a host: -oProxyCommand=sh"),
        ([&whole[..], &["pc1;reboot"]].concat(), "not the name of a host"),
        ([&whole[..], &["--parallel", "many", "pc1"]].concat(), "--parallel is a number"),
        ([&whole[..], &["--timeout", "0", "pc1"]].concat(), "--timeout is a number"),
        ([&whole[..], &["--root", "/a b", "pc1"]].concat(), "--root is a plain path"),
        ([&whole[..], &["--colour", "pc1"]].concat(), "unknown: --colour"),
    ] {
        let refused = rollout(&arguments).await;
        assert!(refused.code == Some(2) && refused.stderr.contains(says), "{arguments:?}: {refused:?}");
    }
    let help = rollout(&["--help"]).await;
    assert!(help.code == Some(0) && help.stdout.contains("--parallel N"), "{help:?}");
}

/// A server of ssh for this test's user and key alone.
struct Shell {
    child: Child,
    port: u16,
    key: PathBuf,
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Shell {
    async fn start(site: &Site) -> Shell {
        let dir = site.farm.path("ssh");
        std::fs::create_dir(&dir).expect("made");
        for name in ["host", "key"] {
            let mut command = Command::new("ssh-keygen");
            command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(dir.join(name)).stdin(Stdio::null());
            assert_eq!(ran(command).await.code, Some(0));
        }
        std::fs::copy(dir.join("key.pub"), dir.join("authorized")).expect("copied");
        let port = free_port();
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {0}/host\nAuthorizedKeysFile {0}/authorized\n\
             PidFile none\nUsePAM no\nStrictModes no\nPermitRootLogin prohibit-password\nPasswordAuthentication no\n",
            dir.display()
        );
        std::fs::write(dir.join("config"), config).expect("written");
        // Of root it wants a directory that packages make when they start it.
        std::fs::create_dir_all("/run/sshd").expect("made");
        let log = std::fs::File::create(dir.join("log")).expect("a log");
        let mut command = Command::new("/usr/sbin/sshd");
        command.args(["-D", "-e", "-f"]).arg(dir.join("config")).stdin(Stdio::null()).stderr(log);
        let child = command.spawn().expect("it runs");
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            assert!(Instant::now() < deadline, "{}", std::fs::read_to_string(dir.join("log")).unwrap_or_default());
            sleep(Duration::from_millis(20)).await;
        }
        Shell { child, port, key: dir.join("key") }
    }
}

#[tokio::test]
async fn hosts_are_rolled_out_to_and_each_failure_is_named() {
    if !is_root() || !["dpkg-deb", "systemd-sysusers", "sshd", "ssh-keygen"].iter().all(|program| has(program)) {
        return;
    }
    let site = Site::new().await;
    let server = site.serving("a").await;
    let token = site.join_token(&server, 1).await;
    let package = package(&site.farm.path("packages"), "1.0.0").await;
    site.with_packages();
    let shell = Shell::start(&site).await;
    let hosts = site.farm.path("hosts");
    std::fs::write(&hosts, "# the lab\nlocalhost  # the first\nno-such-host.invalid\n").expect("written");
    let config = site.farm.path("settings");
    std::fs::write(&config, format!("server = \"{}\"\nunattended = true\n", url(&server))).expect("written");
    let roll_out = async |token: &str, hosts: &[&str]| {
        let token = site.token_file(token);
        let (port, key) = (format!("Port={}", shell.port), format!("IdentityFile={}", shell.key.display()));
        let text = |path: &PathBuf| path.to_str().expect("text").to_owned();
        let (package, token, config, reports) =
            (text(&package), text(&token), text(&config), text(&site.farm.path("reports")));
        let (root, known) = (text(&site.root), format!("UserKnownHostsFile={}", site.farm.path("known").display()));
        let options = [
            "--package",
            &package,
            "--token-file",
            &token,
            "--config",
            &config,
            "--reports",
            &reports,
            "--root",
            &root,
        ];
        let mut arguments = options.to_vec();
        for option in [&*port, &key, &known, "StrictHostKeyChecking=accept-new", "IdentitiesOnly=yes"] {
            arguments.extend(["--ssh-option", option]);
        }
        rollout(&[&arguments[..], hosts].concat()).await
    };
    let log = || std::fs::read_to_string(site.farm.path("reports/localhost.log")).unwrap_or_default();

    // A token that is no good: the host is named, with the reason, and nothing of the token is left on it but the file that
    // waits for another try.
    let none = format!("{}{}", &token[..80], "A".repeat(token.len() - 80));
    let refused = roll_out(&none, &["localhost"]).await;
    assert_eq!(refused.code, Some(1), "{refused:?}: {}", log());
    let says = "FAILED  localhost: token this join token is not known to this farm: ";
    assert!(refused.stdout.starts_with(says), "{refused:?}: {}", log());

    let both = roll_out(&token, &["--hosts", hosts.to_str().expect("text")]).await;
    assert_eq!(both.code, Some(1), "one of them is not there: {both:?}: {}", log());
    let mut lines: Vec<&str> = both.stdout.lines().collect();
    lines.sort_unstable();
    assert!(lines[0].starts_with("FAILED  no-such-host.invalid: ssh: "), "{both:?}");
    assert_eq!(lines[2], "ok      localhost", "{both:?}: {}", log());
    let identity = site.identity();
    assert_eq!(site.joined(&server).await, [identity.as_str()]);
    assert!(!site.at("etc/pcfarm/join-token").exists());

    // Once more, with a token that is used up: it is in the farm already.
    let again = roll_out(&token, &["localhost"]).await;
    assert_eq!((again.code, site.identity()), (Some(0), identity), "{again:?}: {}", log());
    let left =
        std::fs::read_dir("/tmp").expect("read").flatten().any(|entry| entry.path().join("pcfarm-worker.deb").exists());
    assert!(!left, "a bundle is left");
}
