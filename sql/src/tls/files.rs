//! Reads root certificates, client certificates and keys, with libpq's checks, into rustls's configuration.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::verify::{Demand, Verifier};
use super::{Encryption, Identity, Mode, Roots};

#[derive(Debug, thiserror::Error)]
pub enum TlsFileError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} holds no certificate: it must be in PEM format (BEGIN CERTIFICATE)", .0.display())]
    NoCertificate(PathBuf),
    #[error("{} is not a PEM file of certificates", path.display())]
    BadCertificate { path: PathBuf, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("this system has no root certificates: install ca-certificates, or name a file by sslrootcert")]
    NoSystemRoots,
    #[error(
        "sslmode={mode} needs root certificates, and {} does not exist: put the authority's certificate there, name a file \
         by sslrootcert, or use sslrootcert=system for a public authority", path.display()
    )]
    NoRoots { mode: Mode, path: PathBuf },
    #[error("sslmode={0} needs root certificates: name a file by sslrootcert, or use sslrootcert=system")]
    NoRootsNamed(Mode),
    #[error("the certificate {} has no key: {} does not exist; name it by sslkey", certificate.display(), key.display())]
    NoKey { certificate: PathBuf, key: PathBuf },
    #[error("the key {path} can be read by others: run `chmod 0600 {path}` (0640 if root owns it)", path = .0.display())]
    OpenKey(PathBuf),
    #[error("the key {} is not a plain file", .0.display())]
    KeyNotPlain(PathBuf),
    #[error("the key {path} is encrypted: decrypt it with `openssl pkey -in {path} -out FILE`", path = .0.display())]
    EncryptedKey(PathBuf),
    #[error("{} holds no private key in PEM format", .0.display())]
    BadKey(PathBuf),
    #[error("{} and {} do not belong together", certificate.display(), key.display())]
    Mismatch { certificate: PathBuf, key: PathBuf, source: rustls::Error },
    #[error("cannot prepare TLS")]
    Rustls(#[from] rustls::Error),
}

pub(super) fn load(encryption: &Encryption) -> Result<ClientConfig, TlsFileError> {
    let provider = Arc::new(default_provider());
    let roots = roots(encryption)?;
    // As in libpq, roots that are there are used in every mode; the name counts in verify-full alone.
    let demand = match (&roots, encryption.mode) {
        (None, _) => Demand::Nothing,
        (Some(_), Mode::VerifyFull) => Demand::AuthorityAndName,
        (Some(_), Mode::Disable | Mode::Allow | Mode::Prefer | Mode::Require | Mode::VerifyCa) => Demand::Authority,
    };
    let mut store = RootCertStore::empty();
    let roots = roots.unwrap_or_default();
    store.add_parsable_certificates(roots.iter().cloned());
    let verifier = Verifier::new(demand, store, roots, provider.clone());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(encryption.versions)?
        .dangerous() // the verifier follows the mode
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match encryption.identity.as_ref().map(identity).transpose()?.flatten() {
        None => builder.with_no_client_auth(),
        Some((chain, key, files)) => builder.with_client_auth_cert(chain, key).map_err(|source| {
            TlsFileError::Mismatch { certificate: files.certificate.clone(), key: files.key.clone(), source }
        })?,
    };
    config.enable_sni = encryption.sni;
    // PostgreSQL 17 and newer demand it of connections that begin with TLS (sslnegotiation=direct).
    config.alpn_protocols = vec![b"postgresql".to_vec()];
    Ok(config)
}

/// `None` when there are none and the mode can do without.
fn roots(encryption: &Encryption) -> Result<Option<Vec<CertificateDer<'static>>>, TlsFileError> {
    let needed = encryption.mode >= Mode::VerifyCa;
    match &encryption.roots {
        Roots::None if needed => Err(TlsFileError::NoRootsNamed(encryption.mode)),
        Roots::None => Ok(None),
        Roots::System => {
            let found = rustls_native_certs::load_native_certs();
            if found.certs.is_empty() { Err(TlsFileError::NoSystemRoots) } else { Ok(Some(found.certs)) }
        }
        // As libpq: below `require` a missing file leaves the certificate unchecked. `check_files` warns of it.
        Roots::File(_) if encryption.missing_roots().is_some() => Ok(None),
        Roots::File(path) => certificates(path).map(Some),
        Roots::Default(path) if path.exists() => certificates(path).map(Some),
        Roots::Default(path) if needed => Err(TlsFileError::NoRoots { mode: encryption.mode, path: path.clone() }),
        Roots::Default(_) => Ok(None),
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
    let pem = read(path)?;
    let found: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|source| TlsFileError::BadCertificate { path: path.to_owned(), source: Box::new(source) })?;
    if found.is_empty() { Err(TlsFileError::NoCertificate(path.to_owned())) } else { Ok(found) }
}

type Loaded<'a> = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>, &'a Identity);

fn identity(files: &Identity) -> Result<Option<Loaded<'_>>, TlsFileError> {
    if files.by_default && !files.certificate.exists() {
        return Ok(None);
    }
    let chain = certificates(&files.certificate)?;
    let metadata = match fs::metadata(&files.key) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(TlsFileError::NoKey { certificate: files.certificate.clone(), key: files.key.clone() });
        }
        Err(source) => return Err(TlsFileError::Read { path: files.key.clone(), source }),
    };
    if !metadata.is_file() {
        return Err(TlsFileError::KeyNotPlain(files.key.clone()));
    }
    private(&files.key, &metadata)?;
    let pem = read(&files.key)?;
    match PrivateKeyDer::from_pem_slice(&pem) {
        Ok(key) => Ok(Some((chain, key, files))),
        Err(_) if contains(&pem, b"ENCRYPTED") => Err(TlsFileError::EncryptedKey(files.key.clone())),
        Err(_) => Err(TlsFileError::BadKey(files.key.clone())),
    }
}

fn contains(text: &[u8], wanted: &[u8]) -> bool {
    text.windows(wanted.len()).any(|window| window == wanted)
}

fn read(path: &Path) -> Result<Vec<u8>, TlsFileError> {
    fs::read(path).map_err(|source| TlsFileError::Read { path: path.to_owned(), source })
}

/// libpq's rule: the owner alone may read a key, and the group, too, if root owns it. The owner itself is not checked: root may use any user's key, and another user's is not readable.
#[cfg(unix)]
fn private(path: &Path, metadata: &fs::Metadata) -> Result<(), TlsFileError> {
    use std::os::unix::fs::MetadataExt;
    let open = if metadata.uid() == 0 { 0o037 } else { 0o077 };
    if metadata.mode() & open != 0 { Err(TlsFileError::OpenKey(path.to_owned())) } else { Ok(()) }
}

#[cfg(not(unix))]
fn private(_: &Path, _: &fs::Metadata) -> Result<(), TlsFileError> {
    Ok(()) // libpq does not look there either
}
