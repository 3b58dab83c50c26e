//! The Debian package: built, found sound, installed with a token, upgraded, removed and purged.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pcfarm_bench::farm::executable_path;

use super::site::{Ran, Site, has, is_root, ran, url};

/// How a unit begins that an installation without a package has put there.
const COPIED: &str = "# Put there, with its program, by `pcfarm-worker install`.\n";

/// The package's entries of desktops, which are settings.
const AUTOSTART: &str = "etc/xdg/autostart/pcfarm-session.desktop";
const SWAY: &str = "etc/sway/config.d/60-pcfarm-session.conf";

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder of the repository").to_owned()
}

/// Of the agent that is built already.
pub async fn package(output: &Path, version: &str) -> PathBuf {
    let mut command = Command::new(repository().join("scripts/package"));
    command.args(["--quick", "--version", version, "--output"]).arg(output);
    command.arg("--program").arg(executable_path("pcfarm-worker")).stdin(Stdio::null());
    let built = ran(command).await;
    assert_eq!(built.code, Some(0), "{built:?}");
    PathBuf::from(built.stdout.trim())
}

impl Site {
    /// A system with users and packages, but no programs: maintainers' scripts run outside of it.
    pub fn with_packages(&self) {
        for directory in ["etc", "var/lib/dpkg/updates", "var/lib/dpkg/info"] {
            std::fs::create_dir_all(self.at(directory)).expect("made");
        }
        for file in ["status", "available"] {
            std::fs::write(self.at("var/lib/dpkg").join(file), "").expect("written");
        }
    }

    async fn dpkg(&self, arguments: &[&OsStr]) -> Ran {
        let mut command = Command::new("dpkg");
        command.arg(format!("--root={}", self.root.display()));
        // What it depends on is this machine's.
        command.args(["--force-script-chrootless", "--force-depends"]).args(arguments).stdin(Stdio::null());
        let ran = ran(command).await;
        assert_eq!(ran.code, Some(0), "{arguments:?}: {ran:?}");
        ran
    }

    /// Without dpkg's own.
    fn installed(&self) -> BTreeSet<String> {
        self.files()
            .into_iter()
            .filter(|path| !path.starts_with("var/lib/dpkg/") && !path.starts_with("var/log/"))
            .collect()
    }
}

