//! What is in `deploy/`: units that systemd finds sound and that keep the server in, files that hang together and say
//! nothing that the programs do not know, and a server that tells a service manager how it is.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::helps::{Helps, beside, check_by_help};
use crate::left_out;
use crate::real::{self, Running};
use anyhow::{Context, Result, bail, ensure};
use pcfarm_sql::connect;
use pcfarm_sql::settings::DatabaseSettings;
use pcfarm_sql::testing::database;
use serde::Deserialize;
use serde_yaml_ng::Value;

/// For anything that takes a moment, on a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(30);

/// The most that `systemd-analyze security` may find, of 10.
const EXPOSURE: f64 = 2.0;

const UNITS: &[&str] = &["pcfarm-server", "pcfarm-recycler", "pcfarm-worker"];

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the CLI is a folder of the repository").join("deploy")
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(deploy().join(path)).with_context(|| path.to_owned())
}

/// The units, in a folder of their own, with the programs where they were built. None: this machine has no systemd.
fn units() -> Result<Option<tempfile::TempDir>> {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        left_out::for_want_of("systemd-analyze");
        return Ok(None);
    }
    let directory = tempfile::tempdir()?;
    for unit in UNITS {
        let text = read(&format!("systemd/{unit}.service"))?;
        ensure!(text.contains(&format!("ExecStart=/usr/local/bin/{unit} ")), "{unit} starts another program");
        let built = beside(unit).display().to_string();
        let text = text.replace(&format!("/usr/local/bin/{unit}"), &built);
        fs::write(directory.path().join(format!("{unit}.service")), text)?;
    }
    Ok(Some(directory))
}

#[test]
fn systemd_finds_nothing_wrong_with_the_units() -> Result<()> {
    let Some(directory) = units()? else { return Ok(()) };
    for unit in UNITS {
        let unit = directory.path().join(format!("{unit}.service"));
        let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(unit).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() && said.is_empty(), "{}: {said}", output.status);
    }
    Ok(())
}

/// The most that it may find of the agent with a drop-in for programs that need more.
const EXPOSURE_WITH_DROP_IN: f64 = 4.0;

#[test]
fn drop_ins_are_sound_and_open_little() -> Result<()> {
    let Some(directory) = units()? else { return Ok(()) };
    let unit = directory.path().join("pcfarm-worker.service");
    let text = fs::read_to_string(&unit)?;
    let mut found = 0;
    for drop_in in fs::read_dir(deploy().join("systemd/drop-ins"))? {
        let drop_in = drop_in?.path();
        // As systemd reads a drop-in: behind the unit.
        let (service, rest) = text.split_once("\n[Install]").context("a unit")?;
        let more = fs::read_to_string(&drop_in)?;
        fs::write(&unit, format!("{service}\n{more}\n[Install]{rest}"))?;
        let verified = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&unit).output()?;
        let said = String::from_utf8_lossy(&verified.stderr);
        ensure!(verified.status.success() && said.is_empty(), "{}: {said}", drop_in.display());
        let level = exposure(&unit)?;
        ensure!(level <= EXPOSURE_WITH_DROP_IN, "{}: {level}", drop_in.display());
        found += 1;
    }
    ensure!(found == 4, "{found} drop-ins");
    Ok(())
}

/// Returns the exposure level of a unit by `systemd-analyze security`: 0 (safe) to 10.
fn exposure(unit: &Path) -> Result<f64> {
    let output =
        Command::new("systemd-analyze").args(["security", "--no-pager", "--offline=true"]).arg(unit).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let level = said.split_once("Overall exposure level for").and_then(|(_, rest)| rest.split_once(": "));
    let level = level.and_then(|(_, rest)| rest.split(' ').next()).with_context(|| format!("{output:?}"))?;
    Ok(level.parse()?)
}

#[test]
fn the_units_leave_little_to_an_intruder() -> Result<()> {
    let Some(directory) = units()? else { return Ok(()) };
    for unit in UNITS {
        let level = exposure(&directory.path().join(format!("{unit}.service")))?;
        ensure!(level <= EXPOSURE, "{unit}: {level}");
    }
    Ok(())
}

/// A call of a program of ours, and what it finds in its environment.
struct Call {
    place: String,
    program: String,
    arguments: Vec<String>,
    variables: Vec<String>,
}

