//! The farm's own authority of certificates, and what this server shows and trusts on its listeners.
//!
//! Owns four files in one directory: `authority.pem`, `authority.key`, `server.pem`, `server.key`. All servers of a farm have
//! the same authority; one without its key serves and trusts, but lets nobody join. Files that change are read again, and
//! what cannot be read leaves what was there. A private key leaves its file only to sign.

use crate::accept::Protocol;
use anyhow::{Context, bail, ensure};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType, SerialNumber,
};
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;
use x509_parser::extensions::GeneralName;

const AUTHORITY: &str = "authority.pem";
const AUTHORITY_KEY: &str = "authority.key";
const SERVER: &str = "server.pem";
const SERVER_KEY: &str = "server.key";

/// Of an authority: to replace it, a second one is trusted beside it for a while.
const AUTHORITY_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Of a server: `init` in the same directory makes another.
const SERVER_LIFETIME: Duration = Duration::from_secs(2 * 365 * 24 * 3600);

/// A new authority is valid since so long ago: the clock of this machine may be ahead. The authority's certificates are valid for as
/// long as it is, so that no clock that is ahead makes one that is not valid yet.
const EARLIER: Duration = Duration::from_secs(365 * 24 * 3600);

/// How often files are looked at. Cheap: four `stat`s.
const LOOK: Duration = Duration::from_secs(2);

/// What names a workstation in its certificate.
const IDENTITY_PREFIX: &str = "urn:uuid:";

/// Where what is shown and trusted is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    pub directory: PathBuf,
    /// Instead of those in the directory: of an authority that people's programs trust already.
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

impl Files {
    fn all(&self) -> [PathBuf; 4] {
        let own = |file: &Option<PathBuf>, name| file.clone().unwrap_or_else(|| self.directory.join(name));
        [
            self.directory.join(AUTHORITY),
            self.directory.join(AUTHORITY_KEY),
            own(&self.certificate, SERVER),
            own(&self.key, SERVER_KEY),
        ]
    }
}

/// What is in the files.
struct Loaded {
    config: Arc<ServerConfig>,
    /// Asks nobody for a certificate.
    http_config: Arc<ServerConfig>,
    /// Every authority that is trusted; the first is the one that signs.
    authorities: String,
    fingerprint: [u8; 32],
    issuer: Option<Issuer<'static, KeyPair>>,
    /// Start of the validity of the one that signs.
    not_before: SystemTime,
    changed: Vec<Option<SystemTime>>,
}

/// What this server shows and trusts, as the files have it now.
pub struct Tls {
    files: Files,
    /// Of certificates of workstations.
    pub lifetime: Duration,
    loaded: RwLock<Arc<Loaded>>,
}

/// A workstation's certificate.
#[derive(Clone, Debug)]
pub struct Issued {
    pub certificate: String,
    pub serial: Vec<u8>,
    /// SHA-256 of the public key.
    pub key: [u8; 32],
    pub not_after: SystemTime,
}

