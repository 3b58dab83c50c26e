//! TLS from end to end: a farm's own authority, agents that join, renew and are cut off.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::caller::{Connection, shown};
use crate::copies::{ONE_ID, copy_state, identity, is, machine, session};
use crate::lease::Ticker;
use pcfarm_bench::farm::{Farm, LONG, SOON, Server, executable_path, free_port};
use pcfarm_bench::program::Program;
use pcfarm_proto::v1::access_service_client::AccessServiceClient;
use pcfarm_proto::v1::{CreateJoinTokenRequest, ListCredentialsRequest, RevokeCredentialRequest, WhoAmIRequest};
use rustls::client::{ResolvesClientCert, WantsClientCert};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, SignatureScheme};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
use tonic::{Code, Status};

/// A farm whose servers speak TLS, and its administrator.
struct Site {
    farm: Farm,
    tls: PathBuf,
    root: String,
}

impl Site {
    async fn new() -> Site {
        let farm = Farm::new().await;
        farm.job_type("work", "digest", json!({})).await;
        let tls = farm.path("tls");
        let root = init(&farm, &tls);
        Site { farm, tls, root }
    }

    async fn serving(&self, name: &str, flags: &[&str]) -> Server {
        let tls = self.tls.to_str().expect("a path of text");
        let mut server = self.farm.server(name, &[&["--tls", tls, "--authentication", "required"], flags].concat());
        server.program.start();
        server.program.says("serving", SOON).await;
        server
    }

    async fn connect(&self, server: &Server, token: Option<&str>) -> Result<Connection, tonic::transport::Error> {
        let authority = std::fs::read(self.tls.join("authority.pem")).expect("made by init");
        let trust = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority));
        let endpoint = Endpoint::from_shared(url(server)).expect("an address").tls_config(trust)?;
        Ok(shown(endpoint.connect().await?, token))
    }

    async fn access(&self, server: &Server) -> AccessServiceClient<Connection> {
        AccessServiceClient::new(self.connect(server, Some(&self.root)).await.expect("it serves"))
    }

    async fn join_token(&self, server: &Server, uses: u32) -> String {
        let asked = CreateJoinTokenRequest { uses, ..Default::default() };
        self.access(server).await.create_join_token(asked).await.expect("a join token").into_inner().secret
    }

    /// An agent that knows a join token, not started yet.
    fn agent(&self, name: &str, servers: &[&Server], token: &str) -> Program {
        let urls: Vec<String> = servers.iter().map(|server| url(server)).collect();
        self.farm.agent(name, &[]).arguments(["--server", &urls.join(",")]).environment("PCFARM_JOIN_TOKEN", token)
    }
}

fn url(server: &Server) -> String {
    format!("https://localhost:{}", server.port)
}

