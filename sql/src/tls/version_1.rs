//! Certificates that webpki does not read, above all those of X.509 version 1. PostgreSQL's manual makes such a server
//! certificate: `openssl x509 -req` adds no extensions by itself.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer};
use rustls::{CertificateError, DigitallySignedStruct, Error, PeerMisbehaved};
use webpki::RawPublicKeyEntity;
use x509_parser::certificate::X509Certificate;
use x509_parser::x509::X509Version;

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, Error> {
    match x509_parser::parse_x509_certificate(certificate) {
        Ok(([], parsed)) => Ok(parsed),
        _ => Err(CertificateError::BadEncoding.into()),
    }
}

pub(super) fn is(certificate: &CertificateDer<'_>) -> bool {
    parse(certificate).is_ok_and(|parsed| parsed.version() == X509Version::V1)
}

pub(super) fn public_key(certificate: &CertificateDer<'_>) -> Result<SubjectPublicKeyInfoDer<'static>, Error> {
    Ok(SubjectPublicKeyInfoDer::from(parse(certificate)?.public_key().raw.to_vec()))
}

/// Accepts a certificate that one of the roots signed itself. Intermediate authorities are left to webpki and version 3.
pub(super) fn verify_issuer(
    certificate: &CertificateDer<'_>,
    roots: &[CertificateDer<'_>],
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<(), Error> {
    let parsed = parse(certificate)?;
    let (signed, signature) = (parsed.tbs_certificate.as_ref(), parsed.signature_value.data.as_ref());
    for root in roots {
        let Ok(issuer) = parse(root) else { continue };
        // As OpenSSL: version 1 has no mark of an authority, and one that signed itself is taken for it.
        let signs_itself = issuer.subject().as_raw() == issuer.issuer().as_raw();
        let may_issue = issuer.is_ca() || (issuer.version() == X509Version::V1 && signs_itself);
        if !may_issue || issuer.subject().as_raw() != parsed.issuer().as_raw() {
            continue;
        }
        let key = SubjectPublicKeyInfoDer::from(issuer.public_key().raw);
        let Ok(key) = RawPublicKeyEntity::try_from(&key) else { continue };
        if algorithms.all.iter().any(|algorithm| key.verify_signature(*algorithm, signed, signature).is_ok()) {
            return Ok(());
        }
    }
    Err(CertificateError::UnknownIssuer.into())
}

/// Checks the signature of a TLS 1.2 handshake by the certificate's key alone.
pub(super) fn verify_handshake(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    let key = public_key(certificate)?;
    let key = RawPublicKeyEntity::try_from(&key).map_err(|_| CertificateError::BadEncoding)?;
    let known = algorithms.mapping.iter().find(|(scheme, _)| *scheme == signature.scheme);
    let (_, candidates) = known.ok_or(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme)?;
    if candidates.iter().any(|algorithm| key.verify_signature(*algorithm, message, signature.signature()).is_ok()) {
        Ok(HandshakeSignatureValid::assertion())
    } else {
        Err(CertificateError::BadSignature.into())
    }
}