/// Why a request is not signed.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    #[error("this server has no key of the farm's authority, and lets nobody join: ask another one")]
    NoKey,
    #[error("this is no request for a certificate that is signed with its own key")]
    Request(#[source] rcgen::Error),
    #[error("signing a certificate")]
    Sign(#[source] rcgen::Error),
}

impl Tls {
    pub fn load(files: Files, lifetime: Duration) -> anyhow::Result<Tls> {
        let loaded = load(&files)?;
        Ok(Tls { files, lifetime, loaded: RwLock::new(Arc::new(loaded)) })
    }

    fn now(&self) -> Arc<Loaded> {
        self.loaded.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// As the files are now, for the connection that comes next. Of who speaks HTTP/1.1 nobody is asked for a certificate.
    pub fn config(&self, protocol: Protocol) -> Arc<ServerConfig> {
        let now = self.now();
        match protocol {
            Protocol::Http1 => now.http_config.clone(),
            Protocol::Http2 => now.config.clone(),
        }
    }

    /// What agents and people trust, PEM.
    pub fn authorities(&self) -> String {
        self.now().authorities.clone()
    }

    /// What a join token knows the authority by.
    pub fn authority_fingerprint(&self) -> [u8; 32] {
        self.now().fingerprint
    }

    /// A certificate for the key of this request, whatever else it asks for, that names the workstation and nothing else.
    pub fn issue(&self, request: &str, workstation: Uuid) -> Result<Issued, IssueError> {
        let loaded = self.now();
        let issuer = loaded.issuer.as_ref().ok_or(IssueError::NoKey)?;
        let request = CertificateSigningRequestParams::from_pem(request).map_err(IssueError::Request)?;
        let not_after = SystemTime::now() + self.lifetime;
        let mut params = CertificateParams::default();
        let serial: [u8; 16] = *Uuid::new_v4().as_bytes();
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        params.distinguished_name = common_name(&workstation.to_string());
        let name = format!("{IDENTITY_PREFIX}{workstation}").try_into().map_err(IssueError::Sign)?;
        params.subject_alt_names = vec![SanType::URI(name)];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        params.not_before = loaded.not_before.into();
        params.not_after = not_after.into();
        let key = Sha256::digest(request.public_key.subject_public_key_info()).into();
        let asked = CertificateSigningRequestParams { params, public_key: request.public_key };
        let certificate = asked.signed_by(issuer).map_err(IssueError::Sign)?.pem();
        Ok(Issued { certificate, serial: serial.to_vec(), key, not_after })
    }

    /// Reads files again that have changed, until the server stops.
    pub async fn watch(self: Arc<Tls>, stopping: CancellationToken) {
        let mut tick = tokio::time::interval(LOOK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut failed_at = None;
        while stopping.run_until_cancelled(tick.tick()).await.is_some() {
            let changed = changes(&self.files);
            if changed == self.now().changed || failed_at.as_ref() == Some(&changed) {
                continue;
            }
            // Half of the files may be new: then the next look finds the rest.
            match load(&self.files) {
                Ok(loaded) => {
                    *self.loaded.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(loaded);
                    info!(directory = %self.files.directory.display(), "certificates were read again");
                }
                Err(error) => {
                    warn!(error = format!("{error:#}"), "certificates were not read again: those before stay in use");
                    failed_at = Some(changed);
                }
            }
        }
    }
}

fn changes(files: &Files) -> Vec<Option<SystemTime>> {
    files.all().iter().map(|file| fs::metadata(file).and_then(|of| of.modified()).ok()).collect()
}

fn load(files: &Files) -> anyhow::Result<Loaded> {
    let changed = changes(files);
    let [authority, authority_key, server, server_key] = files.all();
    let authorities = read(&authority).context("run `pcfarm-server init` to make an authority")?;
    let trusted = certificates(&authorities).with_context(|| format!("reading {}", authority.display()))?;
    let signs = trusted.first().with_context(|| format!("{} holds no certificate", authority.display()))?;
    let issuer = match read(&authority_key) {
        Ok(key) => {
            let key = KeyPair::from_pem(&key).with_context(|| format!("reading {}", authority_key.display()))?;
            ensure!(
                public_key(signs)? == key.subject_public_key_info(),
                "{} is not the key of the first certificate in {}",
                authority_key.display(),
                authority.display()
            );
            Some(Issuer::from_ca_cert_der(signs, key).with_context(|| format!("reading {}", authority.display()))?)
        }
        Err(_) if !authority_key.exists() => None,
        Err(error) => return Err(error),
    };
    let not_before = not_before(signs).with_context(|| format!("reading {}", authority.display()))?;
    let mut roots = RootCertStore::empty();
    for certificate in &trusted {
        roots.add(certificate.clone()).with_context(|| format!("{} holds no authority", authority.display()))?;
    }
    let mut chain = certificates(&read(&server)?).with_context(|| format!("reading {}", server.display()))?;
    ensure!(!chain.is_empty(), "{} holds no certificate", server.display());
    // An agent that joins knows the authority by its fingerprint, and has to be shown it.
    if !chain.contains(signs) {
        chain.push(signs.clone());
    }
    let key = PrivateKeyDer::from_pem_slice(read(&server_key)?.as_bytes())
        .with_context(|| format!("reading {}", server_key.display()))?;
    let provider: Arc<CryptoProvider> = Arc::new(default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated() // people have tokens
        .build()
        .context("preparing to check agents' certificates")?;
    let mut http_config = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .context("choosing versions of TLS")?
        .with_no_client_auth()
        .with_single_cert(chain.clone(), key.clone_key())
        .with_context(|| format!("{} and {} do not belong together", server.display(), server_key.display()))?;
    http_config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("choosing versions of TLS")?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .with_context(|| format!("{} and {} do not belong together", server.display(), server_key.display()))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    let fingerprint = Sha256::digest(signs).into();
    let http_config = Arc::new(http_config);
    Ok(Loaded { config: Arc::new(config), http_config, authorities, fingerprint, issuer, not_before, changed })
}

fn read(file: &Path) -> anyhow::Result<String> {
    fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))
}

fn certificates(pem: &str) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    Ok(CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>()?)
}

fn public_key(certificate: &CertificateDer<'_>) -> anyhow::Result<Vec<u8>> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate)?;
    Ok(parsed.public_key().raw.to_vec())
}

/// Start of a certificate's validity; never before 1970.
fn not_before(certificate: &CertificateDer<'_>) -> anyhow::Result<SystemTime> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate)?;
    let seconds = u64::try_from(parsed.validity().not_before.timestamp()).unwrap_or(0);
    SystemTime::UNIX_EPOCH
        .checked_add(Duration::from_secs(seconds))
        .context("a certificate that is valid after all time")
}

/// Which workstation a certificate names, that was checked already, and until when it does.
pub fn named_in(certificate: &CertificateDer<'_>) -> Option<(Uuid, SystemTime)> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let names = parsed.subject_alternative_name().ok()??;
    let identity = names.value.general_names.iter().find_map(|name| match name {
        GeneralName::URI(text) => text.strip_prefix(IDENTITY_PREFIX)?.parse().ok(),
        _ => None,
    })?;
    let seconds = u64::try_from(parsed.validity().not_after.timestamp()).ok()?;
    Some((identity, SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)))
}