impl Call {
    fn check(&self, helps: &mut Helps) -> Result<()> {
        let program = beside(&self.program);
        ensure!(program.is_file(), "{} is missing: run `cargo build --workspace` first", program.display());
        check_by_help(helps, &program, &self.arguments).map_err(|fault| anyhow::anyhow!("{}: {fault}", self.place))?;
        // A verb comes first, if there is one.
        let verb: Vec<String> = self.arguments.iter().take(1).filter(|word| !word.starts_with('-')).cloned().collect();
        let help = helps.of(&program, &verb);
        for variable in self.variables.iter().filter(|name| name.starts_with("PCFARM_")) {
            let known = ["=", "]"].iter().any(|end| help.contains(&format!("[env: {variable}{end}")))
                || variable == "PCFARM_DATABASE_URL";
            ensure!(known, "{}: {} knows no {variable}", self.place, self.program);
        }
        Ok(())
    }
}

/// The documents of a file, with what they share merged in.
fn documents(path: &str) -> Result<Vec<Value>> {
    let text = read(path)?;
    serde_yaml_ng::Deserializer::from_str(&text)
        .map(|document| {
            let mut value = Value::deserialize(document)?;
            value.apply_merge()?;
            Ok(value)
        })
        .collect::<Result<_>>()
        .with_context(|| path.to_owned())
}

