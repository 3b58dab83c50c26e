//! The check of a certificate's name against the host, by libpq's rules.

use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;

/// Accepts a certificate with the host among its alternative names. The common name counts if the certificate has no
/// alternative name of the host's kind (DNS name or address).
pub(super) fn verify(certificate: &CertificateDer<'_>, host: &ServerName<'_>) -> Result<(), Error> {
    let refused = match ParsedCertificate::try_from(certificate).and_then(|parsed| verify_server_name(&parsed, host)) {
        Ok(()) => return Ok(()),
        Err(error) => error,
    };
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else { return Err(refused) };
    if has_alternative_name(&parsed, matches!(host, ServerName::IpAddress(_))) {
        return Err(refused);
    }
    // As libpq, the first one.
    let common_name = parsed.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
    match common_name {
        Some(name) if matches(name, &host.to_str()) => Ok(()),
        _ => Err(CertificateError::NotValidForNameContext {
            expected: host.to_owned(),
            presented: common_name.map(ToOwned::to_owned).into_iter().collect(),
        }
        .into()),
    }
}

/// True also if the extension cannot be read: the common name is for certificates without it.
fn has_alternative_name(parsed: &X509Certificate<'_>, is_address: bool) -> bool {
    match parsed.subject_alternative_name() {
        Ok(None) => false,
        Ok(Some(names)) => names.value.general_names.iter().any(|name| match name {
            GeneralName::DNSName(_) => !is_address,
            GeneralName::IPAddress(_) => is_address,
            GeneralName::Invalid(..) => true,
            _ => false,
        }),
        Err(_) => true,
    }
}

/// Compares without case. A leading `*.` stands for one label.
fn matches(name: &str, host: &str) -> bool {
    if name.contains('\0') {
        return false;
    }
    if name.eq_ignore_ascii_case(host) {
        return true;
    }
    let Some(domain) = name.strip_prefix("*.") else { return false };
    host.split_once('.').is_some_and(|(label, rest)| !label.is_empty() && rest.eq_ignore_ascii_case(domain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_names_are_compared_as_in_libpq() {
        for (name, host, expected) in [
            ("db", "db", true),
            ("DB.example.org", "db.EXAMPLE.org", true),
            ("*.example.org", "db.example.org", true),
            ("*.example.org", "a.db.example.org", false),
            ("*.example.org", "example.org", false),
            ("*.example.org", ".example.org", false),
            ("*", "db", false),
            ("d*.example.org", "db.example.org", false),
            ("db\0.example.org", "db", false),
            ("127.0.0.1", "127.0.0.1", true),
        ] {
            assert_eq!(matches(name, host), expected, "{name} {host}");
        }
    }
}