/// What `init` has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// The authority was not there, and is new.
    pub authority: bool,
}

/// Makes an authority where there is none, and a certificate for this server by it.
pub fn init(directory: &Path, names: &[String]) -> anyhow::Result<Made> {
    fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    let (authority, authority_key) = (directory.join(AUTHORITY), directory.join(AUTHORITY_KEY));
    finish_authority(&authority, &authority_key)?;
    let made = match (authority.exists(), authority_key.exists()) {
        (false, false) => {
            make_authority(&authority, &authority_key)?;
            true
        }
        (true, true) => false,
        (true, false) => bail!(
            "{} is there, and its key is not: copy {AUTHORITY_KEY} from the server that has it, for as long as this takes",
            authority.display()
        ),
        (false, true) => bail!(
            "{} is there, and its certificate is not: copy {AUTHORITY} from another server, or remove the key to begin anew",
            authority_key.display()
        ),
    };
    let key = KeyPair::from_pem(&read(&authority_key)?).context("reading the authority's key")?;
    let signs = certificates(&read(&authority)?)?;
    let signs = signs.first().context("the authority's file holds no certificate")?;
    let issuer = Issuer::from_ca_cert_der(signs, key).context("reading the authority's certificate")?;
    let own = KeyPair::generate().context("making a key")?;
    let mut params = CertificateParams::new(names).context("a server's names are host names and addresses")?;
    params.distinguished_name = common_name("PC Farm server");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    params.not_before = not_before(signs).context("reading the authority's certificate")?.into();
    params.not_after = (SystemTime::now() + SERVER_LIFETIME).into();
    let certificate = params.signed_by(&own, &issuer).context("signing the server's certificate")?;
    write(&directory.join(SERVER_KEY), &own.serialize_pem(), 0o600)?;
    write(&directory.join(SERVER), &certificate.pem(), 0o644)?;
    Ok(Made { authority: made })
}

fn make_authority(certificate: &Path, key: &Path) -> anyhow::Result<()> {
    let own = KeyPair::generate().context("making a key")?;
    let mut params = CertificateParams::default();
    // Two authorities, while one replaces the other, are told apart by their names.
    params.distinguished_name = common_name(&format!("PC Farm {}", &Uuid::new_v4().simple().to_string()[..8]));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = (SystemTime::now() - EARLIER).into();
    params.not_after = (SystemTime::now() + AUTHORITY_LIFETIME).into();
    let signed = params.self_signed(&own).context("signing the authority's certificate")?;
    // Both are on the disk before either has its name. The key gets its own first: from then on the other one belongs to it,
    // and whoever is killed in between is finished by the next start.
    let key_aside = write_aside(key, &own.serialize_pem(), 0o600)?;
    let certificate_aside = write_aside(certificate, &signed.pem(), 0o644)?;
    put(&key_aside, key)?;
    put(&certificate_aside, certificate)
}

