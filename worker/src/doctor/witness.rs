//! What a server shows of itself in TLS, whoever it is.
//!
//! Owns the judgement of it: rustls' own verifier makes it, and it is written down instead of ending the connection, so that
//! what is wrong can be said and the server's clock be asked when only time is in question. **Nothing is told on such a
//! connection** unless the judgement allows it.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Who vouches for a server.
#[derive(Clone, Debug)]
pub enum Trust {
    Roots(RootCertStore),
    /// The authority that a join token names, which the server shows itself.
    Fingerprint([u8; 32]),
}

impl Trust {
    /// These authorities, as PEM; none of them: those that this system trusts.
    pub fn of(authorities: &[Vec<u8>]) -> anyhow::Result<Trust> {
        let mut roots = RootCertStore::empty();
        for pem in authorities {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                roots.add(certificate.context("reading an authority")?).context("an authority")?;
            }
        }
        if authorities.is_empty() {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        Ok(Trust::Roots(roots))
    }
}

/// What became of looking at a server.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// It is who it should be.
    Good,
    /// It would be, if this machine's clock were another. The times are as the certificate has them.
    AtAnotherTime,
    Bad(Error),
}

/// What was seen.
#[derive(Clone, Debug)]
pub struct Seen {
    pub verdict: Verdict,
    /// Its certificate, for people.
    pub certificate: Option<Described>,
}

/// A certificate, for people.
#[derive(Clone, Debug)]
pub struct Described {
    pub issuer: String,
    pub names: Vec<String>,
    pub from: String,
    pub until: String,
    /// Seconds since 1970.
    pub until_seconds: i64,
}

impl Described {
    pub fn of(der: &[u8]) -> Option<Described> {
        let (_, parsed) = X509Certificate::from_der(der).ok()?;
        let names = parsed.subject_alternative_name().ok().flatten();
        let names = names.map(|names| names.value.general_names.iter().map(|name| name_of(name)).collect());
        let day = |seconds: i64| {
            jiff::Timestamp::from_second(seconds)
                .map_or_else(|_| "?".to_owned(), |at| at.strftime("%F %H:%M UTC").to_string())
        };
        let (from, until) = (parsed.validity().not_before.timestamp(), parsed.validity().not_after.timestamp());
        let issuer = parsed.issuer().iter_common_name().find_map(|name| name.as_str().ok());
        Some(Described {
            issuer: issuer.map_or_else(|| parsed.issuer().to_string(), str::to_owned),
            names: names.unwrap_or_default(),
            from: day(from),
            until: day(until),
            until_seconds: until,
        })
    }

    /// Of the first in a PEM file.
    pub fn of_pem(pem: &str) -> Option<Described> {
        Described::of(&CertificateDer::from_pem_slice(pem.as_bytes()).ok()?)
    }
}

fn name_of(name: &x509_parser::extensions::GeneralName<'_>) -> String {
    use x509_parser::extensions::GeneralName;
    match name {
        GeneralName::DNSName(name) => (*name).to_owned(),
        GeneralName::IPAddress([a, b, c, d]) => std::net::Ipv4Addr::new(*a, *b, *c, *d).to_string(),
        GeneralName::IPAddress(bytes) => <[u8; 16]>::try_from(*bytes)
            .map_or_else(|_| "?".to_owned(), |bytes| std::net::Ipv6Addr::from(bytes).to_string()),
        other => other.to_string(),
    }
}

/// Lets every handshake come about, and remembers what it saw.
#[derive(Debug)]
pub struct Witness {
    trust: Trust,
    seen: Mutex<Option<Seen>>,
}

impl Witness {
    pub fn new(trust: Trust) -> Witness {
        Witness { trust, seen: Mutex::default() }
    }

    pub fn seen(&self) -> Option<Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn judge(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Verdict {
        let roots = match &self.trust {
            Trust::Roots(roots) => roots.clone(),
            Trust::Fingerprint(fingerprint) => {
                let mut shown = intermediates.iter().chain([end_entity]);
                let mut roots = RootCertStore::empty();
                let authority = shown.find(|one| <[u8; 32]>::from(Sha256::digest(one)) == *fingerprint);
                if authority.is_none_or(|authority| roots.add(authority.clone().into_owned()).is_err()) {
                    return Verdict::Bad(CertificateError::UnknownIssuer.into());
                }
                roots
            }
        };
        if roots.is_empty() {
            return Verdict::Bad(CertificateError::UnknownIssuer.into());
        }
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::new(default_provider()));
        let verifier = match verifier.build() {
            Ok(verifier) => verifier,
            Err(error) => return Verdict::Bad(Error::General(error.to_string())),
        };
        let at = |now| verifier.verify_server_cert(end_entity, intermediates, name, &[], now);
        let Err(error) = at(now) else { return Verdict::Good };
        let valid_at = match &error {
            Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. }) => Some(not_after.as_secs()),
            Error::InvalidCertificate(CertificateError::NotValidYetContext { not_before, .. }) => {
                Some(not_before.as_secs())
            }
            _ => None,
        };
        let valid_at = valid_at.map(|seconds| UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds)));
        if valid_at.is_some_and(|then| at(then).is_ok()) { Verdict::AtAnotherTime } else { Verdict::Bad(error) }
    }
}

impl ServerCertVerifier for Witness {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verdict = self.judge(end_entity, intermediates, name, now);
        let seen = Seen { verdict, certificate: Described::of(end_entity) };
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = default_provider().signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, &known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = default_provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, &known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}
