//! Where a service's things are, under `/` or under a directory that will be one; and systemd.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::platform::{SYSTEM_CONFIG, SYSTEM_STATE_DIR};

pub const UNIT: &str = "pcfarm-worker.service";
pub const USER: &str = "pcfarm-worker";

pub const UNIT_TEXT: &str = include_str!("../../../deploy/systemd/pcfarm-worker.service");
pub const SYSUSERS_TEXT: &str = include_str!("../../../deploy/systemd/pcfarm-worker.sysusers");
/// The drop-in that opens the devices of GPUs to the service.
pub const GPU_TEXT: &str = include_str!("../../../deploy/systemd/drop-ins/gpu.conf");
pub const CONFIG_TEXT: &str = include_str!("../../../deploy/worker.toml");

/// The program that [`UNIT_TEXT`] starts.
pub const UNIT_PROGRAM: &str = "/usr/local/bin/pcfarm-worker";

/// The system, or a directory that will be one.
#[derive(Clone, Debug)]
pub struct Places {
    root: PathBuf,
}

impl Places {
    pub fn of_system() -> Places {
        Places::under(None)
    }

    pub fn under(root: Option<&Path>) -> Places {
        Places { root: root.unwrap_or(Path::new("/")).to_owned() }
    }

    pub fn is_system(&self) -> bool {
        self.root == Path::new("/")
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where a path of the system is.
    pub fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    pub fn config(&self) -> PathBuf {
        self.at(SYSTEM_CONFIG)
    }

    pub fn state(&self) -> PathBuf {
        self.at(SYSTEM_STATE_DIR)
    }

    pub fn own_unit(&self) -> PathBuf {
        self.at("/etc/systemd/system").join(UNIT)
    }

    pub fn drop_ins(&self) -> PathBuf {
        self.at("/etc/systemd/system").join(format!("{UNIT}.d"))
    }

    pub fn wanted(&self) -> PathBuf {
        self.at("/etc/systemd/system/multi-user.target.wants").join(UNIT)
    }

    /// One that a package has brought.
    pub fn packaged_unit(&self) -> Option<PathBuf> {
        let places = ["/usr/lib/systemd/system", "/lib/systemd/system"].map(|place| self.at(place).join(UNIT));
        places.into_iter().find(|unit| unit.exists())
    }

    /// The one that systemd goes by.
    pub fn unit(&self) -> Option<PathBuf> {
        Some(self.own_unit()).filter(|unit| unit.exists()).or_else(|| self.packaged_unit())
    }

    /// The numbers of the service's user and of its group.
    pub fn user(&self) -> Option<(u32, u32)> {
        let known = fs::read_to_string(self.at("/etc/passwd")).ok()?;
        let of_user = known.lines().find(|line| line.split(':').next() == Some(USER))?;
        let mut fields = of_user.split(':').skip(2).map(str::parse);
        Some((fields.next()?.ok()?, fields.next()?.ok()?))
    }

    /// Makes the user and its group, if they are not there.
    pub fn make_user(&self) -> anyhow::Result<(u32, u32)> {
        if let Some(known) = self.user() {
            return Ok(known);
        }
        let etc = self.at("/etc");
        fs::create_dir_all(&etc).with_context(|| format!("making {}", etc.display()))?;
        let mut command = Command::new("systemd-sysusers");
        command.arg(format!("--root={}", self.root.display())).arg("-").stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().context("systemd-sysusers, which makes the agent's user")?;
        use std::io::Write;
        child.stdin.take().context("its input")?.write_all(SYSUSERS_TEXT.as_bytes())?;
        let output = child.wait_with_output()?;
        if !output.status.success() {
            bail!("systemd-sysusers: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        self.user().with_context(|| format!("systemd-sysusers made no user {USER}"))
    }
}

/// Whether there is a systemd to speak to.
pub fn is_run_by_systemd() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// Done, or what it says.
pub fn systemctl(arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("systemctl").args(arguments).stdin(Stdio::null()).output().context("systemctl")?;
    if output.status.success() {
        return Ok(());
    }
    bail!("systemctl {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim())
}

/// Whether it is active, and whether it starts with the machine, in systemd's words.
pub fn states() -> anyhow::Result<(String, String)> {
    let ask = |verb: &str| {
        let output = Command::new("systemctl").args([verb, UNIT]).stdin(Stdio::null()).output().context("systemctl")?;
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        anyhow::Ok(if said.is_empty() { String::from_utf8_lossy(&output.stderr).trim().to_owned() } else { said })
    };
    Ok((ask("is-active")?, ask("is-enabled")?))
}
