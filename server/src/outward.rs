//! HTTP from here to others: webhooks, and a store of uploads.

use hyper_rustls::HttpsConnectorBuilder;
use hyper_rustls::builderstates::WantsSchemes;
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use std::sync::Arc;
use tracing::warn;

/// Trusts whom the system trusts: a department's own authority is among them.
pub fn connector() -> HttpsConnectorBuilder<WantsSchemes> {
    match HttpsConnectorBuilder::new().with_provider_and_native_roots(ring::default_provider()) {
        Ok(builder) => builder,
        Err(error) => {
            warn!(%error, "this system has no certificates to trust: nobody with https will be reached");
            let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_safe_default_protocol_versions()
                .expect("ring knows TLS 1.2 and 1.3");
            let config = config.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
            HttpsConnectorBuilder::new().with_tls_config(config)
        }
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
