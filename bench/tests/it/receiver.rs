//! A receiver of webhooks: an HTTP server of the test's own, which answers as it is told and checks every signature.

use std::collections::{HashSet, VecDeque};
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use serde_json::Value;
use sha2::Sha256;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use pcfarm_bench::farm::LONG;

/// Of every receiver here.
pub const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo=";

#[derive(Clone, Copy, Debug)]
pub enum Answer {
    Status(u16),
    /// Takes the request and says nothing.
    Silence,
}

/// What was posted.
#[derive(Debug)]
pub struct Post {
    pub id: String,
    pub path: String,
    pub body: Value,
    /// What it is a part of; empty: of nothing that is traced.
    pub trace_parent: String,
}

/// It answers with what is scripted, and then with 204 for ever.
pub struct Receiver {
    pub url: String,
    pub posts: mpsc::UnboundedReceiver<Post>,
    // Ends with this.
    _tasks: JoinSet<()>,
}

/// Of 127.0.0.1, signed by itself: whoever is to trust it is given its file.
pub struct Certificate(rcgen::CertifiedKey<rcgen::KeyPair>);

impl Certificate {
    pub fn new() -> Certificate {
        Certificate::of(&Ipv4Addr::LOCALHOST.to_string())
    }

    pub fn of(name: &str) -> Certificate {
        Certificate(rcgen::generate_simple_self_signed([name.to_owned()]).expect("a certificate"))
    }

    pub fn write(&self, certificate: &Path, key: &Path) {
        std::fs::write(certificate, self.0.cert.pem()).expect("written");
        std::fs::write(key, self.0.signing_key.serialize_pem()).expect("written");
    }

    fn acceptor(&self) -> TlsAcceptor {
        let key = PrivateKeyDer::try_from(self.0.signing_key.serialize_der()).expect("a key");
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring knows them")
            .with_no_client_auth()
            .with_single_cert(vec![self.0.cert.der().clone()], key);
        TlsAcceptor::from(Arc::new(config.expect("they belong together")))
    }
}

type Script = Arc<Mutex<VecDeque<Answer>>>;

impl Receiver {
    pub async fn start(script: &[Answer]) -> Receiver {
        Receiver::with("http", script, None, Ipv4Addr::LOCALHOST.into()).await
    }

    /// On an address that is not only this host's own, with TLS or without.
    pub async fn on(address: IpAddr, certificate: Option<&Certificate>) -> Receiver {
        let scheme = if certificate.is_some() { "https" } else { "http" };
        Receiver::with(scheme, &[], certificate.map(Certificate::acceptor), address).await
    }

    /// The same behind TLS.
    pub async fn encrypted(certificate: &Certificate) -> Receiver {
        Receiver::with("https", &[], Some(certificate.acceptor()), Ipv4Addr::LOCALHOST.into()).await
    }

    async fn with(scheme: &str, script: &[Answer], tls: Option<TlsAcceptor>, address: IpAddr) -> Receiver {
        let listener = TcpListener::bind((address, 0)).await.expect("a port");
        let url = format!("{scheme}://{}", listener.local_addr().expect("a port"));
        let (tell, posts) = mpsc::unbounded_channel();
        let script: Script = Arc::new(Mutex::new(script.iter().copied().collect()));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (script, tell, tls) = (script.clone(), tell.clone(), tls.clone());
                connections.spawn(async move {
                    match tls {
                        None => serve(stream, script, tell).await,
                        Some(tls) => serve(tls.accept(stream).await.expect("TLS"), script, tell).await,
                    }
                });
            }
        });
        Receiver { url, posts, _tasks: tasks }
    }

    /// The next post, which is signed as it should be.
    pub async fn next(&mut self) -> Post {
        timeout(LONG, self.posts.recv()).await.expect("nothing was posted").expect("the receiver runs")
    }

    /// Waits for so many posts, and returns how many different ones there were.
    pub async fn different(&mut self, posts: usize) -> usize {
        let mut ids = HashSet::new();
        for _ in 0..posts {
            ids.insert(self.next().await.id);
        }
        ids.len()
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(stream: S, script: Script, tell: mpsc::UnboundedSender<Post>) {
    let service = service_fn(move |request| answer(request, script.clone(), tell.clone()));
    // A server that is killed breaks its connection.
    drop(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await);
}

async fn answer(
    request: Request<Incoming>,
    script: Script,
    tell: mpsc::UnboundedSender<Post>,
) -> Result<Response<Empty<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.expect("a whole body").to_bytes();
    let header =
        |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let id = header("webhook-id");
    let signed = format!("{id}.{}.{}", header("webhook-timestamp"), String::from_utf8_lossy(&body));
    assert_eq!(header("webhook-signature"), signature(&signed), "{head:?}");
    assert_eq!((head.method.as_str(), header("content-type").as_str()), ("POST", "application/json"));
    let body = serde_json::from_slice(&body).expect("JSON");
    let answer = script.lock().unwrap_or_else(PoisonError::into_inner).pop_front().unwrap_or(Answer::Status(204));
    let (path, trace_parent) = (head.uri.path().to_owned(), header("traceparent"));
    let _ = tell.send(Post { id, path, body, trace_parent }); // the test may be over
    match answer {
        Answer::Status(status) => {
            // Where it leads to must not matter.
            let response = Response::builder().status(status).header("location", "/elsewhere").body(Empty::new());
            Ok(response.expect("a status"))
        }
        Answer::Silence => std::future::pending().await,
    }
}

fn signature(signed: &str) -> String {
    let key = STANDARD.decode(SECRET.trim_start_matches("whsec_")).expect("base64");
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("any length");
    mac.update(signed.as_bytes());
    format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}