fn words(value: &Value) -> Vec<String> {
    value.as_sequence().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn keys(value: &Value) -> Vec<String> {
    value.as_mapping().into_iter().flat_map(|m| m.keys()).filter_map(Value::as_str).map(str::to_owned).collect()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_sequence().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn calls_of_units() -> Result<Vec<Call>> {
    let mut calls = Vec::new();
    for unit in UNITS {
        let place = format!("systemd/{unit}.service");
        let lines = read(&place)?;
        let start = lines.lines().find_map(|line| line.strip_prefix("ExecStart=")).context("ExecStart")?;
        let mut words = start.split(' ').map(str::to_owned);
        let program = words.next().and_then(|path| path.rsplit('/').next().map(str::to_owned)).context("a program")?;
        let variables = lines.lines().filter_map(|line| line.strip_prefix("Environment=")?.split('=').next());
        let variables = variables.map(str::to_owned).collect();
        calls.push(Call { place, program, arguments: words.collect(), variables });
    }
    Ok(calls)
}

/// What the image's containers run: its entry point, unless they say otherwise.
fn call(place: String, entrypoint: Vec<String>, command: Vec<String>, variables: Vec<String>) -> Option<Call> {
    let mut words = if entrypoint.is_empty() { vec!["pcfarm-server".to_owned()] } else { entrypoint };
    words.extend(command);
    let program = words.remove(0).rsplit('/').next()?.to_owned();
    program.starts_with("pcfarm").then_some(Call { place, program, arguments: words, variables })
}

fn calls_of_compose() -> Result<Vec<Call>> {
    let compose = documents("compose/compose.yaml")?.remove(0);
    let services = compose["services"].as_mapping().context("services")?;
    let ours = services.iter().filter(|(_, service)| service["image"] == "pcfarm");
    Ok(ours
        .filter_map(|(name, service)| {
            let (entrypoint, command) = (words(&service["entrypoint"]), words(&service["command"]));
            call(format!("compose: {}", text(name)), entrypoint, command, keys(&service["environment"]))
        })
        .collect())
}

/// Every object of `deploy/kubernetes`.
fn objects() -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    for entry in fs::read_dir(deploy().join("kubernetes"))? {
        objects.extend(documents(&format!("kubernetes/{}", entry?.file_name().to_string_lossy()))?);
    }
    Ok(objects)
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Result<&'a Value> {
    objects.iter().find(|object| object["kind"] == kind).with_context(|| format!("no {kind}"))
}

fn calls_of_kubernetes() -> Result<Vec<Call>> {
    let objects = objects()?;
    let pod = &of_kind(&objects, "Deployment")?["spec"]["template"]["spec"];
    let containers = list(&pod["initContainers"]).chain(list(&pod["containers"]));
    Ok(containers
        .filter_map(|container| {
            let variables = list(&container["env"]).map(|variable| text(&variable["name"])).collect();
            let place = format!("kubernetes: {}", text(&container["name"]));
            call(place, words(&container["command"]), words(&container["args"]), variables)
        })
        .collect())
}

#[test]
fn every_flag_and_variable_is_known() -> Result<()> {
    let mut helps = Helps::default();
    let calls = [calls_of_units()?, calls_of_compose()?, calls_of_kubernetes()?];
    assert_eq!(calls.each_ref().map(Vec::len), [3, 3, 1], "not all were found");
    calls.iter().flatten().try_for_each(|call| call.check(&mut helps))
}

#[test]
fn an_unknown_flag_or_variable_is_found() {
    let mut helps = Helps::default();
    let cases = [
        (&["--listen", "0.0.0.0:7070"][..], "PCFARM_TLS", true),
        (&["--listn", "0.0.0.0:7070"], "PCFARM_TLS", false),
        (&["--listen", "0.0.0.0:7070"], "PCFARM_TSL", false),
        (&["--listen", "0.0.0.0:7070"], "PCFARM_CONFIG", false),
        (&["init", "--name", "x"], "PCFARM_TLS", true),
        (&["init", "--listen", "x"], "PCFARM_TLS", false),
    ];
    for (arguments, variable, right) in cases {
        let arguments = arguments.iter().map(|&word| word.to_owned()).collect();
        let variables = vec![variable.to_owned()];
        let call = Call { place: "a case".to_owned(), program: "pcfarm-server".to_owned(), arguments, variables };
        let outcome = call.check(&mut helps);
        assert_eq!(outcome.is_ok(), right, "{:?} {variable}: {outcome:?}", call.arguments);
    }
}

#[test]
fn the_compose_file_hangs_together() -> Result<()> {
    let compose = documents("compose/compose.yaml")?.remove(0);
    let services = compose["services"].as_mapping().context("services")?;
    let mut servers = 0;
    for (name, service) in services {
        let name = text(name);
        let declared = |section: &str, used: Vec<String>| {
            let known = keys(&compose[section]);
            used.into_iter().find(|one| !known.contains(one)).map_or(Ok(()), |one| Err(format!("{name}: no {one}")))
        };
        let volumes = words(&service["volumes"]).iter().filter_map(|v| Some(v.split_once(':')?.0.to_owned())).collect();
        let checks = [
            declared("secrets", words(&service["secrets"])),
            declared("networks", words(&service["networks"])),
            declared("volumes", volumes),
            declared("services", keys(&service["depends_on"])),
        ];
        checks.into_iter().collect::<Result<Vec<()>, String>>().map_err(anyhow::Error::msg)?;
        // A secret in a variable is seen by whoever may look at the container.
        ensure!(
            keys(&service["environment"]).iter().all(|v| !v.ends_with("PASSWORD") && !v.ends_with("URL")),
            "{name}"
        );
        if name.starts_with("server") {
            servers += 1;
            ensure!(words(&service["healthcheck"]["test"]).iter().any(|word| word.ends_with("/readyz")), "{name}");
            ensure!(service["read_only"] == true && words(&service["cap_drop"]) == ["ALL"], "{name}");
            ensure!(service["depends_on"]["postgres"]["condition"] == "service_healthy", "{name}");
        }
    }
    ensure!(servers == 2, "{servers} servers");
    let ports: Vec<String> = services.values().flat_map(|service| words(&service["ports"])).collect();
    let host: BTreeSet<&str> = ports.iter().filter_map(|port| port.split(':').next()).collect();
    ensure!(host.len() == ports.len(), "two services want one port: {ports:?}");
    Ok(())
}

#[test]
fn the_manifests_hang_together() -> Result<()> {
    let objects = objects()?;
    let deployment = &of_kind(&objects, "Deployment")?["spec"];
    let labels = &deployment["template"]["metadata"]["labels"];
    for (kind, selector) in [
        ("Deployment", &deployment["selector"]["matchLabels"]),
        ("PodDisruptionBudget", &of_kind(&objects, "PodDisruptionBudget")?["spec"]["selector"]["matchLabels"]),
        ("NetworkPolicy", &of_kind(&objects, "NetworkPolicy")?["spec"]["podSelector"]["matchLabels"]),
        ("Service", &of_kind(&objects, "Service")?["spec"]["selector"]),
    ] {
        ensure!(!keys(selector).is_empty() && selector == labels, "{kind} selects other pods: {selector:?}");
    }
    let replicas = deployment["replicas"].as_u64().context("replicas")?;
    let kept = of_kind(&objects, "PodDisruptionBudget")?["spec"]["minAvailable"].as_u64().context("minAvailable")?;
    ensure!(replicas >= 2 && kept >= 1 && kept < replicas, "{kept} of {replicas} servers stay");
    let pod = &deployment["template"]["spec"];
    ensure!(pod["securityContext"]["runAsNonRoot"] == true && pod["automountServiceAccountToken"] == false);
    let volumes: Vec<String> = list(&pod["volumes"]).map(|volume| text(&volume["name"])).collect();
    for container in list(&pod["initContainers"]).chain(list(&pod["containers"])) {
        let confined = &container["securityContext"];
        ensure!(confined["readOnlyRootFilesystem"] == true && confined["allowPrivilegeEscalation"] == false);
        let mut mounts = list(&container["volumeMounts"]).map(|mount| text(&mount["name"]));
        ensure!(mounts.all(|mount| volumes.contains(&mount)), "{container:?}");
    }
    let server = &pod["containers"][0];
    let ports: Vec<String> = list(&server["ports"]).map(|port| text(&port["name"])).collect();
    for (probe, path) in [("startupProbe", "/healthz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")] {
        let get = &server[probe]["httpGet"];
        ensure!(get["path"] == path && get["scheme"] == "HTTPS" && ports.contains(&text(&get["port"])), "{probe}");
    }
    for port in list(&of_kind(&objects, "Service")?["spec"]["ports"]) {
        ensure!(ports.contains(&text(&port["targetPort"])), "{port:?}");
    }
    let secret = of_kind(&objects, "Secret")?;
    let known = keys(&secret["stringData"]);
    for reference in list(&server["env"]).map(|v| &v["valueFrom"]["secretKeyRef"]).filter(|r| !r.is_null()) {
        ensure!(reference["name"] == secret["metadata"]["name"] && known.contains(&text(&reference["key"])));
    }
    Ok(())
}

/// Checks a public workflow: its scripts exist, and each action is pinned by hash. Returns the packages and scripts that it runs.
fn run_by_workflow(name: &str) -> Result<BTreeSet<String>> {
    let workflow = documents(&format!("../.github/workflows/{name}"))?.remove(0);
    let jobs = workflow["jobs"].as_mapping().context("jobs")?;
    let mut built = BTreeSet::new();
    for step in jobs.values().flat_map(|job| list(&job["steps"])) {
        let action = text(&step["uses"]);
        let hash = action.split_once('@').map_or("", |(_, version)| version);
        let pinned = hash.len() == 40 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        ensure!(action.is_empty() || pinned, "{name}: {action} may change");
        let run = text(&step["run"]);
        let mut words = run.split_whitespace();
        while let Some(word) = words.next() {
            match word {
                "-p" => {
                    built.insert(words.next().context("-p of what")?.to_owned());
                }
                script if script.starts_with("scripts/") => {
                    ensure!(deploy().join("..").join(script).is_file(), "{name}: there is no {script}");
                    built.insert(script.to_owned());
                }
                _ => {}
            }
        }
    }
    ensure!(keys(&workflow["permissions"]) == ["contents"] && workflow["permissions"]["contents"] == "read", "{name}");
    Ok(built)
}

#[test]
fn public_workflows_run_existing_scripts_and_pinned_actions() -> Result<()> {
    let builds = ["pcfarm", "pcfarm-intake", "pcfarm-proto", "pcfarm-worker"];
    for (name, packages, script) in
        [("ci.yml", &builds[..], "scripts/test"), ("nightly.yml", &[][..], "scripts/nightly")]
    {
        let built = run_by_workflow(name)?;
        ensure!(built.iter().map(String::as_str).eq(packages.iter().copied().chain([script])), "{name}: {built:?}");
    }
    // Both read the compiler's version from this line.
    let manifest = read("../Cargo.toml")?;
    ensure!(manifest.lines().filter(|line| line.starts_with("rust-version = \"")).count() == 1);
    Ok(())
}

#[test]
fn the_image_is_of_this_source_and_of_no_root() -> Result<()> {
    let image = read("Dockerfile")?;
    let manifest = read("../Cargo.toml")?;
    let rust = manifest.lines().find_map(|line| line.strip_prefix("rust-version = ")).context("rust-version")?;
    ensure!(image.contains(&format!("FROM rust:{}-", rust.trim_matches('"'))), "not built with Rust {rust}");
    let user = image.lines().rfind(|line| line.starts_with("USER ")).context("USER")?;
    ensure!(user == "USER 7070:7070", "{user}");
    for program in ["pcfarm", "pcfarm-server", "pcfarm-recycler"] {
        ensure!(image.contains(&format!("/source/target/release/{program}")), "{program} is not in the image");
        ensure!(image.contains(&format!("-p {program}")), "{program} is not built");
    }
    Ok(())
}

/// A service manager's ear.
struct Manager {
    socket: UnixDatagram,
    _directory: tempfile::TempDir,
}

impl Manager {
    /// Its watchdog wants to hear from what it starts within so many microseconds.
    fn of(command: &mut Command, watchdog: &str) -> Result<Manager> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        command.env("NOTIFY_SOCKET", path).env("WATCHDOG_USEC", watchdog).env_remove("WATCHDOG_PID");
        Ok(Manager { socket, _directory: directory })
    }

    fn next(&self) -> Result<String> {
        let mut buffer = [0; 4096];
        let length = self.socket.recv(&mut buffer).context("nothing was said in time")?;
        Ok(String::from_utf8(buffer[..length].to_vec())?)
    }

    /// Hears on until this is said; returns what was said before.
    fn until(&self, wanted: &str) -> Result<Vec<String>> {
        let mut before = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            let said = self.next()?;
            if said.lines().any(|line| line == wanted) {
                return Ok(before);
            }
            before.push(said);
        }
        bail!("{wanted} was not said, but {before:?}");
    }

    /// What was said and not heard yet is forgotten.
    fn forget(&self) -> Result<()> {
        self.socket.set_nonblocking(true)?;
        while self.next().is_ok() {}
        self.socket.set_nonblocking(false)?;
        Ok(())
    }

    /// Whether nothing is said for some beats.
    fn is_silent_for(&self, time: Duration) -> Result<bool> {
        self.socket.set_read_timeout(Some(time))?;
        let heard = self.socket.recv(&mut [0; 64]);
        self.socket.set_read_timeout(Some(PATIENCE))?;
        Ok(heard.is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)))
    }
}

