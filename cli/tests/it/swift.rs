//! A real store that speaks S3: OpenStack Swift, on this machine alone, for one test.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rusty_s3::actions::ListObjectsV2;
use rusty_s3::{Bucket, Credentials, S3Action, UrlStyle};
use tempfile::TempDir;

use crate::left_out;
use crate::real::{Extra, Running};

pub const BUCKET: &str = "originals";
pub const REGION: &str = "us-east-1";
pub const KEY: &str = "farm:server";
pub const SECRET: &str = "nobody-may-see-this";

const PATIENCE: Duration = Duration::from_secs(60);
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);
const SIGNED_FOR: Duration = Duration::from_secs(600);

/// Debian's: its modules are there for its own Python.
const PYTHON: &str = "/usr/bin/python3";
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/swift/serve.py");

/// Ends with the test.
pub struct Swift {
    proxy: Option<Running>,
    storage: Running,
    port: u16,
    agent: ureq::Agent,
    directory: TempDir,
}

impl Swift {
    /// With an empty bucket. None: it is not on this machine.
    pub async fn start() -> Result<Option<Swift>> {
        let found = Command::new(PYTHON).args(["-c", "import swift.proxy.server"]).stderr(Stdio::null()).status();
        if !found.is_ok_and(|status| status.success()) {
            left_out::for_want_of("OpenStack Swift (python3-swift)");
            return Ok(None);
        }
        let directory = tempfile::tempdir()?;
        // All at once, so that they differ.
        let sockets = (0..4).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>()?;
        let ports = sockets.iter().map(|socket| Ok(socket.local_addr()?.port())).collect::<Result<Vec<_>>>()?;
        drop(sockets);
        configure(directory.path(), &ports)?;
        let numbers: Vec<String> = ports[..3].iter().map(u16::to_string).collect();
        let storage = run(directory.path(), "storage", &numbers)?;
        let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
        let mut swift = Swift { proxy: None, storage, port: ports[3], agent, directory };
        swift.go_on()?;
        let bucket = swift.bucket();
        let make = bucket.create_bucket(&credentials()).sign(SIGNED_FOR).to_string();
        until(async || {
            let (agent, url) = (swift.agent.clone(), make.clone());
            let made = tokio::task::spawn_blocking(move || agent.put(url.as_str()).send_empty()).await?;
            let runs = swift.storage.runs() && swift.proxy.as_mut().is_none_or(Running::runs);
            ensure!(runs, "swift has ended: {made:?}\n{}", swift.log());
            let serves = made.as_ref().is_ok_and(|answer| answer.status().is_success());
            Ok(if serves { None } else { Some(format!("swift does not serve: {made:?}\n{}", swift.log())) })
        })
        .await?;
        Ok(Some(swift))
    }

    /// Nobody reaches it any more.
    pub fn go_away(&mut self) {
        self.proxy = None;
    }

