//! A server in the place of the real one that presents a copy of its certificate, and has no key to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::network::{Authority, Pair, settings_at};

const TLS_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

#[derive(Debug)]
struct Presents(Arc<CertifiedKey>);

impl ResolvesServerCert for Presents {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}

/// Presents the certificate of one pair and signs by the key of another. Ends with the test's runtime.
struct Impostor {
    port: u16,
    handshakes: Arc<AtomicUsize>,
    _task: JoinSet<()>,
}

impl Impostor {
    async fn start(certificate: &Pair, key: &Pair) -> Impostor {
        let provider = default_provider();
        let chain = vec![CertificateDer::from_pem_slice(certificate.certificate.as_bytes()).expect("PEM")];
        let key = PrivateKeyDer::from_pem_slice(key.key.as_bytes()).expect("PEM");
        let key = provider.key_provider.load_private_key(key).expect("a key");
        let config = ServerConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .expect("ring knows them")
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Presents(Arc::new(CertifiedKey::new(chain, key)))));
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("its number").port();
        let handshakes = Arc::new(AtomicUsize::new(0));
        let (counted, mut task) = (handshakes.clone(), JoinSet::new());
        task.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                if is_trusted(stream, &acceptor).await {
                    counted.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        Impostor { port, handshakes, _task: task }
    }

    /// Error of a connection to it, with its causes.
    async fn error(&self, home: &tempfile::TempDir, words: &str) -> String {
        let url = format!("host=localhost hostaddr=127.0.0.1 port={} dbname=d user=u password=hush {words}", self.port);
        let settings = settings_at(home.path(), &url, &[]).expect("read");
        let error = settings.target.connect().await.map(drop).expect_err("it is no PostgreSQL");
        crate::tls::text(&error)
    }
}

/// True once the client has sent something through TLS. PostgreSQL's clients without TLS are turned away.
async fn is_trusted(mut stream: TcpStream, acceptor: &TlsAcceptor) -> bool {
    let mut request = [0; 8];
    if stream.read_exact(&mut request).await.is_err() || request != TLS_REQUEST {
        return false;
    }
    stream.write_all(b"S").await.expect("answered");
    match acceptor.accept(stream).await {
        Ok(mut encrypted) => encrypted.read_u8().await.is_ok(),
        Err(_) => false,
    }
}

#[tokio::test]
async fn copied_certificate_is_refused_in_every_mode() {
    let authority = Authority::new("servers");
    let another = authority.issue("another", &["another"], false);
    for real in [authority.issue("localhost", &["localhost"], false), authority.issue_version_1("localhost")] {
        let copied = Impostor::start(&real, &another).await;
        let honest = Impostor::start(&real, &real).await;
        for version in ["TLSv1.2", "TLSv1.3"] {
            for mode in ["prefer", "require", "require channel_binding=require", "verify-ca", "verify-full"] {
                let home = tempfile::tempdir().expect("a home");
                let words =
                    format!("sslmode={mode} ssl_min_protocol_version={version} ssl_max_protocol_version={version}");
                let words = if mode.starts_with("verify") {
                    let file = home.path().join("root.crt");
                    std::fs::write(&file, &authority.certificate).expect("written");
                    format!("{words} sslrootcert={}", file.display())
                } else {
                    words
                };
                let error = copied.error(&home, &words).await;
                assert!(error.contains("does not fit its certificate"), "{words}: {error}");
                let before = honest.handshakes.load(Ordering::SeqCst);
                honest.error(&home, &words).await;
                assert_eq!(honest.handshakes.load(Ordering::SeqCst), before + 1, "{words}: the key is the real one");
            }
        }
        assert_eq!(copied.handshakes.load(Ordering::SeqCst), 0, "something was sent to a server without the key");
    }
}
