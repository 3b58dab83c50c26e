//! The connector that tokio-postgres calls, and its stream.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use sha2::{Digest, Sha256, Sha384, Sha512};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream as RustlsStream;

use super::{TlsFailure, TlsFileError, with_cause};

/// Makes TLS connections. One without a configuration fails at the handshake, with the reason.
#[derive(Clone)]
pub struct Connector {
    config: Result<Arc<ClientConfig>, String>,
}

impl Connector {
    /// For ways to connect that need no TLS.
    pub fn off() -> Connector {
        Connector { config: Err("TLS is off".to_owned()) }
    }

    pub(super) fn new(config: Result<ClientConfig, TlsFileError>) -> Connector {
        Connector { config: config.map(Arc::new).map_err(|error| with_cause(&error)) }
    }
}

impl MakeTlsConnect<Socket> for Connector {
    type Stream = Stream;
    type TlsConnect = Handshake;
    type Error = TlsFailure;

    fn make_tls_connect(&mut self, host: &str) -> Result<Handshake, TlsFailure> {
        // Unix sockets have no name; they never come to a handshake.
        Ok(Handshake { config: self.config.clone(), host: host.to_owned() })
    }
}

pub struct Handshake {
    config: Result<Arc<ClientConfig>, String>,
    host: String,
}

impl TlsConnect<Socket> for Handshake {
    type Stream = Stream;
    type Error = TlsFailure;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, TlsFailure>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            let Handshake { config, host } = self;
            let config = config.map_err(TlsFailure::lasting)?;
            let name = ServerName::try_from(host.clone())
                .map_err(|_| TlsFailure::lasting(format!("{host:?} is not a host name that a certificate can have")))?;
            match TlsConnector::from(config).connect(name, socket).await {
                Ok(stream) => Ok(Stream { stream, host }),
                Err(error) => Err(TlsFailure::handshake(&error, &host)),
            }
        })
    }
}

/// An encrypted connection to the database.
pub struct Stream {
    stream: RustlsStream<Socket>,
    host: String,
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        read.map_err(|error| TlsFailure::in_use(error, &self.host))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl TlsStream for Stream {
    fn channel_binding(&self) -> ChannelBinding {
        let (_, session) = self.stream.get_ref();
        let certificate = session.peer_certificates().and_then(|chain| chain.first());
        match certificate.and_then(|certificate| end_point(certificate)) {
            Some(hash) => ChannelBinding::tls_server_end_point(hash),
            None => ChannelBinding::none(),
        }
    }
}

/// RFC 5929's `tls-server-end-point`: the certificate's hash, by the hash function of its signature, and SHA-256 in place of
/// older ones. Undefined for signatures that have no single one, such as Ed25519.
fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    Some(match parsed.signature_algorithm.algorithm.to_id_string().as_str() {
        // RSA with MD5, SHA-1 and SHA-256; ECDSA with SHA-1 and SHA-256.
        "1.2.840.113549.1.1.4"
        | "1.2.840.113549.1.1.5"
        | "1.2.840.113549.1.1.11"
        | "1.2.840.10045.4.1"
        | "1.2.840.10045.4.3.2" => Sha256::digest(certificate).to_vec(),
        "1.2.840.113549.1.1.12" | "1.2.840.10045.4.3.3" => Sha384::digest(certificate).to_vec(),
        "1.2.840.113549.1.1.13" | "1.2.840.10045.4.3.4" => Sha512::digest(certificate).to_vec(),
        _ => return None,
    })
}
