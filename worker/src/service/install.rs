//! Makes an agent a service of the system, and a workstation of the farm, in one go.
//!
//! Owns the order: it joins in a directory aside, and puts no file anywhere before a server has let it in. Files that were not there
//! before it takes away again when something fails; what it had replaced by then stays so. The use of a token cannot be taken
//! back.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail, ensure};
use clap::Args;
use pcfarm_proto::secrets::JoinToken;
use tonic::transport::Endpoint;
use uuid::Uuid;

use super::system::{self, CONFIG_TEXT, GPU_TEXT, Places, UNIT, UNIT_PROGRAM, UNIT_TEXT};
use super::uninstall;
use crate::credentials::{Credentials, Refused};
use crate::doctor::here::visitor;
use crate::doctor::reach::{Visitor, visit};
use crate::doctor::{Finding, Report, Step};
use crate::settings::Settings;
use crate::state_dir::StateDir;

/// The first line of a unit whose program an installation has put in its place.
pub const COPIED: &str = "# Put there, with its program, by `pcfarm-worker install`.\n";

/// Where programs of a system are: those are started where they lie.
const PROGRAMS: [&str; 2] = ["/usr", "/opt"];

/// Where another authority of servers' certificates is kept.
pub const CA: &str = "/etc/pcfarm/worker-authority.pem";

/// Of a state directory.
const FILES: [&str; 5] = ["identity", "authority.pem", "key.pem", "certificate.pem", "renew_at"];

#[derive(Clone, Debug, Default, Args)]
pub struct Wishes {
    /// Address of a server, https://…; several by commas or by repeating it
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    server: Vec<String>,
    /// A file with a join token, and servers' addresses beside it if you like; - is standard input. Or PCFARM_JOIN_TOKEN is
    /// the token
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Remove that file once this workstation has joined
    #[arg(long, requires = "token_file")]
    remove_token_file: bool,
    /// What people know this workstation by [default: the system's host name]
    #[arg(long, value_name = "NAME")]
    hostname: Option<String>,
    /// What this workstation is or has, such as gpu; several by commas or by repeating it
    #[arg(long, value_name = "LABEL", value_delimiter = ',')]
    label: Vec<String>,
    /// Cores that the agent may use [default: all]
    #[arg(long, value_name = "N")]
    cores: Option<usize>,
    /// Nobody ever sits at this machine
    #[arg(long)]
    unattended: bool,
    /// Programs may use this machine's GPUs
    #[arg(long)]
    gpu: bool,
    /// Another authority of servers' certificates, beside the farm's own: a PEM file, of which a copy is kept
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Memory that the kernel lets the agent and its programs have, as systemd says it: 4G, 25%
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory_max: Option<String>,
    /// Install below this directory, which will be a system: nothing is started
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

fn size(text: &str) -> Result<String, String> {
    let digits = text.trim_end_matches(['K', 'M', 'G', 'T', '%']);
    let is_size =
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) && text.len() <= digits.len() + 1;
    if is_size { Ok(text.to_owned()) } else { Err("a size is a number with K, M, G, T or %".to_owned()) }
}

/// Why nothing was installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    #[error("{0:#}")]
    Usage(anyhow::Error),
    /// No server can be used.
    #[error("nothing was installed, for no server lets this workstation in:\n{}", .0.text())]
    Unreachable(Box<Report>),
    #[error("nothing was installed: {0}")]
    Refused(String),
    #[error("{0:#}")]
    Failed(#[from] anyhow::Error),
}

impl InstallError {
    pub fn exit_code(&self) -> u8 {
        match self {
            InstallError::Usage(_) => 2,
            InstallError::Unreachable(report) => report.exit_code(),
            InstallError::Refused(_) => 5,
            InstallError::Failed(_) => 1,
        }
    }
}

/// Returns what was done, a line each.
pub async fn install(wishes: &Wishes) -> Result<Vec<String>, InstallError> {
    let places = Places::under(wishes.root.as_deref());
    if places.is_system() && !rustix::process::geteuid().is_root() {
        return Err(InstallError::Usage(anyhow!("only root may do this: sudo pcfarm-worker install …")));
    }
    let (plan, token) = Plan::of(wishes, &places).map_err(InstallError::Usage)?;
    let mut made = Made::of(&places);
    let user = places.make_user()?;
    let joined = Joined::of(&plan, token, &places).await?;
    let mut done = put(&plan, &joined, user, &mut made)?;
    made.stays = true;
    if let Some(file) = wishes.token_file.as_ref().filter(|_| wishes.remove_token_file) {
        fs::remove_file(file).with_context(|| format!("removing {}", file.display()))?;
        done.push(format!("removed {}", file.display()));
    }
    done.push(start(&places)?);
    Ok(done)
}

