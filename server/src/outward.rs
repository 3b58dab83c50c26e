//! Connections from the server to others: webhooks, a store of uploads, a collector of traces. Mail shares the authorities.
//!
//! **Users choose the targets of webhooks, administrators all others.** Webhooks reach public addresses and the networks of the
//! setting `webhook_networks`. A proxy resolves names itself, so its own rules decide about the addresses of names.

use hyper::{Request, StatusCode, Uri, header};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use pcfarm_proxy::{Connector, Limits, Network, PasswordWanted, Proxies, Reach};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use std::path::Path;
use tracing::warn;

/// Proxies, and authorities beside those that the system trusts.
#[derive(Clone, Debug, Default)]
pub struct Outward {
    pub proxies: Proxies,
    authorities: Vec<CertificateDer<'static>>,
    /// The authorities as their file has them.
    pem: Option<Vec<u8>>,
    /// Networks that webhooks may reach beside public addresses.
    webhook_networks: Vec<Network>,
}

impl Outward {
    /// `proxy`: the setting of that name. `authorities`: a PEM file.
    pub fn of(
        proxy: Option<&str>,
        authorities: Option<&Path>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Outward, String> {
        let proxies = Proxies::of(proxy, variable).map_err(|error| error.to_string())?;
        let Some(file) = authorities else { return Ok(Outward { proxies, ..Outward::default() }) };
        let wrong = |error: &dyn std::fmt::Display| format!("outgoing_ca: {}: {error}", file.display());
        let pem = std::fs::read(file).map_err(|error| wrong(&error))?;
        let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
        let authorities = parsed.map_err(|error| wrong(&error))?;
        if authorities.is_empty() {
            return Err(wrong(&"no certificate in PEM form"));
        }
        let mut roots = RootCertStore::empty();
        for authority in &authorities {
            roots.add(authority.clone()).map_err(|error| wrong(&error))?;
        }
        Ok(Outward { proxies, authorities, pem: Some(pem), ..Outward::default() })
    }

    pub fn pem(&self) -> Option<&[u8]> {
        self.pem.as_deref()
    }

    #[must_use]
    pub fn with_webhook_networks(self, webhook_networks: Vec<Network>) -> Outward {
        Outward { webhook_networks, ..self }
    }

    /// Addresses that webhooks may reach.
    pub fn of_webhooks(&self) -> Reach {
        Reach::public_and(&self.webhook_networks)
    }

    /// For HTTP/1, to destinations with and without TLS.
    pub fn connector(&self, limits: Limits) -> HttpsConnector<Connector> {
        let tls = self.tls();
        let connector = Connector::with_tls(self.proxies.clone(), limits, tls.clone());
        HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(connector)
    }

    /// For HTTP/2, on which the client puts its own TLS.
    pub fn tunnel(&self) -> Connector {
        let limits = Limits { nodelay: true, ..Limits::default() };
        Connector::with_tls(self.proxies.clone(), limits, self.tls()).tunnel_all()
    }

    /// Shows the proxy's password with a request that is not sent through a tunnel.
    pub fn authorize<B>(&self, request: &mut Request<B>) {
        if let Some(value) = self.proxies.authorization(request.uri()) {
            request.headers_mut().insert(header::PROXY_AUTHORIZATION, value);
        }
    }

    /// Failure of the proxy, if it answered a request that was not sent through a tunnel in the destination's place.
    pub fn failure_of_proxy(&self, destination: &Uri, status: StatusCode) -> Option<String> {
        if status != StatusCode::PROXY_AUTHENTICATION_REQUIRED || destination.scheme_str() != Some("http") {
            return None;
        }
        self.proxies.name_of(destination).map(|proxy| format!("proxy {proxy}: {PasswordWanted}"))
    }

    /// Warns of variables that cannot be used: their destinations cannot be reached.
    pub fn warn(&self) {
        for error in self.proxies.unusable() {
            warn!(%error, "proxy variable not usable: destinations that it decides about cannot be reached");
        }
    }

    /// Trusts the system's authorities and those of the setting.
    fn tls(&self) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        let of_system = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(of_system.certs);
        roots.add_parsable_certificates(self.authorities.iter().cloned());
        if roots.is_empty() {
            warn!(errors = ?of_system.errors, "this system trusts no authority: destinations with https cannot be reached");
        }
        pcfarm_proxy::connector::tls(roots)
    }
}

/// An error with what caused it; the outermost says little.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_authorities_are_refused_with_their_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("ca.pem");
        let of = |file: &Path| Outward::of(None, Some(file), |_| None);
        assert!(of(&file).expect_err("no file").contains("ca.pem"));
        for text in ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            std::fs::write(&file, text).expect("written");
            let error = of(&file).expect_err(text);
            assert!(error.starts_with("outgoing_ca: ") && error.contains("ca.pem"), "{error}");
        }
        let certificate = rcgen::generate_simple_self_signed(["farm.example".to_owned()]).expect("a certificate");
        std::fs::write(&file, certificate.cert.pem().repeat(2)).expect("written");
        assert_eq!(of(&file).expect("an authority").authorities.len(), 2);
    }
}