/// Returns the administrator's token.
fn init(farm: &Farm, tls: &Path) -> String {
    let mut command = Command::new(executable_path("pcfarm-server"));
    command.args(["init", "--administrator", "root", "--database-url", farm.url(), "--tls"]).arg(tls);
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

async fn who(connection: Connection) -> Result<String, Status> {
    Ok(AccessServiceClient::new(connection).who_am_i(WhoAmIRequest {}).await?.into_inner().user)
}

#[tokio::test]
async fn an_agent_joins_works_renews_and_is_cut_off() {
    let site = Site::new().await;
    let server = site.serving("a", &["--certificate-lifetime", "12s"]).await;
    let other = site.serving("b", &["--certificate-lifetime", "12s"]).await;
    // People are known by tokens, on a connection that they trust.
    assert_eq!(who(site.connect(&server, Some(&site.root)).await.expect("TLS")).await.expect("known"), "root");
    let nobody = who(site.connect(&server, None).await.expect("TLS")).await.expect_err("asked");
    assert_eq!(nobody.code(), Code::Unauthenticated);

    let token = site.join_token(&server, 1).await;
    let mut agent = site.agent("pc1", &[&server, &other], &token);
    agent.start();
    agent.says("joined the farm", SOON).await;
    let job = site.farm.submit_sleeps("work", 20, 1, 2).await;
    assert_eq!(site.farm.ended(job, LONG).await, "done");
    let state = site.farm.path("pc1.state");
    let key = std::fs::read(state.join("key.pem")).expect("made by the agent");
    for file in ["key.pem", "certificate.pem"] {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(state.join(file)).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }

    // The token was for one.
    let mut second = site.agent("pc2", &[&server], &token);
    second.start();
    assert_eq!(second.ended(SOON).await.code(), Some(5), "{}", second.log());

    // The certificate is renewed, with the same key, before it expires, and work goes on beyond the life of the first.
    let renewed = "select issued_at > joined_at + interval '12 s' from pcfarm.workstation_credential";
    site.farm.until(LONG, renewed).await;
    assert_eq!(std::fs::read(state.join("key.pem")).expect("kept"), key);
    let job = site.farm.submit_sleeps("work", 20, 1, 2).await;
    assert_eq!(site.farm.ended(job, LONG).await, "done");

    // Cut off by one server, it is cut off by both.
    let mut access = site.access(&server).await;
    let known = access.list_credentials(ListCredentialsRequest {}).await.expect("listed").into_inner().credentials;
    assert_eq!(known.len(), 1);
    let revoke = RevokeCredentialRequest { identity: known[0].identity.clone() };
    access.revoke_credential(revoke).await.expect("revoked");
    agent.says("refuses this agent", SOON).await;
    site.farm.until(LONG, "select state = 'dead' from pcfarm.workstation").await;
    let job = site.farm.submit_sleeps("work", 2, 1, 1).await;
    // Started again it is refused as well: by its certificate, and with the same token.
    agent.kill();
    agent.start();
    agent.says("refuses this agent", SOON).await;
    let left = site.farm.number(&format!("select waiting from pcfarm.job_progress where job_id = {job}")).await;
    assert_eq!(left, 2, "it is given nothing");
}

/// A refused agent connects again every 5 s, which is less than the lease, and receives bytes each time.
#[tokio::test]
async fn a_program_stops_when_its_workstation_is_cut_off() {
    let site = Site::new().await;
    let server = site.serving("a", &["--lease", "10"]).await;
    let token = site.join_token(&server, 1).await;
    let ticker = Ticker::new(&site.farm).await;
    let mut agent = ticker.on(site.agent("pc1", &[&server], &token), &site.farm);
    agent.start();
    ticker.begins(&site.farm, 600).await;
    let mut access = site.access(&server).await;
    let known = access.list_credentials(ListCredentialsRequest {}).await.expect("listed").into_inner().credentials;
    let revoke = RevokeCredentialRequest { identity: known[0].identity.clone() };
    access.revoke_credential(revoke).await.expect("revoked");
    ticker.has_stopped_in_time(&site.farm).await;
}

#[tokio::test]
async fn who_copies_a_state_directory_is_one_workstation_and_one_agent_at_a_time() {
    let site = Site::new().await;
    let server = site.serving("a", &[]).await;
    let token = site.join_token(&server, 2).await;
    let mut first = site.agent("pc1", &[&server], &token);
    first.start();
    first.says("joined the farm", SOON).await;
    site.farm.until(SOON, "select count(*) = 1 from pcfarm.workstation where state = 'waiting'").await;

    // Its certificate under another identity is worth nothing.
    let stolen = site.farm.path("thief.state");
    std::fs::create_dir_all(&stolen).expect("a directory");
    for file in ["authority.pem", "certificate.pem", "key.pem", "renew_at"] {
        std::fs::copy(site.farm.path("pc1.state").join(file), stolen.join(file)).expect("copied");
    }
    let mut thief = site.agent("thief", &[&server], &token);
    thief.start();
    thief.says("state directory of its own", SOON).await;
    thief.kill();

    // With the identity, on the same machine, it is the same workstation: one of the two works, and the other one says why it does not.
    std::fs::copy(site.farm.path("pc1.state").join("identity"), stolen.join("identity")).expect("copied");
    thief.start();
    thief.says("another agent has this workstation's identity", SOON).await;
    assert!(thief.runs(), "it goes on to ask: {}", thief.log());
    assert!(!first.log().contains("another agent has this workstation's identity"), "{}", first.log());
    assert_eq!(site.farm.number("select count(*) from pcfarm.workstation").await, 1);

    // In the clear nobody takes that workstation's name, whoever it is.
    let job = site.farm.submit_sleeps("work", 4, 1, 1).await;
    assert_eq!(site.farm.ended(job, LONG).await, "done");
}

/// A copied disk whose settings have no token any more: the packaged installation removes it.
#[tokio::test]
async fn a_copy_without_a_token_is_reported_and_joins_when_there_is_one() {
    let site = Site::new().await;
    let server = site.serving("a", &[]).await;
    let farm = &site.farm;
    let desk = machine(farm, "desk", ONE_ID, "52:54:00:00:00:01");
    let lab = machine(farm, "lab", ONE_ID, "52:54:00:00:00:02");
    let token = site.join_token(&server, 2).await;
    let mut original = site.agent("original", &[&server], &token).environment("PCFARM_HOST_ROOT", &desk);
    original.start();
    is(farm, "original", "state = 'waiting'").await;
    let its_session = session(farm, &identity(farm, "original")).await;

    copy_state(farm, "original", "copy");
    let token_file = farm.path("token");
    let mut copy = site
        .agent("copy", &[&server], "")
        .environment("PCFARM_HOST_ROOT", &lab)
        .environment("PCFARM_JOIN_TOKEN_FILE", &token_file);
    copy.start();
    copy.says("this agent is a copy and has no certificate of its own", SOON).await;
    let told = "select exists (select from pcfarm.event e join pcfarm.workstation w using (workstation_id)
        where e.what = 'workstation cloned' and e.details ->> 'copy' = 'copy' and w.hostname = 'original'
            and e.details ->> 'outcome' = 'refused: the identity belongs to another machine')";
    farm.until(SOON, told).await;
    assert_eq!(session(farm, &identity(farm, "original")).await, its_session, "the original stays");
    assert_eq!(farm.number("select count(*) from pcfarm.workstation").await, 1);

    std::fs::write(&token_file, &token).expect("written");
    is(farm, "copy", "state = 'waiting'").await;
    assert_ne!(identity(farm, "copy"), identity(farm, "original"));
    assert_eq!(session(farm, &identity(farm, "original")).await, its_session);
    assert!(copy.runs() && original.runs());
}