/// What is to be put where.
struct Plan {
    /// Nothing, if the one that is there is to stay.
    config: Option<String>,
    settings: Settings,
    /// An authority of servers' certificates, and where it goes.
    ca: Option<(Vec<u8>, PathBuf)>,
    memory_max: Option<String>,
}

impl Plan {
    fn of(wishes: &Wishes, places: &Places) -> anyhow::Result<(Plan, Option<JoinToken>)> {
        let (token, servers) = secret(wishes.token_file.as_deref())?;
        let path = places.config();
        let there = match fs::read_to_string(&path) {
            Ok(text) if text == CONFIG_TEXT => None, // a package's, and nobody has touched it
            Ok(text) => Some(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        };
        let ca = wishes.ca.as_deref().map(|ca| fs::read(ca).with_context(|| format!("reading {}", ca.display())));
        let ca = ca.transpose()?.map(|ca| (ca, PathBuf::from(CA)));
        let (text, config) = match there {
            Some(text) => {
                let settings = Settings::of_service(&path, &text).map_err(anyhow::Error::from)?;
                wishes.agree_with(&settings).with_context(|| {
                    format!("{} is there, and is not changed: edit it, and leave such flags away", path.display())
                })?;
                (text, None)
            }
            None => {
                let servers = if wishes.server.is_empty() { servers } else { wishes.server.clone() };
                ensure!(!servers.is_empty(), "which servers? --server https://farm.example.org:7070");
                let text = wishes.config(&servers, ca.as_ref().map(|(_, path)| path.as_path()))?;
                (text.clone(), Some(text))
            }
        };
        let mut settings = Settings::of_service(&path, &text).map_err(anyhow::Error::from)?;
        let state_dir = Path::new(crate::platform::SYSTEM_STATE_DIR);
        ensure!(
            settings.state_dir == state_dir,
            "a service keeps its state in {}: leave state_dir away",
            state_dir.display()
        );
        if let Some(ca) = &wishes.ca {
            settings.ca = Some(ca.clone()); // until it is in its place
        }
        Ok((Plan { config, settings, ca, memory_max: wishes.memory_max.clone() }, token))
    }
}

impl Wishes {
    /// The settings' text: the commented one, with what is wished for.
    fn config(&self, servers: &[String], ca: Option<&Path>) -> anyhow::Result<String> {
        let list = |items: &[String]| toml::Value::from(items.to_vec());
        let number = |n: usize| i64::try_from(n).map(toml::Value::from);
        let mut wished = vec![("server", list(servers))];
        wished.extend(self.hostname.as_ref().map(|name| ("hostname", name.as_str().into())));
        wished.extend((!self.label.is_empty()).then(|| ("label", list(&self.label))));
        wished.extend(self.cores.map(number).transpose()?.map(|cores| ("cores", cores)));
        wished.extend(self.unattended.then(|| ("unattended", true.into())));
        wished.extend(self.gpu.then(|| ("gpu", true.into())));
        wished.extend(ca.and_then(Path::to_str).map(|ca| ("ca", ca.into())));
        let mut text = CONFIG_TEXT.to_owned();
        for (name, value) in wished {
            let comment = format!("# {name} = ");
            let start = text.find(&comment).with_context(|| format!("{name} is not in the commented settings"))?;
            let end = text[start..].find('\n').map_or(text.len(), |length| start + length);
            text.replace_range(start..end, &format!("{name} = {value}"));
        }
        Ok(text)
    }

