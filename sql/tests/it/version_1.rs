//! Certificates of X.509 version 1, which rcgen does not make.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::SigningKey;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::network::{Authority, Pair};

impl Authority {
    /// Certificate of X.509 version 1, as `openssl x509 -req` issues it: a common name and no extensions.
    pub fn issue_version_1(&self, common_name: &str) -> Pair {
        let pair = self.issue(common_name, &[], false);
        let model = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).expect("PEM");
        let (_, model) = x509_parser::parse_x509_certificate(&model).expect("a certificate");
        let algorithm = der(0x30, &[&[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02]]); // ECDSA with SHA-256
        let period = der(0x30, &[&der(0x17, &[b"200101000000Z"]), &der(0x18, &[b"21200101000000Z"])]);
        let (issuer, subject) = (model.issuer().as_raw(), model.subject().as_raw());
        let signed = der(0x30, &[&[2, 1, 1], &algorithm, issuer, &period, subject, model.public_key().raw]);
        let signature = self.issuer.key().sign(&signed).expect("signed");
        let certificate = der(0x30, &[&signed, &algorithm, &der(0x03, &[&[0], &signature])]);
        let text = STANDARD.encode(certificate);
        let certificate = format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n");
        Pair { certificate, key: pair.key }
    }
}

fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let length = u16::try_from(content.len()).expect("short").to_be_bytes();
    let length: &[u8] = if content.len() < 128 { &length[1..] } else { &[0x82, length[0], length[1]] };
    [&[tag], length, &content].concat()
}