#[tokio::test]
async fn a_package_is_installed_upgraded_removed_and_purged() {
    if !is_root() || !has("dpkg-deb") || !has("systemd-sysusers") {
        return;
    }
    let site = Site::new().await;
    let server = site.serving("a").await;
    let token = site.join_token(&server, 2).await;
    let packages = site.farm.path("packages");
    let first = package(&packages, "1.0.0").await;
    if has("lintian") {
        let mut command = Command::new("lintian");
        command.args(["--allow-root", "--fail-on", "error,warning"]).arg(&first);
        let found = ran(command).await;
        assert_eq!(found.code, Some(0), "{}", found.stdout);
    }
    site.with_packages();

    // Without a token it waits for one, with settings that say what there is to set.
    let waits = site.dpkg(&["--install".as_ref(), first.as_os_str()]).await;
    assert!(waits.stderr.contains("not in a farm yet"), "{waits:?}");
    let config = site.at("etc/pcfarm/worker.toml");
    assert!(std::fs::read_to_string(&config).expect("settings").contains("\n# start_after = 900"));
    let wanted = "etc/systemd/system/multi-user.target.wants/pcfarm-worker.service";
    assert!(!site.installed().contains(wanted), "it would be refused all day");

    // With one, which names its server as well, it joins, and the token is gone.
    let token_file = site.at("etc/pcfarm/join-token");
    std::fs::write(&token_file, format!("{token}\n{}\n", url(&server))).expect("written");
    site.dpkg(&["--install".as_ref(), first.as_os_str()]).await;
    assert!(!token_file.exists(), "a token is nothing to keep");
    let (identity, files) = (site.identity(), site.installed());
    assert_eq!(site.joined(&server).await, [identity.as_str()]);
    assert!(files.contains(wanted) && files.contains("usr/bin/pcfarm-worker"), "{files:?}");
    for drop_in in ["gpu", "32-bit", "netlink", "browser-sandbox"] {
        assert!(files.contains(&format!("usr/share/pcfarm-worker/drop-ins/{drop_in}.conf")), "{drop_in}: {files:?}");
    }
    assert!(!files.contains("etc/systemd/system/pcfarm-worker.service"), "the package's unit is the one: {files:?}");
    let unit = std::fs::read_to_string(site.at("lib/systemd/system/pcfarm-worker.service")).expect("a unit");
    assert!(unit.contains("\nExecStart=/usr/bin/pcfarm-worker --config /etc/pcfarm/worker.toml\n"), "{unit}");
    let mut doctor = site.doctor();
    doctor.args(["--unattended", "doctor"]);
    let well = ran(doctor).await;
    assert_eq!(well.code, Some(0), "{well:?}");

    // An upgrade changes neither who it is nor what a person has written.
    let text = std::fs::read_to_string(&config).expect("settings").replace("# cores = 4", "cores = 1");
    std::fs::write(&config, &text).expect("written");
    // What somebody had installed before there was a package gives way to it; settings laid down closed are opened to it.
    let own = ["etc/systemd/system/pcfarm-worker.service", "usr/local/bin/pcfarm-worker"].map(|path| site.at(path));
    std::fs::create_dir_all(site.at("usr/local/bin")).expect("made");
    std::fs::write(&own[0], format!("{COPIED}[Service]\nExecStart=/usr/local/bin/pcfarm-worker --config x\n"))
        .expect("written");
    std::fs::write(&own[1], "an old one").expect("written");
    std::fs::set_permissions(&config, std::fs::Permissions::from_mode(0o600)).expect("closed");
    // Each session of a desktop starts a helper, unless the administrator says otherwise.
    let autostart = site.at(AUTOSTART);
    let entry = std::fs::read_to_string(&autostart).expect("an entry");
    assert!(entry.contains("\nExec=/usr/bin/pcfarm-worker session --autostart\n"), "{entry}");
    let hidden = format!("{entry}Hidden=true\n");
    std::fs::write(&autostart, &hidden).expect("written");
    let second = package(&packages, "1.0.1").await;
    site.dpkg(&["--install".as_ref(), second.as_os_str()]).await;
    assert_eq!((site.identity(), site.installed()), (identity, files));
    let mode = std::fs::metadata(&config).expect("settings").permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    assert_eq!(std::fs::read_to_string(&config).expect("settings"), text);

    assert_eq!(std::fs::read_to_string(&autostart).expect("an entry"), hidden);

    // Removed, its settings are left; purged, nothing is.
    site.dpkg(&["--remove", "pcfarm-worker"].map(OsStr::new)).await;
    assert_eq!(site.installed().into_iter().collect::<Vec<_>>(), ["etc/pcfarm/worker.toml", SWAY, AUTOSTART]);
    assert!(!site.at("var/lib/pcfarm-worker").exists());
    site.dpkg(&["--purge", "pcfarm-worker"].map(OsStr::new)).await;
    assert!(site.installed().is_empty() && !site.at("etc/pcfarm").exists(), "{:?}", site.installed());
    let users = std::fs::read_to_string(site.at("etc/passwd")).expect("users");
    assert!(!users.contains("pcfarm-worker"), "{users}");

    // What cannot join is installed all the same, and keeps its token for another time.
    std::fs::create_dir_all(site.at("etc/pcfarm")).expect("made");
    std::fs::write(&token_file, format!("{token}\nhttps://no-such-host.invalid:1\n")).expect("written");
    let fails = site.dpkg(&["--install".as_ref(), second.as_os_str()]).await;
    assert!(fails.stderr.contains("FAILED  name") && fails.stderr.contains("not in the farm yet"), "{fails:?}");
    assert!(token_file.exists() && !site.installed().contains(wanted));
}