    /// Whether nothing is wished for that these settings do not say.
    fn agree_with(&self, settings: &Settings) -> anyhow::Result<()> {
        ensure!(self.server.is_empty() || self.server == settings.servers, "it names other servers");
        ensure!(self.hostname.as_ref().is_none_or(|name| *name == settings.hostname), "it has another hostname");
        ensure!(self.label.is_empty() || self.label == settings.labels, "it has other labels");
        ensure!(self.cores.is_none_or(|cores| cores == settings.cores), "it allows other cores");
        ensure!(!self.gpu || settings.gpu, "it does not say gpu = true");
        ensure!(!self.unattended || settings.presence.policy.unattended, "it does not say unattended");
        ensure!(self.ca.is_none() || settings.ca == self.ca, "it names another authority");
        Ok(())
    }
}

/// The token, and servers that stand beside it.
fn secret(file: Option<&Path>) -> anyhow::Result<(Option<JoinToken>, Vec<String>)> {
    let mut text = String::new();
    match file {
        Some(file) if file == Path::new("-") => {
            std::io::stdin().read_to_string(&mut text).context("standard input")?;
        }
        Some(file) => text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?,
        None => text = std::env::var("PCFARM_JOIN_TOKEN").unwrap_or_default(),
    }
    let (servers, tokens): (Vec<&str>, Vec<&str>) = text.split_whitespace().partition(|word| word.contains("://"));
    ensure!(tokens.len() <= 1, "one join token, and addresses of servers, are expected");
    ensure!(file.is_none() || !tokens.is_empty(), "there is no join token in it");
    let token = tokens.first().map(|token| token.parse()).transpose().context("the join token")?;
    Ok((token, servers.into_iter().map(str::to_owned).collect()))
}

/// A workstation of the farm, or one that need not be.
struct Joined {
    identity: Uuid,
    /// What is to become its state; nothing, if it is one already.
    aside: Option<Aside>,
}

/// A directory that is gone with this.
struct Aside(PathBuf);

impl Drop for Aside {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Joined {
    async fn of(plan: &Plan, token: Option<JoinToken>, places: &Places) -> Result<Joined, InstallError> {
        let state = places.state();
        let known = StateDir::peek(&state).map_err(anyhow::Error::from)?;
        let endpoints = plan.settings.endpoints().map_err(|error| InstallError::Usage(error.into()))?;
        let credentials = |dir: &Path, identity| {
            Credentials::new(dir, identity, &plan.settings.hostname, plan.settings.ca.as_deref())
        };
        if let Some(identity) = known.filter(|identity| credentials(&state, *identity).are_there()) {
            look(&endpoints, &visitor(&credentials(&state, identity), identity, None)?).await?;
            return Ok(Joined { identity, aside: None });
        }
        let aside = Aside(state.with_extension("joining"));
        let _ = fs::remove_dir_all(&aside.0); // of one that was killed
        fs::create_dir_all(&aside.0).with_context(|| format!("making {}", aside.0.display()))?;
        fs::set_permissions(&aside.0, fs::Permissions::from_mode(0o700)).context("its permissions")?;
        if let Some(identity) = known {
            fs::write(aside.0.join("identity"), format!("{identity}\n")).context("keeping its identity")?;
        }
        let identity = StateDir::open(&aside.0).map_err(anyhow::Error::from)?.identity;
        let newcomer = credentials(&aside.0, identity);
        if let Some(token) = token {
            let server = usable(&endpoints, &Visitor::with_token(token.clone(), identity)).await?;
            newcomer.join_once(&server, &token).await.map_err(|error| match error.downcast::<Refused>() {
                Ok(refused) => InstallError::Refused(refused.to_string()),
                Err(error) => InstallError::Failed(error.context("joining the farm")),
            })?;
        }
        look(&endpoints, &visitor(&newcomer, identity, None)?).await?;
        Ok(Joined { identity, aside: Some(aside) })
    }
}

/// The first server that could be asked to let somebody in.
async fn usable(endpoints: &[Endpoint], visitor: &Visitor) -> Result<Endpoint, InstallError> {
    let mut findings = Vec::new();
    for endpoint in endpoints {
        let of_server = visit(endpoint, visitor).await;
        let stands_in_the_way = |finding: &Finding| finding.has_failed() && finding.step != Step::Credentials;
        if !of_server.iter().any(stands_in_the_way) {
            return Ok(endpoint.clone());
        }
        findings.extend(of_server);
    }
    Err(InstallError::Unreachable(Box::new(Report::of(findings))))
}

/// One server that is content is enough.
async fn look(endpoints: &[Endpoint], visitor: &Visitor) -> Result<(), InstallError> {
    let mut findings = Vec::new();
    for endpoint in endpoints {
        let of_server = visit(endpoint, visitor).await;
        if !of_server.iter().any(Finding::has_failed) {
            return Ok(());
        }
        findings.extend(of_server);
    }
    Err(InstallError::Unreachable(Box::new(Report::of(findings))))
}

/// What was not there before and is taken away again, unless all came well.
struct Made<'a> {
    places: &'a Places,
    /// The service's user was not there before.
    user: bool,
    paths: Vec<PathBuf>,
    stays: bool,
}

impl Made<'_> {
    fn of(places: &Places) -> Made<'_> {
        Made { places, user: places.user().is_none(), paths: Vec::new(), stays: false }
    }

    fn file(&mut self, path: &Path, content: &[u8], mode: u32) -> anyhow::Result<()> {
        let written = || {
            fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
            // Aside and renamed: a program that runs is not written to.
            let aside = path.with_extension("new");
            uninstall::remove(&aside)?;
            // Closed from the beginning: who has opened a key that is closed later reads on.
            let mut to = fs::OpenOptions::new().write(true).create_new(true).mode(mode & 0o600).open(&aside)?;
            to.write_all(content)?;
            to.set_permissions(fs::Permissions::from_mode(mode))?;
            to.sync_all()?;
            fs::rename(&aside, path)
        };
        if !path.exists() {
            self.paths.push(path.to_owned());
        }
        written().with_context(|| format!("writing {}", path.display()))
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        if self.stays {
            return;
        }
        for path in self.paths.iter().rev() {
            let _ = uninstall::remove(path);
        }
        if self.user {
            let _ = uninstall::remove_user(self.places); // it says what it left, and to nobody
        }
    }
}