fn signal(running: &Running, name: &str) -> Result<()> {
    ensure!(Command::new("kill").args([name, &running.0.id().to_string()]).status()?.success());
    Ok(())
}

/// Waits until a stopped process stands still.
fn until_stopped(running: &Running) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let status = format!("/proc/{}/status", running.0.id());
    while !fs::read_to_string(&status)?.contains("State:\tT") {
        ensure!(Instant::now() < deadline, "it does not stop");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Starts a program under a manager, and hears it through its life.
fn lives_under_a_manager(mut command: Command) -> Result<()> {
    let manager = Manager::of(&mut command, "300000")?;
    let mut running = Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    let before = manager.until("READY=1")?;
    ensure!(!before.iter().any(|said| said.contains("STOPPING")), "{before:?}");
    for _ in 0..3 {
        manager.until("WATCHDOG=1")?;
    }
    signal(&running, "-STOP")?;
    until_stopped(&running)?;
    manager.forget()?;
    ensure!(manager.is_silent_for(Duration::from_millis(500))?, "what stands still says that it is well");
    signal(&running, "-CONT")?;
    manager.until("WATCHDOG=1")?;
    signal(&running, "-TERM")?;
    manager.until("STOPPING=1")?;
    ensure!(running.0.wait()?.success());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_tells_its_service_manager_how_it_is() -> Result<()> {
    let database = database().await;
    let mut command = real::program("pcfarm-server")?;
    command.args(["--database-url", &database.url(), "--listen", "127.0.0.1:0"]);
    tokio::task::spawn_blocking(move || lives_under_a_manager(command)).await?
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recycler_tells_its_service_manager_how_it_is() -> Result<()> {
    let database = database().await;
    let mut command = real::program("pcfarm-recycler")?;
    command.args(["--database-url", &database.url(), "--every", "0.1"]);
    tokio::task::spawn_blocking(move || lives_under_a_manager(command)).await?
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_its_database_is_not_hung() -> Result<()> {
    let database = database().await;
    let mut command = real::program("pcfarm-server")?;
    command.args(["--database-url", &database.url(), "--listen", "127.0.0.1:0", "--lease", "1s"]);
    let manager = Manager::of(&mut command, "300000")?;
    let running = Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    let manager = tokio::task::spawn_blocking(move || manager.until("READY=1").map(|_| manager)).await??;
    // A database that lets nobody in, asked for from another one.
    let mut config = DatabaseSettings::resolve(Some(&database.url()))?.target.config().clone();
    let name = config.get_dbname().context("the database's name")?.to_owned();
    let (eyes, _connection) = connect::connect(config.dbname("postgres")).await?;
    eyes.batch_execute(&format!("alter database \"{name}\" allow_connections false")).await?;
    let ended = "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = $1";
    ensure!(eyes.query_one(ended, &[&name]).await?.try_get::<_, i64>(0)? > 0, "nobody was connected");
    // Several pulses are lost meanwhile.
    tokio::task::spawn_blocking(move || {
        manager.forget()?;
        for _ in 0..10 {
            ensure!(manager.until("WATCHDOG=1")?.is_empty());
        }
        drop(running);
        Ok(())
    })
    .await?
}
