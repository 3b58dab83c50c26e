//! Connections to destinations, direct or through their proxies.

use std::error::Error;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::proxy::matcher::Intercept;
use hyper_util::rt::TokioIo;
use rustls::crypto::ring::default_provider;
use rustls::{ClientConfig, RootCertStore};
use tower::Service;

use crate::reach::Reach;
use crate::resolver::Resolver;
use crate::rules::{Proxies, name};

type Tcp = TokioIo<tokio::net::TcpStream>;
type Failed = Box<dyn Error + Send + Sync>;

/// Connects to a destination. TLS to the destination is the client's own, on top of this connector.
#[derive(Clone)]
pub struct Connector {
    proxies: Proxies,
    reach: Reach,
    direct: HttpConnector<Resolver>,
    to_proxy: HttpsConnector<HttpConnector>,
    tunnels_all: bool,
}

/// Limits of connections.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    pub reach: Reach,
    pub connect_timeout: Option<Duration>,
    pub nodelay: bool,
}

impl Limits {
    fn on<R>(&self, http: &mut HttpConnector<R>) {
        http.enforce_http(false);
        http.set_connect_timeout(self.connect_timeout);
        http.set_nodelay(self.nodelay);
    }
}

impl Connector {
    /// Proxies with https addresses need an authority that the system trusts.
    pub fn new(proxies: Proxies, limits: Limits) -> Connector {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        Connector::with_tls(proxies, limits, tls(roots))
    }

    /// `tls` is for proxies with https addresses. A proxy itself may have any address: an administrator chose it.
    pub fn with_tls(proxies: Proxies, limits: Limits, tls: ClientConfig) -> Connector {
        let mut direct = HttpConnector::new_with_resolver(Resolver::new(limits.reach.clone()));
        let mut http = HttpConnector::new();
        limits.on(&mut direct);
        limits.on(&mut http);
        let to_proxy = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
        let to_proxy = to_proxy.wrap_connector(http);
        Connector { proxies, reach: limits.reach, direct, to_proxy, tunnels_all: false }
    }

    /// Opens a tunnel for destinations without TLS, too: HTTP/2 passes no other way.
    #[must_use]
    pub fn tunnel_all(self) -> Connector {
        Connector { tunnels_all: true, ..self }
    }

    async fn connect(mut self, destination: Uri) -> Result<Stream, Failed> {
        // Addresses do not come to the resolver, and a proxy resolves names itself.
        self.reach.check(destination.host().unwrap_or_default())?;
        let Some(proxy) = self.proxies.proxy_of(&destination)? else {
            let tcp = ready(&mut self.direct).await?.call(destination).await?;
            return Ok(Stream { io: MaybeHttpsStream::Http(tcp), is_proxied: false });
        };
        if destination.scheme_str() != Some("https") && !self.tunnels_all {
            let io = ready(&mut self.to_proxy).await?.call(proxy.uri().clone()).await;
            return Ok(Stream { io: io.map_err(|error| unreachable(&proxy, error))?, is_proxied: true });
        }
        let mut tunnel = Tunnel::new(proxy.uri().clone(), self.to_proxy);
        if let Some(value) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(value.clone());
        }
        let io = ready(&mut tunnel).await?.call(with_port(destination)?).await;
        Ok(Stream { io: io.map_err(|error| unreachable(&proxy, error.into()))?, is_proxied: false })
    }
}

/// TLS, by ring, to destinations that these authorities vouch for.
pub fn tls(roots: RootCertStore) -> ClientConfig {
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let config = config.with_safe_default_protocol_versions().expect("ring knows TLS 1.2 and 1.3");
    config.with_root_certificates(roots).with_no_client_auth()
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = Failed;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, Failed>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, destination: Uri) -> Self::Future {
        Box::pin(self.clone().connect(destination))
    }
}

async fn ready<S: Service<Uri>>(service: &mut S) -> Result<&mut S, S::Error> {
    std::future::poll_fn(|context| service.poll_ready(context)).await?;
    Ok(service)
}

/// A failure of the proxy is not one of the destination.
#[derive(Debug, thiserror::Error)]
#[error("proxy {proxy}")]
struct Unreachable {
    proxy: String,
    source: Failed,
}

/// Answer 407 of a proxy.
#[derive(Debug, thiserror::Error)]
#[error("the proxy asks for a user and a password, or refuses those that it got")]
pub struct PasswordWanted;

fn unreachable(proxy: &Intercept, source: Failed) -> Failed {
    // The tunnel's own error has no public type.
    let asks = source.to_string().contains("proxy authorization required");
    Box::new(Unreachable { proxy: name(proxy), source: if asks { Box::new(PasswordWanted) } else { source } })
}

/// A tunnel's end is named with its port.
fn with_port(destination: Uri) -> Result<Uri, Failed> {
    if destination.port_u16().is_some() {
        return Ok(destination);
    }
    let port = if destination.scheme_str() == Some("https") { 443 } else { 80 };
    let host = destination.host().ok_or("the destination has no host")?;
    Ok(format!("{}://{host}:{port}", destination.scheme_str().unwrap_or("https")).parse()?)
}

/// Connection to a destination, or to a proxy that learns the destination from each request.
pub struct Stream {
    io: MaybeHttpsStream<Tcp>,
    is_proxied: bool,
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        self.io.connected().proxy(self.is_proxied)
    }
}

impl Read for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl Write for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunnels_end_at_a_port() {
        for (destination, expected) in [
            ("https://hooks.example/x", "https://hooks.example:443/"),
            ("http://farm.example", "http://farm.example:80/"),
            ("http://farm.example:7070", "http://farm.example:7070/"),
            ("https://[2001:db8::1]/x", "https://[2001:db8::1]:443/"),
        ] {
            let uri = with_port(destination.parse().expect("a URL")).expect("it has a host");
            assert_eq!(uri.to_string().trim_end_matches('/'), expected.trim_end_matches('/'));
        }
    }
}