fn put(plan: &Plan, joined: &Joined, (uid, gid): (u32, u32), made: &mut Made<'_>) -> anyhow::Result<Vec<String>> {
    let places = made.places;
    let mut done = vec![match &joined.aside {
        Some(_) if plan.settings.servers.iter().any(|server| server.starts_with("https:")) => {
            format!("joined the farm as {} ({})", plan.settings.hostname, joined.identity)
        }
        Some(_) => format!("the farm knows it as {} ({})", plan.settings.hostname, joined.identity),
        None => format!("is in the farm already as {} ({})", plan.settings.hostname, joined.identity),
    }];
    let owned = |path: &Path, uid, gid| {
        if rustix::process::geteuid().is_root() {
            lchown(path, Some(uid), Some(gid)).with_context(|| format!("giving away {}", path.display()))?;
        }
        anyhow::Ok(())
    };
    if let Some(text) = &plan.config {
        // Programs' environments may have secrets.
        made.file(&places.config(), text.as_bytes(), 0o640)?;
        owned(&places.config(), 0, gid)?;
        done.push(format!("wrote {}", places.config().display()));
    }
    done.extend(let_read(places, gid)?);
    if let Some((ca, path)) = &plan.ca {
        made.file(&places.at(path), ca, 0o644)?;
    }
    if places.packaged_unit().is_none() {
        done.push(put_unit(places, made)?);
    } else {
        done.extend(uninstall::give_way(places)?);
    }
    if let Some(size) = &plan.memory_max {
        let path = places.drop_ins().join("memory.conf");
        made.file(&path, format!("[Service]\nMemoryMax={size}\n").as_bytes(), 0o644)?;
        done.push(format!("wrote {}", path.display()));
    }
    done.extend(gpu_drop_in(plan.settings.gpu, made)?);
    let state = places.state();
    if let Some(aside) = &joined.aside {
        if !state.exists() {
            made.paths.push(state.clone());
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&state);
            made.with_context(|| format!("making {}", state.display()))?;
        }
        for name in FILES.iter().filter(|name| aside.0.join(name).exists()) {
            let mode = if *name == "authority.pem" { 0o644 } else { 0o600 };
            made.file(&state.join(name), &fs::read(aside.0.join(name))?, mode)?;
            owned(&state.join(name), uid, gid)?;
        }
    }
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).context("its state")?;
    owned(&state, uid, gid)?;
    Ok(done)
}

