//! Why TLS to the database failed, and what to do about it.

use std::io;

use rustls::{AlertDescription, CertificateError, Error};

/// Replaces rustls's error on the way through tokio-postgres, so that each report of a failed connection says what to do.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct TlsFailure {
    message: String,
    /// Trying again does not help: a certificate, a file or a setting must change.
    pub is_lasting: bool,
}

impl TlsFailure {
    pub(super) fn lasting(message: String) -> TlsFailure {
        TlsFailure { message, is_lasting: true }
    }

    /// Failure of a handshake with `host`.
    pub(super) fn handshake(error: &io::Error, host: &str) -> TlsFailure {
        match rustls_error(error) {
            Some(source) => TlsFailure::lasting(explain(source, host)),
            None => {
                TlsFailure { message: format!("the TLS handshake with {host} broke off: {error}"), is_lasting: false }
            }
        }
    }

    /// Failure of a connection in use. In TLS 1.3 the refusal of a client certificate comes after the handshake.
    pub(super) fn in_use(error: io::Error, host: &str) -> io::Error {
        match rustls_error(&error) {
            Some(source @ Error::AlertReceived(_)) => {
                io::Error::new(error.kind(), TlsFailure::lasting(explain(source, host)))
            }
            _ => error,
        }
    }
}

fn rustls_error(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}

fn explain(error: &Error, host: &str) -> String {
    match error {
        Error::InvalidCertificate(certificate) => explain_certificate(certificate, host),
        Error::AlertReceived(AlertDescription::CertificateRequired) => {
            format!("{host} demands a client certificate: name it and its key by sslcert and sslkey")
        }
        Error::AlertReceived(AlertDescription::UnknownCA) => format!(
            "{host} does not know the authority of the client certificate: its ssl_ca_file must contain that authority"
        ),
        Error::AlertReceived(AlertDescription::CertificateExpired) => {
            format!("{host} refused the client certificate, which has expired: renew the one that sslcert names")
        }
        Error::AlertReceived(
            alert @ (AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRevoked
            | AlertDescription::UnsupportedCertificate),
        ) => format!("{host} refused the client certificate that sslcert names ({alert:?}): its log has the reason"),
        Error::AlertReceived(AlertDescription::ProtocolVersion) | Error::PeerIncompatible(_) => format!(
            "{host} and this program have no version of TLS or cipher in common: TLS 1.2 or 1.3 is needed ({error})"
        ),
        other => format!("TLS with {host} failed: {other}"),
    }
}

fn explain_certificate(error: &CertificateError, host: &str) -> String {
    match error {
        CertificateError::NotValidForNameContext { presented, .. } if presented.is_empty() => format!(
            "the certificate of {host} names no host: issue one with a subjectAltName, or use sslmode=verify-ca"
        ),
        CertificateError::NotValidForNameContext { presented, .. } => format!(
            "the certificate is not for {host} but for {}: connect by such a name (hostaddr= gives its address), or use \
             sslmode=verify-ca",
            presented.join(", ")
        ),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            format!(
                "the certificate of {host} has expired, or this machine's clock is wrong: renew it on the database server"
            )
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            format!("the certificate of {host} is not valid yet: check the clocks of this machine and of its issuer")
        }
        CertificateError::UnknownIssuer => format!(
            "the certificate of {host} comes from an unknown authority: name the file of its authority by sslrootcert (the \
             default is ~/.postgresql/root.crt; sslrootcert=system stands for public authorities)"
        ),
        CertificateError::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => format!(
            "{host} presents an authority's own certificate: put that very certificate into the file of sslrootcert, or issue \
             a server certificate"
        ),
        CertificateError::BadSignature => format!(
            "a signature of {host} does not fit its certificate: the server has another key, the certificate was changed, or \
             another program answers in the server's place"
        ),
        other => format!("the certificate of {host} is not valid: {other}"),
    }
}