/// What was left by one that ended between the key and its certificate.
fn finish_authority(certificate: &Path, key: &Path) -> anyhow::Result<()> {
    let left = aside(certificate);
    if certificate.exists() || !key.exists() || !left.exists() {
        return Ok(());
    }
    let own = KeyPair::from_pem(&read(key)?).with_context(|| format!("reading {}", key.display()))?;
    let signed = certificates(&read(&left)?).unwrap_or_default();
    match signed.first().map(public_key) {
        Some(Ok(public)) if public == own.subject_public_key_info() => put(&left, certificate),
        // Another one's, or torn: what to do is told by who finds no certificate.
        Some(_) | None => Ok(()),
    }
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

/// Aside, synced and renamed: whoever reads it meanwhile has the old one or the new.
fn write(file: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
    put(&write_aside(file, text, mode)?, file)
}

fn aside(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

fn write_aside(file: &Path, text: &str, mode: u32) -> anyhow::Result<PathBuf> {
    let aside = aside(file);
    let written = || {
        match fs::remove_file(&aside) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut to = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&aside)?;
        to.write_all(text.as_bytes())?;
        to.sync_all()
    };
    written().with_context(|| format!("writing {}", aside.display()))?;
    Ok(aside)
}

/// Gives it its name, which lasts.
fn put(aside: &Path, file: &Path) -> anyhow::Result<()> {
    let renamed = || {
        fs::rename(aside, file)?;
        match file.parent() {
            Some(directory) => fs::File::open(directory)?.sync_all(),
            None => Ok(()),
        }
    };
    renamed().with_context(|| format!("writing {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn names() -> Vec<String> {
        vec!["localhost".to_owned(), "127.0.0.1".to_owned()]
    }

    fn files(directory: &Path) -> Files {
        Files { directory: directory.to_owned(), certificate: None, key: None }
    }

    #[test]
    fn an_authority_is_made_once_and_a_server_has_what_belongs_together() {
        let directory = tempfile::tempdir().expect("a directory");
        assert!(init(directory.path(), &names()).expect("made").authority);
        let first = Tls::load(files(directory.path()), Duration::from_secs(60)).expect("loaded");
        assert!(!init(directory.path(), &names()).expect("made again").authority);
        let second = Tls::load(files(directory.path()), Duration::from_secs(60)).expect("loaded");
        assert_eq!(first.authority_fingerprint(), second.authority_fingerprint());
        for key in [AUTHORITY_KEY, SERVER_KEY] {
            let mode = fs::metadata(directory.path().join(key)).expect("a file").permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{key}");
        }
        fs::remove_file(directory.path().join(AUTHORITY_KEY)).expect("removed");
        assert!(init(directory.path(), &names()).expect_err("no key").to_string().contains("copy"));
        let without = Tls::load(files(directory.path()), Duration::from_secs(60)).expect("it serves");
        assert!(matches!(without.issue("", Uuid::nil()), Err(IssueError::NoKey)));
    }

    #[test]
    fn an_authority_that_was_half_written_is_finished_or_made_anew() {
        let whole = tempfile::tempdir().expect("a directory");
        init(whole.path(), &names()).expect("made");
        let fingerprint = |directory: &Path| {
            Tls::load(files(directory), Duration::from_secs(60)).expect("loaded").authority_fingerprint()
        };
        // What is there when it is killed after each of its steps, the last but one left out.
        let half = |present: &[(&str, &str)]| {
            let directory = tempfile::tempdir().expect("a directory");
            for (from, to) in present {
                fs::copy(whole.path().join(from), directory.path().join(to)).expect("copied");
            }
            directory
        };
        let (key, certificate) = ("authority.key.new", "authority.pem.new");
        for nothing_yet in [vec![(AUTHORITY_KEY, key)], vec![(AUTHORITY_KEY, key), (AUTHORITY, certificate)]] {
            let directory = half(&nothing_yet);
            assert!(init(directory.path(), &names()).expect("made anew").authority);
            assert_ne!(fingerprint(directory.path()), fingerprint(whole.path()));
        }
        let between = half(&[(AUTHORITY_KEY, AUTHORITY_KEY), (AUTHORITY, certificate)]);
        assert!(!init(between.path(), &names()).expect("finished").authority);
        assert_eq!(fingerprint(between.path()), fingerprint(whole.path()));
        // A key whose certificate went another way is nobody's to guess.
        let alone = half(&[(AUTHORITY_KEY, AUTHORITY_KEY)]);
        assert!(init(alone.path(), &names()).expect_err("no certificate").to_string().contains("copy"));
        let other = half(&[(AUTHORITY_KEY, AUTHORITY_KEY)]);
        fs::write(other.path().join(certificate), "torn").expect("written");
        assert!(init(other.path(), &names()).is_err());
        assert!(!other.path().join(AUTHORITY).exists());
    }

    #[test]
    fn another_authoritys_key_is_refused() {
        let (one, other) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
        init(one.path(), &names()).expect("made");
        init(other.path(), &names()).expect("made");
        fs::copy(other.path().join(AUTHORITY_KEY), one.path().join(AUTHORITY_KEY)).expect("copied");
        let error = Tls::load(files(one.path()), Duration::from_secs(60)).err().expect("refused");
        assert!(error.to_string().contains("not the key"), "{error}");
    }

    /// The server's clock is two hours ahead when it signs. The clocks of the agents are right.
    #[test]
    fn certificates_are_valid_as_early_as_their_authority() {
        let directory = tempfile::tempdir().expect("a directory");
        let own = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.not_before = (SystemTime::now() - Duration::from_secs(7200)).into();
        params.not_after = (SystemTime::now() + AUTHORITY_LIFETIME).into();
        let signed = params.self_signed(&own).expect("signed");
        fs::write(directory.path().join(AUTHORITY), signed.pem()).expect("written");
        fs::write(directory.path().join(AUTHORITY_KEY), own.serialize_pem()).expect("written");
        init(directory.path(), &names()).expect("made");
        let tls = Tls::load(files(directory.path()), Duration::from_secs(3600)).expect("loaded");
        let key = KeyPair::generate().expect("a key");
        let request = CertificateParams::default().serialize_request(&key).expect("a request").pem().expect("PEM");
        let issued = tls.issue(&request, Uuid::new_v4()).expect("signed").certificate;
        let server = fs::read_to_string(directory.path().join(SERVER)).expect("a certificate");
        let expected = not_before(signed.der()).expect("a time");
        for pem in [issued, server] {
            let certificate = certificates(&pem).expect("PEM").remove(0);
            assert_eq!(not_before(&certificate).expect("a time"), expected);
        }
    }

    #[test]
    fn a_workstations_certificate_names_it_whatever_it_asked_for() {
        let directory = tempfile::tempdir().expect("a directory");
        init(directory.path(), &names()).expect("made");
        let tls = Tls::load(files(directory.path()), Duration::from_secs(3600)).expect("loaded");
        let key = KeyPair::generate().expect("a key");
        let asked = CertificateParams::new(vec!["farm.example.org".to_owned()]).expect("names");
        let request = asked.serialize_request(&key).expect("a request").pem().expect("PEM");
        let identity = Uuid::new_v4();
        let issued = tls.issue(&request, identity).expect("signed");
        let certificate = certificates(&issued.certificate).expect("PEM").remove(0);
        let (named, until) = named_in(&certificate).expect("a name");
        assert_eq!(named, identity);
        assert!(until <= issued.not_after && until + Duration::from_secs(2) > issued.not_after);
        let (_, parsed) = x509_parser::parse_x509_certificate(&certificate).expect("a certificate");
        let names = parsed.subject_alternative_name().expect("well formed").expect("there").value.general_names.len();
        assert_eq!(names, 1, "the name that it asked for is not in it");
        assert!(matches!(tls.issue("rubbish", identity), Err(IssueError::Request(_))));
        let torn = request.replace("MI", "MJ");
        assert!(tls.issue(&torn, identity).is_err());
    }
}