/// The unit opens the devices of GPUs if, and only if, the settings say so. A drop-in of the administrator's own stays.
fn gpu_drop_in(wanted: bool, made: &mut Made<'_>) -> anyhow::Result<Option<String>> {
    let path = made.places.drop_ins().join("gpu.conf");
    let shown = path.display();
    match fs::read_to_string(&path) {
        Ok(text) if text == GPU_TEXT && !wanted => {
            uninstall::remove(&path)?;
            Ok(Some(format!("removed {shown}: the settings do not say gpu = true")))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && wanted => {
            made.file(&path, GPU_TEXT.as_bytes(), 0o644)?;
            Ok(Some(format!("wrote {shown}")))
        }
        Ok(_) | Err(_) => Ok(None),
    }
}

/// The service's user can read the settings, whoever wrote them. Returns what a person has to see to.
fn let_read(places: &Places, gid: u32) -> anyhow::Result<Option<String>> {
    let config = places.config();
    let metadata = fs::metadata(&config).with_context(|| config.display().to_string())?;
    let mode = metadata.permissions().mode();
    let reads = mode & 0o004 != 0 || metadata.gid() == gid && mode & 0o040 != 0;
    if !reads && rustix::process::geteuid().is_root() {
        lchown(&config, None, Some(gid)).with_context(|| format!("giving {} to the service", config.display()))?;
        fs::set_permissions(&config, fs::Permissions::from_mode(mode & 0o777 | 0o040))?;
    }
    let directory = config.parent().context("a directory")?;
    let metadata = fs::metadata(directory)?;
    let passes = metadata.permissions().mode() & 0o001 != 0 || metadata.gid() == gid;
    Ok((!passes).then(|| {
        let shown = directory.display();
        format!(
            "ATTENTION: {shown} is closed to user {}, who is to read its settings there: chmod o+x {shown}",
            system::USER
        )
    }))
}

/// The unit, and the program where the service can start it: homes are closed to it.
fn put_unit(places: &Places, made: &mut Made<'_>) -> anyhow::Result<String> {
    let program = std::env::current_exe().context("this program")?;
    let in_place = places.is_system() && PROGRAMS.iter().any(|place| program.starts_with(place));
    let before = fs::read_to_string(places.own_unit()).unwrap_or_default();
    let (first, started) = if in_place {
        // The copy that it has made before is still its own.
        let is_copy = before.starts_with(COPIED) && before.contains(&format!("\nExecStart={} ", program.display()));
        (if is_copy { COPIED } else { "" }, program)
    } else {
        let name = program.file_name().context("this program's name")?;
        let copy = Path::new(UNIT_PROGRAM).with_file_name(name);
        made.file(&places.at(&copy), &fs::read("/proc/self/exe").context("this program")?, 0o755)?;
        (COPIED, copy)
    };
    let Some(started) = started.to_str().filter(|path| !path.contains([' ', '%', '$', '\\', '"', '\''])) else {
        bail!("{}: a unit cannot name such a path", started.display());
    };
    let unit = places.own_unit();
    let text = format!("{first}{}", UNIT_TEXT.replace(UNIT_PROGRAM, started));
    made.file(&unit, text.as_bytes(), 0o644)?;
    Ok(format!("wrote {}, which starts {started}", unit.display()))
}

fn start(places: &Places) -> anyhow::Result<String> {
    if places.is_system() && system::is_run_by_systemd() {
        system::systemctl(&["daemon-reload"])?;
        system::systemctl(&["enable", UNIT])?;
        system::systemctl(&["restart", UNIT]).with_context(|| format!("journalctl -u {UNIT} says why"))?;
        return Ok("started the service, which starts with the machine from now on".to_owned());
    }
    // What `systemctl enable` does.
    let (wanted, unit) = (places.wanted(), places.unit().context("a unit")?);
    fs::create_dir_all(wanted.parent().context("a directory")?)?;
    let _ = uninstall::remove(&wanted);
    let target = Path::new("/").join(unit.strip_prefix(places.root()).unwrap_or(&unit));
    symlink(target, &wanted).with_context(|| format!("making {}", wanted.display()))?;
    Ok("systemd does not run here: the service starts with the machine".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wishes() -> Wishes {
        Wishes {
            hostname: Some("pc\"17".to_owned()),
            label: vec!["gpu".to_owned(), "lab".to_owned()],
            cores: Some(3),
            unattended: true,
            ..Wishes::default()
        }
    }

    #[test]
    fn the_unit_opens_gpus_if_and_only_if_the_settings_say_so() {
        let root = tempfile::tempdir().expect("a directory");
        let places = Places::under(Some(root.path()));
        let mut made = Made::of(&places);
        made.stays = true;
        let path = places.drop_ins().join("gpu.conf");
        let text = || fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(gpu_drop_in(false, &mut made).expect("nothing to do"), None);
        let done = gpu_drop_in(true, &mut made).expect("written").expect("it says so");
        assert!(done.starts_with("wrote ") && text() == GPU_TEXT, "{done}");
        assert_eq!(gpu_drop_in(true, &mut made).expect("nothing to do"), None);
        let done = gpu_drop_in(false, &mut made).expect("removed").expect("it says so");
        assert!(done.starts_with("removed ") && !path.exists(), "{done}");
        // An administrator's own is not touched.
        fs::write(&path, "[Service]\nDeviceAllow=/dev/nvidia0 rw\n").expect("written");
        for wanted in [true, false] {
            assert_eq!(gpu_drop_in(wanted, &mut made).expect("nothing to do"), None);
        }
        assert!(text().contains("nvidia0"));
    }

    #[test]
    fn what_is_wished_for_is_in_the_settings_and_the_comments_stay() {
        let servers = ["https://a:1".to_owned(), "https://b:2".to_owned()];
        let text = wishes().config(&servers, Some(Path::new("/etc/ca.pem"))).expect("a text");
        let settings = Settings::of_service(Path::new("worker.toml"), &text).expect("good settings");
        assert_eq!(settings.servers, servers);
        assert_eq!((settings.hostname.as_str(), settings.cores), ("pc\"17", 3));
        assert_eq!(settings.labels, ["gpu", "lab"]);
        assert_eq!(settings.ca.as_deref(), Some(Path::new("/etc/ca.pem")));
        assert!(settings.presence.policy.unattended);
        assert_eq!(text.lines().count(), CONFIG_TEXT.lines().count());
        wishes().agree_with(&settings).expect("it says the same");
        let other = Wishes { cores: Some(4), ..wishes() };
        assert_eq!(other.agree_with(&settings).expect_err("others").to_string(), "it allows other cores");
    }

    /// The commented settings are those that there are: each comment, taken for what it shows, is understood.
    #[test]
    fn the_comments_are_no_lies() {
        let is_setting = |line: &str| {
            line.strip_prefix("# ").is_some_and(|rest| {
                rest.split(" = ").next().is_some_and(|name| {
                    rest.contains(" = ") && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
                })
            })
        };
        let shown = CONFIG_TEXT.lines().filter(|line| is_setting(line)).count();
        assert!(shown > 20, "{shown}");
        let uncomment = |line: &str| if is_setting(line) { line[2..].to_owned() } else { line.to_owned() };
        let text: Vec<String> = CONFIG_TEXT.lines().map(uncomment).collect();
        let settings = Settings::of_service(Path::new("worker.toml"), &text.join("\n")).expect("good settings");
        assert!(settings.presence.policy.unattended);
        let plain = Settings::of_service(Path::new("worker.toml"), CONFIG_TEXT).expect("good settings");
        let desk = crate::presence::settings::Settings::of_a_desk();
        assert_eq!(plain.presence, desk);
        // Comments show the defaults of a desk, except for settings without a default.
        let table: Vec<String> = text.into_iter().filter(|line| !line.starts_with("unattended")).collect();
        let mut shown =
            Settings::of_service(Path::new("worker.toml"), &table.join("\n")).expect("good settings").presence;
        (shown.limits, shown.named) = (desk.limits.clone(), desk.named.clone());
        (shown.cores, shown.may_be_woken) = (desk.cores, desk.may_be_woken);
        let policy = &mut shown.policy;
        (policy.memory_limit, policy.hours, policy.programs) = (None, desk.policy.hours.clone(), Vec::new());
        (policy.remote.ignored_users, policy.remote.services) = Default::default();
        shown.ignore_devices = Vec::new();
        assert_eq!(shown, desk);
    }

    #[test]
    fn a_token_file_may_name_servers() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("token");
        let token = JoinToken { authority: [1; 32], secret: [2; 32] };
        fs::write(&file, format!("https://a:1\n{}\nhttps://b:2\n", token.reveal())).expect("written");
        let (read, servers) = secret(Some(&file)).expect("a token");
        assert_eq!((read, servers), (Some(token), vec!["https://a:1".to_owned(), "https://b:2".to_owned()]));
        for wrong in ["", "https://a:1", "pcfj_short", "pcfj_a pcfj_b"] {
            fs::write(&file, wrong).expect("written");
            assert!(secret(Some(&file)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_systemds() {
        for (text, good) in [
            ("4G", true),
            ("25%", true),
            ("512M", true),
            ("100", true),
            ("G", false),
            ("4GB", false),
            ("4G\nX=1", false),
            ("", false),
        ] {
            assert_eq!(size(text).is_ok(), good, "{text}");
        }
    }
}
