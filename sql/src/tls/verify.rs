//! The check of a server's certificate: by its authority, and by its name in `verify-full`. In every mode the server proves
//! that it holds the certificate's key: without that proof, channel binding would bind to a copied certificate.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{
    CryptoProvider, verify_tls12_signature, verify_tls13_signature, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use super::{names, version_1};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Demand {
    /// Encryption without a check of the peer, as libpq's `require` without a root file.
    Nothing,
    Authority,
    AuthorityAndName,
}

#[derive(Debug)]
pub(super) struct Verifier {
    demand: Demand,
    roots: RootCertStore,
    /// The roots as they are. A server may present one of them itself: PostgreSQL's manual makes such certificates, which
    /// are authorities at the same time, and which webpki takes for no server's.
    pinned: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    pub fn new(
        demand: Demand,
        roots: RootCertStore,
        pinned: Vec<CertificateDer<'static>>,
        provider: Arc<CryptoProvider>,
    ) -> Verifier {
        Verifier { demand, roots, pinned, provider }
    }

    fn verify_authority(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        if self.pinned.contains(certificate) {
            return verify_period(certificate, now);
        }
        let algorithms = &self.provider.signature_verification_algorithms;
        if version_1::is(certificate) {
            version_1::verify_issuer(certificate, &self.pinned, algorithms)?;
            return verify_period(certificate, now);
        }
        let parsed = ParsedCertificate::try_from(certificate)?;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, algorithms.all)
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.demand >= Demand::Authority {
            self.verify_authority(certificate, intermediates, now)?;
        }
        if self.demand >= Demand::AuthorityAndName {
            names::verify(certificate, name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        match ParsedCertificate::try_from(certificate) {
            Ok(_) => verify_tls12_signature(message, certificate, signature, algorithms),
            Err(_) => version_1::verify_handshake(message, certificate, signature, algorithms),
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        match ParsedCertificate::try_from(certificate) {
            Ok(_) => verify_tls13_signature(message, certificate, signature, algorithms),
            Err(_) => {
                let key = version_1::public_key(certificate)?;
                verify_tls13_signature_with_raw_key(message, &key, signature, algorithms)
            }
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn verify_period(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let validity = parsed.validity();
    if now > validity.not_after.timestamp() {
        return Err(CertificateError::Expired.into());
    }
    if now < validity.not_before.timestamp() {
        return Err(CertificateError::NotValidYet.into());
    }
    Ok(())
}