#[tokio::test]
async fn certificates_are_read_again_when_they_change() {
    let site = Site::new().await;
    let mut server = site.serving("a", &[]).await;
    site.connect(&server, None).await.expect("trusted");
    let before = std::fs::read(site.tls.join("server.pem")).expect("made");
    // Another authority: who trusts the first does not trust it.
    let trusted = std::fs::read(site.tls.join("authority.pem")).expect("made");
    for file in ["authority.pem", "authority.key"] {
        std::fs::remove_file(site.tls.join(file)).expect("removed");
    }
    init(&site.farm, &site.tls);
    assert_ne!(std::fs::read(site.tls.join("server.pem")).expect("made"), before);
    server.program.says("read again", SOON).await;
    let trust = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&trusted));
    let old = Endpoint::from_shared(url(&server)).expect("an address").tls_config(trust).expect("TLS");
    let deadline = Instant::now() + SOON;
    // It may have read them when some were new and its own certificate was not.
    while old.connect().await.is_ok() {
        assert!(Instant::now() < deadline, "the old authority has not signed this");
        sleep(Duration::from_millis(20)).await;
    }
    while let Err(error) = site.connect(&server, None).await {
        assert!(Instant::now() < deadline, "{error:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// REST with the same certificate, on a listener of its own or on that of gRPC: what `curl --cacert authority.pem` does, by hand.
#[tokio::test]
async fn rest_speaks_tls_with_the_farms_own_authority() {
    let site = Site::new().await;
    let port = free_port();
    let server = site.serving("a", &["--http-listen", &format!("127.0.0.1:{port}")]).await;
    rest_speaks_tls(&site, &server, port).await;
}

#[tokio::test]
async fn rest_and_grpc_share_a_port_and_no_browser_is_asked_for_a_certificate() {
    let site = Site::new().await;
    let server = site.serving("a", &["--http-listen", "same"]).await;
    rest_speaks_tls(&site, &server, server.port).await;
    let authority = std::fs::read(site.tls.join("authority.pem")).expect("made by init");
    for (speaks, agreed, asked) in [
        (&["h2", "http/1.1"][..], Some("http/1.1"), false),
        (&["http/1.1"], Some("http/1.1"), false),
        (&[], None, false),
        (&["h2"], Some("h2"), true),
    ] {
        let resolver = Arc::new(Asked::default());
        let mut config = trusting(&authority).with_client_cert_resolver(resolver.clone());
        config.alpn_protocols = speaks.iter().map(|one| one.as_bytes().to_vec()).collect();
        let line = connected(server.port, config).await.expect("TLS");
        assert_eq!(line.get_ref().1.alpn_protocol(), agreed.map(str::as_bytes), "{speaks:?}");
        assert_eq!(resolver.0.load(Ordering::Relaxed), asked, "{speaks:?}");
    }
}

/// Whether somebody was asked for a certificate, and has none.
#[derive(Debug, Default)]
struct Asked(AtomicBool);

impl ResolvesClientCert for Asked {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.store(true, Ordering::Relaxed);
        None
    }

    fn has_certs(&self) -> bool {
        true
    }
}

async fn rest_speaks_tls(site: &Site, server: &Server, port: u16) {
    let authority = std::fs::read(site.tls.join("authority.pem")).expect("made by init");
    let trusted = secret_line(port, &authority).await;
    let (status, body) = ask(trusted.expect("TLS"), "/api/v1/whoami", Some(&site.root)).await;
    assert!(status == 200 && body.contains(r#""user":"root""#), "{status} {body}");
    let (status, body) = ask(secret_line(port, &authority).await.expect("TLS"), "/api/v1/jobs", None).await;
    assert!(status == 401 && body.contains("who are you"), "{status} {body}");
    let (status, _) = ask(secret_line(port, &authority).await.expect("TLS"), "/healthz", None).await;
    assert_eq!(status, 200);
    // The same authority signs for both, and nobody else's is trusted.
    assert_eq!(who(site.connect(server, Some(&site.root)).await.expect("TLS")).await.expect("known"), "root");
    let elsewhere = site.farm.path("elsewhere");
    init(&site.farm, &elsewhere);
    let other = std::fs::read(elsewhere.join("authority.pem")).expect("made by init");
    assert!(secret_line(port, &other).await.is_err(), "another farm's authority");
    // In the clear it says nothing.
    let plain = TcpStream::connect(("127.0.0.1", port)).await.expect("it listens");
    let mut answer = Vec::new();
    drop(asked(plain, "/api/v1/whoami", Some(&site.root), &mut answer).await);
    assert!(!answer.starts_with(b"HTTP/"), "{}", String::from_utf8_lossy(&answer));
}

async fn secret_line(port: u16, authority: &[u8]) -> std::io::Result<TlsStream<TcpStream>> {
    connected(port, trusting(authority).with_no_client_auth()).await
}

fn trusting(authority: &[u8]) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authority) {
        roots.add(certificate.expect("PEM")).expect("an authority");
    }
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
}

async fn connected(port: u16, config: ClientConfig) -> std::io::Result<TlsStream<TcpStream>> {
    let socket = TcpStream::connect(("127.0.0.1", port)).await?;
    let name = ServerName::try_from("localhost").expect("a name");
    TlsConnector::from(Arc::new(config)).connect(name, socket).await
}

async fn asked(
    mut line: impl AsyncRead + AsyncWrite + Unpin,
    path: &str,
    token: Option<&str>,
    answer: &mut Vec<u8>,
) -> std::io::Result<()> {
    let shown = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{shown}Connection: close\r\n\r\n");
    line.write_all(request.as_bytes()).await?;
    tokio::time::timeout(SOON, line.read_to_end(answer)).await.expect("an answer").map(drop)
}

async fn ask(line: TlsStream<TcpStream>, path: &str, token: Option<&str>) -> (u16, String) {
    let mut answer = Vec::new();
    // Not every server says good-bye.
    drop(asked(line, path, token, &mut answer).await);
    let answer = String::from_utf8(answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    (head.split(' ').nth(1).expect("a status").parse().expect("a number"), body.to_owned())
}
