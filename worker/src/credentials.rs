//! What an agent proves itself with: the farm's authority, a certificate, and a key that never leaves the state directory.
//!
//! Owns how it comes by them: it joins with a token once, and renews at two thirds of each certificate's life. The token
//! names the authority by its fingerprint, and is told to nobody who has not shown a certificate of that.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use pcfarm_proto::secrets::JoinToken;
use pcfarm_proto::v1::join_service_client::JoinServiceClient;
use pcfarm_proto::v1::{Certificate, JoinRequest, RenewRequest};
use rand::RngExt;
use rcgen::{CertificateParams, KeyPair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::default_provider;
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tonic::transport::{Certificate as Pem, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Status};
use tracing::{info, warn};
use uuid::Uuid;

use crate::platform;

const AUTHORITY_FILE: &str = "authority.pem";
const CERTIFICATE_FILE: &str = "certificate.pem";
const KEY_FILE: &str = "key.pem";
/// When it is time for the next certificate, in seconds since 1970.
const RENEW_FILE: &str = "renew_at";

/// Files that belong to one identity. The authority is the farm's.
pub(crate) const OWN_FILES: &[&str] = &[CERTIFICATE_FILE, KEY_FILE, RENEW_FILE];

/// No server renews a certificate then, which ended thirty days ago: with a token this agent joins anew.
const TOO_LATE: Duration = Duration::from_secs(31 * 86_400);

/// Who reads a file that is written.
pub(crate) const EVERYBODY: bool = true;
pub(crate) const NOBODY_ELSE: bool = false;

const CALL_WAIT: Duration = Duration::from_secs(10);

/// Between attempts to join or to renew: a third of a certificate's life has room for many.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Never busy, whatever a server says.
const SOONEST_RENEWAL: Duration = Duration::from_secs(1);

/// What this agent shows and trusts, as its files have it now.
#[derive(Clone, Debug)]
pub struct Credentials {
    dir: PathBuf,
    /// Directory of [`OWN_FILES`].
    own_dir: PathBuf,
    identity: Uuid,
    hostname: String,
    /// Another authority of servers, beside the farm's own.
    ca: Option<PathBuf>,
}

/// Joining is not to be tried again.
#[derive(Debug, thiserror::Error)]
#[error("this workstation may not join the farm: {0}")]
pub struct Refused(String);

/// What a server is known by.
#[cfg(all(target_os = "linux", feature = "service"))]
pub struct Anchors {
    /// Authorities, as PEM; none: those that this system trusts.
    pub authorities: Vec<Vec<u8>>,
    /// The agent's own certificate and key, as PEM, if it has joined.
    pub identity: Option<(String, String)>,
}

impl Credentials {
    pub fn new(dir: &Path, identity: Uuid, hostname: &str, ca: Option<&Path>) -> Credentials {
        let (dir, ca) = (dir.to_owned(), ca.map(Path::to_owned));
        Credentials { own_dir: dir.clone(), dir, identity, hostname: hostname.to_owned(), ca }
    }

    /// The certificate and the key of another identity, in another directory.
    pub fn of_copy(self, own_dir: &Path) -> Credentials {
        Credentials { own_dir: own_dir.to_owned(), ..self }
    }

    fn file(&self, name: &str) -> PathBuf {
        let dir = if OWN_FILES.contains(&name) { &self.own_dir } else { &self.dir };
        dir.join(name)
    }

    /// Whether this agent has joined a farm.
    pub fn are_there(&self) -> bool {
        self.file(CERTIFICATE_FILE).exists()
    }

    /// What [`tune`](Credentials::tune) goes by.
    #[cfg(all(target_os = "linux", feature = "service"))]
    pub fn anchors(&self) -> anyhow::Result<Anchors> {
        let mut authorities = Vec::new();
        if self.file(AUTHORITY_FILE).exists() {
            authorities.push(self.read(AUTHORITY_FILE)?.into_bytes());
        }
        if let Some(ca) = &self.ca {
            authorities.push(fs::read(ca).with_context(|| format!("reading {}", ca.display()))?);
        }
        let identity = if self.are_there() { Some((self.read(CERTIFICATE_FILE)?, self.read(KEY_FILE)?)) } else { None };
        Ok(Anchors { authorities, identity })
    }

    /// How a server is spoken to: one whose address begins with https shows a certificate and is shown one.
    pub fn tune(&self, endpoint: Endpoint) -> anyhow::Result<Endpoint> {
        if endpoint.uri().scheme_str() != Some("https") {
            return Ok(endpoint);
        }
        let tls = self.trust()?;
        let tls = if self.are_there() {
            tls.identity(Identity::from_pem(self.read(CERTIFICATE_FILE)?, self.read(KEY_FILE)?))
        } else {
            tls
        };
        endpoint.tls_config(tls).context("preparing TLS")
    }

    /// The farm's authority, and the one that the settings name; with neither, those that this system trusts.
    fn trust(&self) -> anyhow::Result<ClientTlsConfig> {
        let mut trusted = Vec::new();
        if self.file(AUTHORITY_FILE).exists() {
            trusted.push(Pem::from_pem(self.read(AUTHORITY_FILE)?));
        }
        if let Some(ca) = &self.ca {
            trusted.push(Pem::from_pem(fs::read(ca).with_context(|| format!("reading {}", ca.display()))?));
        }
        let tls = ClientTlsConfig::new();
        Ok(if trusted.is_empty() { tls.with_native_roots() } else { tls.ca_certificates(trusted) })
    }

    fn read(&self, name: &str) -> anyhow::Result<String> {
        let file = self.file(name);
        fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))
    }

    /// Joins by whichever server answers, unless this agent has joined already. A refusal ends the first start of a new agent, so
    /// that its owner sees it.
    pub async fn join(&self, servers: &[Endpoint], token: &JoinToken) -> anyhow::Result<()> {
        if self.are_there() && self.renewal_is_overdue_by() < TOO_LATE {
            return Ok(());
        }
        let mut pause = FIRST_PAUSE;
        for server in servers.iter().cycle() {
            match self.join_by(server, token).await {
                Ok(()) => {
                    info!(server = %server.uri(), identity = %self.identity, "joined the farm");
                    return Ok(());
                }
                Err(error) => {
                    let refusal = refusal(&error);
                    if let Some(reason) = refusal.filter(|_| !self.are_there()) {
                        return Err(Refused(reason).into());
                    }
                    warn!(server = %server.uri(), error = format!("{error:#}"), "could not join, trying again");
                }
            }
            sleep(spread(pause)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        unreachable!("settings name at least one server")
    }

    /// Joins by this server, now or not at all.
    pub async fn join_once(&self, server: &Endpoint, token: &JoinToken) -> anyhow::Result<()> {
        self.join_by(server, token).await.map_err(|error| match refusal(&error) {
            Some(reason) => Refused(reason).into(),
            None => error,
        })
    }

    async fn join_by(&self, server: &Endpoint, token: &JoinToken) -> anyhow::Result<()> {
        ensure!(
            server.uri().scheme_str() == Some("https"),
            "a join token is told only by TLS: name servers by https://…, and not {}",
            server.uri()
        );
        // One that another token named is not the one to tell this one to.
        if !self.trusts(token.authority) {
            let authority = authority_of(server, token.authority).await?;
            write(&self.file(AUTHORITY_FILE), &authority, EVERYBODY)?;
        }
        let request = JoinRequest {
            join_token: token.reveal(),
            identity: self.identity.to_string(),
            hostname: self.hostname.clone(),
            request: self.request()?,
        };
        let mut client = JoinServiceClient::new(self.connected(server).await?);
        let answer = timeout(CALL_WAIT, client.join(request)).await.context("no answer")??;
        self.keep(&answer.into_inner())
    }

    fn trusts(&self, fingerprint: [u8; 32]) -> bool {
        let file = fs::read(self.file(AUTHORITY_FILE)).unwrap_or_default();
        CertificateDer::pem_slice_iter(&file).flatten().any(|one| <[u8; 32]>::from(Sha256::digest(one)) == fingerprint)
    }

    async fn connected(&self, server: &Endpoint) -> anyhow::Result<tonic::transport::Channel> {
        // Without the certificate of its own, which may have expired.
        let endpoint = server.clone().tls_config(self.trust()?).context("preparing TLS")?;
        timeout(CALL_WAIT, endpoint.connect()).await.context("not connected in time")?.context("connecting")
    }

    /// For the key of this agent, which is made when there is none.
    fn request(&self) -> anyhow::Result<String> {
        let file = self.file(KEY_FILE);
        let key = if file.exists() {
            KeyPair::from_pem(&self.read(KEY_FILE)?).with_context(|| format!("reading {}", file.display()))?
        } else {
            let key = KeyPair::generate().context("making a key")?;
            write(&file, &key.serialize_pem(), NOBODY_ELSE)?;
            key
        };
        let request = CertificateParams::default().serialize_request(&key).context("asking for a certificate")?;
        request.pem().context("asking for a certificate")
    }

    fn keep(&self, given: &Certificate) -> anyhow::Result<()> {
        let renew_in = given.renew_in.and_then(|wait| Duration::try_from(wait).ok()).unwrap_or_default();
        let renew_at = SystemTime::now() + renew_in;
        let renew_at = renew_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        // An authority that is about to be replaced comes with the next.
        write(&self.file(AUTHORITY_FILE), &given.authority, EVERYBODY)?;
        write(&self.file(CERTIFICATE_FILE), &given.certificate, NOBODY_ELSE)?;
        write(&self.file(RENEW_FILE), &format!("{renew_at:.3}\n"), NOBODY_ELSE)
    }

    /// How long until it is time for another certificate.
    fn renew_in(&self) -> Duration {
        self.renew_at().duration_since(SystemTime::now()).unwrap_or_default()
    }

    fn renewal_is_overdue_by(&self) -> Duration {
        SystemTime::now().duration_since(self.renew_at()).unwrap_or_default()
    }

    fn renew_at(&self) -> SystemTime {
        let at = self.read(RENEW_FILE).ok().and_then(|text| text.trim().parse().ok());
        let at = at.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        at.and_then(|at| SystemTime::UNIX_EPOCH.checked_add(at)).unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// Before anything else, where the certificate expired while this agent was away.
    pub async fn renew_if_due(&self, servers: &[Endpoint]) {
        if self.are_there() && self.renew_in().is_zero() {
            self.renew_by_any(servers).await;
        }
    }

    /// Renews whenever it is time, for ever. A clock that is set is noticed within a minute.
    pub async fn keep_renewing(&self, servers: &[Endpoint]) {
        let mut pause = FIRST_PAUSE;
        loop {
            let wait = if self.are_there() { self.renew_in() } else { LONGEST_PAUSE };
            if !wait.is_zero() {
                sleep(wait.clamp(SOONEST_RENEWAL, LONGEST_PAUSE)).await;
            } else if self.renew_by_any(servers).await {
                pause = FIRST_PAUSE;
            } else {
                sleep(spread(pause)).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    async fn renew_by_any(&self, servers: &[Endpoint]) -> bool {
        for server in servers.iter().filter(|server| server.uri().scheme_str() == Some("https")) {
            match self.renew_by(server).await {
                Ok(()) => {
                    info!(server = %server.uri(), "renewed this workstation's certificate");
                    return true;
                }
                Err(error) => {
                    warn!(server = %server.uri(), error = format!("{error:#}"), "the certificate was not renewed");
                }
            }
        }
        false
    }

    async fn renew_by(&self, server: &Endpoint) -> anyhow::Result<()> {
        let request = RenewRequest { identity: self.identity.to_string(), request: self.request()? };
        let mut client = JoinServiceClient::new(self.connected(server).await?);
        let answer = timeout(CALL_WAIT, client.renew(request)).await.context("no answer")??;
        self.keep(&answer.into_inner())
    }
}

/// So that agents do not come in step.
fn spread(pause: Duration) -> Duration {
    pause.mul_f64(rand::rng().random_range(0.5..1.0))
}

/// What a server has said that will be the same another time.
fn refusal(error: &anyhow::Error) -> Option<String> {
    let status = error.downcast_ref::<Status>()?;
    match status.code() {
        Code::Unauthenticated | Code::PermissionDenied | Code::InvalidArgument | Code::Unimplemented => {
            Some(status.message().to_owned())
        }
        _ => None,
    }
}

/// The certificate with this fingerprint, of those that a server shows. Nothing is said on this connection.
async fn authority_of(server: &Endpoint, fingerprint: [u8; 32]) -> anyhow::Result<String> {
    let (host, port) = (server.uri().host().unwrap_or_default(), server.uri().port_u16().unwrap_or(443));
    let host = host.trim_matches(['[', ']']);
    let found = Arc::new(Mutex::new(None));
    let finder = Finder { fingerprint, found: found.clone() };
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .context("choosing versions of TLS")?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(finder))
        .with_no_client_auth();
    let mut config = config;
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from(host.to_owned()).context("a server's name")?;
    let look = async {
        let stream = TcpStream::connect((host, port)).await.context("connecting")?;
        tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.context("looking at the server")
    };
    drop(timeout(CALL_WAIT, look).await.context("not connected in time")??);
    let der = found.lock().unwrap_or_else(PoisonError::into_inner).take();
    let der = der.context("the server showed no certificate of the farm's authority")?;
    Ok(pem(&der))
}

fn pem(der: &CertificateDer<'_>) -> String {
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap_or_default()).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

/// Finds the authority that a join token names. Whether the server is one of that authority's is checked by the next
/// connection, on which the token is told.
#[derive(Debug)]
struct Finder {
    fingerprint: [u8; 32],
    found: Arc<Mutex<Option<CertificateDer<'static>>>>,
}

impl ServerCertVerifier for Finder {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let mut shown = intermediates.iter().chain([end_entity]);
        match shown.find(|one| <[u8; 32]>::from(Sha256::digest(one)) == self.fingerprint) {
            Some(authority) => {
                *self.found.lock().unwrap_or_else(PoisonError::into_inner) = Some(authority.clone().into_owned());
                Ok(ServerCertVerified::assertion())
            }
            None => Err(rustls::Error::General("it is not of the authority that the join token names".to_owned())),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &default_provider().signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &default_provider().signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Aside, synced and renamed: after a crash there is a whole one or none.
pub(crate) fn write(file: &Path, text: &str, everybody: bool) -> anyhow::Result<()> {
    let aside = file.with_extension("new");
    let written = || {
        match fs::remove_file(&aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut to = platform::create_new(&aside, everybody)?;
        to.write_all(text.as_bytes())?;
        to.sync_all()?;
        fs::rename(&aside, file)
    };
    written().with_context(|| format!("writing {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::pem::PemObject;
    use std::os::unix::fs::PermissionsExt;

    fn credentials(dir: &Path) -> Credentials {
        Credentials::new(dir, Uuid::nil(), "pc1", None)
    }

    #[test]
    fn a_key_is_made_once_and_nobody_else_reads_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let one = credentials(dir.path());
        one.request().expect("a request");
        let key = one.read(KEY_FILE).expect("a key");
        one.request().expect("another request");
        assert_eq!(one.read(KEY_FILE).expect("a key"), key);
        let mode = fs::metadata(dir.path().join(KEY_FILE)).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_certificate_is_renewed_when_it_is_time() {
        let dir = tempfile::tempdir().expect("a directory");
        let one = credentials(dir.path());
        assert!(!one.are_there() && one.renew_in().is_zero());
        let renew_in = prost_types::Duration { seconds: 60, nanos: 0 };
        one.keep(&Certificate { renew_in: Some(renew_in), ..Certificate::default() }).expect("kept");
        assert!(
            one.are_there() && one.renew_in() > Duration::from_secs(50) && one.renew_in() <= Duration::from_secs(60)
        );
        fs::write(dir.path().join(RENEW_FILE), "nonsense").expect("written");
        assert!(one.renew_in().is_zero(), "better once too often");
    }

    #[test]
    fn certificates_are_written_as_they_are_read() {
        let key = KeyPair::generate().expect("a key");
        let signed = CertificateParams::default().self_signed(&key).expect("signed");
        let read = CertificateDer::from_pem_slice(pem(signed.der()).as_bytes()).expect("PEM");
        assert_eq!(&read, signed.der());
    }
}
