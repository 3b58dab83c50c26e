//! A farm whose servers speak TLS, and a directory that will be a system.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use pcfarm_bench::farm::{Farm, SOON, Server, executable_path};
use pcfarm_bench::left_out;
use pcfarm_proto::v1::access_service_client::AccessServiceClient;
use pcfarm_proto::v1::{CreateJoinTokenRequest, ListCredentialsRequest, RevokeCredentialRequest};
use tonic::metadata::MetadataValue;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status};

pub struct Site {
    pub farm: Farm,
    pub tls: PathBuf,
    administrator: String,
    pub root: PathBuf,
}

/// Shows the administrator's token.
#[derive(Clone)]
struct Shows(String);

impl Interceptor for Shows {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let value = MetadataValue::try_from(format!("Bearer {}", self.0)).expect("a token is plain");
        request.metadata_mut().insert("authorization", value);
        Ok(request)
    }
}

impl Site {
    pub async fn new() -> Site {
        let farm = Farm::new().await;
        let tls = farm.path("tls");
        let mut command = Command::new(executable_path("pcfarm-server"));
        command.args(["init", "--administrator", "root", "--database-url", farm.url(), "--tls"]).arg(&tls);
        let output = command.output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let administrator = String::from_utf8(output.stdout).expect("text").trim().to_owned();
        let root = farm.path("root");
        std::fs::create_dir(&root).expect("made");
        Site { farm, tls, administrator, root }
    }

    /// Not started yet.
    pub fn server(&self, name: &str, flags: &[&str]) -> Server {
        let tls = self.tls.to_str().expect("a path of text");
        self.farm.server(name, &[&["--tls", tls, "--authentication", "required"], flags].concat())
    }

    pub async fn serving(&self, name: &str) -> Server {
        let mut server = self.server(name, &[]);
        server.program.start();
        server.program.says("serving", SOON).await;
        server
    }

    async fn access(&self, server: &Server) -> AccessServiceClient<InterceptedService<Channel, Shows>> {
        let authority = std::fs::read(self.tls.join("authority.pem")).expect("made by init");
        let trust = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority));
        let endpoint = Endpoint::from_shared(url(server)).expect("an address").tls_config(trust).expect("TLS");
        let channel = endpoint.connect().await.expect("it serves");
        AccessServiceClient::with_interceptor(channel, Shows(self.administrator.clone()))
    }

    pub async fn join_token(&self, server: &Server, uses: u32) -> String {
        let asked = CreateJoinTokenRequest { uses, ..Default::default() };
        self.access(server).await.create_join_token(asked).await.expect("a join token").into_inner().secret
    }

    /// The workstations that have joined.
    pub async fn joined(&self, server: &Server) -> Vec<String> {
        let listed = self.access(server).await.list_credentials(ListCredentialsRequest {}).await.expect("listed");
        listed.into_inner().credentials.into_iter().map(|credential| credential.identity).collect()
    }

    pub async fn cut_off(&self, server: &Server, identity: &str) {
        let revoke = RevokeCredentialRequest { identity: identity.to_owned() };
        self.access(server).await.revoke_credential(revoke).await.expect("revoked");
    }

    /// A file with a token, for this workstation's root alone.
    pub fn token_file(&self, text: &str) -> PathBuf {
        let file = self.farm.path("join-token");
        std::fs::write(&file, text).expect("written");
        file
    }

    /// What `pcfarm-worker install` says, which installs below this site's directory.
    pub async fn install(&self, server: &str, token: &str) -> Ran {
        let token = self.token_file(token);
        let root = self.root.as_os_str();
        let words = ["install", "--unattended", "--hostname", "pc17", "--server", server, "--root"].map(OsStr::new);
        let mut command = worker();
        command.args(words).arg(root).arg("--token-file").arg(token);
        ran(command).await
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// The identity that is installed there.
    pub fn identity(&self) -> String {
        std::fs::read_to_string(self.at("var/lib/pcfarm-worker/identity")).expect("an identity").trim().to_owned()
    }

    /// A doctor for what is installed there.
    pub fn doctor(&self) -> Command {
        let mut command = worker();
        command.args(["--config".as_ref(), self.at("etc/pcfarm/worker.toml").as_os_str()]);
        command.args(["--state-dir".as_ref(), self.at("var/lib/pcfarm-worker").as_os_str()]);
        command
    }

    /// Every file and link there, without those of users.
    pub fn files(&self) -> BTreeSet<String> {
        fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
            for entry in std::fs::read_dir(directory).expect("a directory") {
                let path = entry.expect("an entry").path();
                if path.is_dir() && !path.is_symlink() { walk(&path, found) } else { found.push(path) }
            }
        }
        let mut found = Vec::new();
        walk(&self.root, &mut found);
        let shown = |path: &PathBuf| path.strip_prefix(&self.root).expect("below").to_str().expect("text").to_owned();
        let of_users = |path: &String| {
            let names = ["passwd", "group", "shadow", "gshadow", ".pwd.lock", "subuid", "subgid"];
            names.iter().any(|name| path.trim_end_matches('-') == format!("etc/{name}"))
        };
        found.iter().map(shown).filter(|path| !of_users(path)).collect()
    }
}

pub fn url(server: &Server) -> String {
    format!("https://localhost:{}", server.port)
}

/// The agent's program, without what the test's own environment says.
pub fn worker() -> Command {
    let mut command = Command::new(executable_path("pcfarm-worker"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PCFARM_")) {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).env("RUST_LOG", "info").env_remove("XDG_STATE_HOME");
    command
}

#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Off this runtime's threads.
pub async fn ran(mut command: Command) -> Ran {
    let output = tokio::task::spawn_blocking(move || command.output()).await.expect("no panic");
    output.expect("it runs").into()
}

pub fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        left_out::here("only root gives files to the service's user");
    }
    is_root
}

/// Whether a program is there.
pub fn has(program: &str) -> bool {
    let places = std::env::var_os("PATH").unwrap_or_default();
    let is_there =
        std::env::split_paths(&places).chain([PathBuf::from("/usr/sbin")]).any(|place| place.join(program).is_file());
    if !is_there {
        left_out::for_want_of(program);
    }
    is_there
}

/// The library that moves a program's clock.
pub fn faketime() -> Option<PathBuf> {
    let directories = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    let found = directories.map(|directory| directory.join("faketime/libfaketimeMT.so.1")).find(|path| path.exists());
    if found.is_none() {
        left_out::for_want_of("libfaketime");
    }
    found
}