    /// It has what it had.
    pub fn go_on(&mut self) -> Result<()> {
        self.proxy = Some(run(self.directory.path(), "proxy", &[])?);
        Ok(())
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// What a server is told.
    pub fn extra(&self) -> Extra {
        let endpoint = self.endpoint();
        let environment =
            [("AWS_ENDPOINT_URL", endpoint.as_str()), ("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", SECRET)];
        Extra {
            flags: ["--originals".to_owned(), format!("s3://{BUCKET}/farm/uploads")].to_vec(),
            environment: environment.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
            ..Extra::default()
        }
    }

    /// The keys of all objects.
    pub async fn objects(&self) -> Result<Vec<String>> {
        let listed = self.get(self.bucket().list_objects_v2(Some(&credentials())).sign(SIGNED_FOR).to_string()).await?;
        Ok(ListObjectsV2::parse_response(&listed)?.contents.into_iter().map(|object| object.key).collect())
    }

    /// Uploads that have begun and not ended.
    pub async fn begun(&self) -> Result<usize> {
        let (bucket, keys) = (self.bucket(), credentials());
        let mut action = bucket.get_object(Some(&keys), "");
        action.query_mut().insert("uploads", "");
        Ok(self.get(action.sign(SIGNED_FOR).to_string()).await?.matches("<UploadId>").count())
    }

    pub async fn until_begun(&self, expected: usize) -> Result<()> {
        until(async || {
            let found = self.begun().await?;
            Ok((found != expected).then(|| format!("{found} uploads have begun, and not {expected}")))
        })
        .await
    }

    pub async fn until_objects(&self, expected: usize) -> Result<()> {
        until(async || {
            let found = self.objects().await?;
            Ok((found.len() != expected).then(|| format!("{found:?} are there, and not {expected}")))
        })
        .await
    }

    fn bucket(&self) -> Bucket {
        let endpoint = self.endpoint().parse().expect("a URL");
        Bucket::new(endpoint, UrlStyle::Path, BUCKET, REGION).expect("a bucket")
    }

    async fn get(&self, url: String) -> Result<String> {
        let agent = self.agent.clone();
        let answer = tokio::task::spawn_blocking(move || -> Result<(u16, String)> {
            let mut answer = agent.get(url.as_str()).call()?;
            Ok((answer.status().as_u16(), answer.body_mut().read_to_string()?))
        });
        let (status, text) = answer.await??;
        ensure!(status == 200, "{status}: {text}");
        Ok(text)
    }

    fn log(&self) -> String {
        let read = |kind: &str| std::fs::read_to_string(log_of(self.directory.path(), kind)).unwrap_or_default();
        read("storage") + &read("proxy")
    }
}

/// Until nothing is wrong any more: a look says what is.
async fn until(mut look: impl AsyncFnMut() -> Result<Option<String>>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while let Some(wrong) = look().await? {
        ensure!(Instant::now() < deadline, "{wrong}");
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    Ok(())
}

fn credentials() -> Credentials {
    Credentials::new(KEY, SECRET)
}

fn log_of(directory: &Path, what: &str) -> PathBuf {
    directory.join(format!("{what}.log"))
}

fn run(directory: &Path, what: &str, more: &[String]) -> Result<Running> {
    let log = std::fs::File::options().create(true).append(true).open(log_of(directory, what))?;
    let mut command = Command::new(PYTHON);
    command.arg(PROGRAM).arg(what).arg(directory).args(more).current_dir(directory);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    Ok(Running(command.spawn().context("starting Python")?))
}

fn configure(directory: &Path, ports: &[u16]) -> Result<()> {
    std::fs::create_dir_all(directory.join("disks/disk"))?;
    let here = directory.display();
    let user = Command::new("id").arg("-un").output()?;
    let user = String::from_utf8_lossy(&user.stdout).trim().to_owned();
    std::fs::write(
        directory.join("swift.conf"),
        "[swift-hash]\nswift_hash_path_suffix = tests\n[storage-policy:0]\nname = one\ndefault = yes\n",
    )?;
    let common = |port: u16| {
        format!(
            "[DEFAULT]\nbind_ip = 127.0.0.1\nbind_port = {port}\nuser = {user}\nswift_dir = {here}\nworkers = 0\n\
             devices = {here}/disks\nmount_check = false\nlog_level = WARNING\ncontainer_update_timeout = 60\n"
        )
    };
    // No daemon makes up for what a busy machine was too slow for.
    let patient = "conn_timeout = 60\nnode_timeout = 60\n";
    for (kind, port) in ["account", "container", "object"].into_iter().zip(ports) {
        let text = format!(
            "{}[pipeline:main]\npipeline = {kind}-server\n[app:{kind}-server]\nuse = egg:swift#{kind}\n{patient}",
            common(*port)
        );
        std::fs::write(directory.join(format!("{kind}.conf")), text)?;
    }
    // Tokens are not used, and so there need be no memcached.
    let text = format!(
        "{}[pipeline:main]\npipeline = catch_errors cache s3api tempauth slo proxy-server\n\
         [app:proxy-server]\nuse = egg:swift#proxy\naccount_autocreate = true\nerror_suppression_limit = 1000000\n{patient}\
         [filter:catch_errors]\nuse = egg:swift#catch_errors\n\
         [filter:cache]\nuse = egg:swift#memcache\nmemcache_servers = 127.0.0.1:1\n\
         [filter:s3api]\nuse = egg:swift#s3api\nlocation = {REGION}\n\
         [filter:tempauth]\nuse = egg:swift#tempauth\nuser_{} = {SECRET} .admin\n\
         [filter:slo]\nuse = egg:swift#slo\n",
        common(ports[3]),
        KEY.replace(':', "_")
    );
    std::fs::write(directory.join("proxy.conf"), text)?;
    Ok(())
}
