//! One port for gRPC and REST: a connection is told by how it begins, and goes to whoever serves that.
//!
//! In the clear HTTP/2 begins with a preface that is no request of HTTP/1.1. In TLS the client's first message lists what it
//! can speak, before anybody is asked for a certificate. Agents and programs of gRPC speak HTTP/2 alone; who can speak HTTP/1.1
//! is a browser or a script, and is not asked for one.

use super::counted::Counted;
use super::{Connection, Connections, Incoming, PREFACE_DEADLINE, Protocol, Socket, watched};
use crate::authority::Tls;
use rustls::server::Acceptor;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::LazyConfigAcceptor;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tracing::debug;

/// Of HTTP/2's preface, `PRI * HTTP/2.0`: no method of REST begins so.
const HTTP2_BEGINS: [u8; 3] = *b"PRI";

/// Less than that of a first message has come.
const AGAIN: Duration = Duration::from_millis(5);

/// Told apart, and not yet taken by whoever serves them.
const WAITING: usize = 64;

type Told = mpsc::Sender<io::Result<Connection>>;

/// The connections of a port that speak HTTP/2, those that speak HTTP/1.1, and what tells them apart, until it is to stop.
pub fn apart(
    incoming: Incoming,
    stopping: CancellationToken,
) -> (Connections, Connections, impl Future<Output = anyhow::Result<()>>) {
    let (grpc, of_grpc) = mpsc::channel(WAITING);
    let (rest, of_rest) = mpsc::channel(WAITING);
    let telling = async move {
        tell_all(incoming, (grpc, rest), stopping).await;
        Ok(())
    };
    (Box::pin(ReceiverStream::new(of_grpc)), Box::pin(ReceiverStream::new(of_rest)), telling)
}

async fn tell_all(mut incoming: Incoming, (grpc, rest): (Told, Told), stopping: CancellationToken) {
    // As many as there may be connections.
    let mut beginning = JoinSet::new();
    loop {
        let connection = tokio::select! {
            () = stopping.cancelled() => return,
            Some(_) = beginning.join_next() => continue,
            Some(Ok(connection)) = incoming.next() => connection,
        };
        let (tls, grpc, rest) = (incoming.tls.clone(), grpc.clone(), rest.clone());
        beginning.spawn(async move {
            let address = connection.info.address;
            let told = timeout(PREFACE_DEADLINE, tell(connection, tls)).await;
            let sent = match told.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                Ok((Protocol::Http2, connection)) => grpc.send(Ok(connection)).await,
                Ok((Protocol::Http1, connection)) => rest.send(Ok(connection)).await,
                Err(error) => {
                    debug!(%address, %error, "a connection did not begin");
                    Ok(())
                }
            };
            // Nobody takes it any more: the server stops.
            drop(sent);
        });
    }
}

async fn tell(connection: Connection, tls: Option<Arc<Tls>>) -> io::Result<(Protocol, Connection)> {
    let Socket::Plain(stream) = connection.socket else { unreachable!("nothing was agreed on") };
    let (protocol, socket) = match tls {
        None => (begins(&stream).await?, Socket::Plain(stream)),
        Some(tls) => {
            let start = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
            let only_others = start.client_hello().alpn().is_some_and(|mut known| known.all(|one| one != b"http/1.1"));
            let protocol = if only_others { Protocol::Http2 } else { Protocol::Http1 };
            (protocol, Socket::Agreeing(Box::new(start.into_stream(tls.config(protocol)))))
        }
    };
    let (preface, silence) = watched(Some(protocol), &connection.info.signs);
    Ok((protocol, Connection { socket, preface, silence, ..connection }))
}

async fn begins(stream: &Counted) -> io::Result<Protocol> {
    let mut first = HTTP2_BEGINS;
    loop {
        match stream.peek(&mut first).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            seen if first[..seen] != HTTP2_BEGINS[..seen] => return Ok(Protocol::Http1),
            seen if seen == first.len() => return Ok(Protocol::Http2),
            _ => sleep(AGAIN).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Limits, listen};
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    const LIMITS: Limits = Limits { total: 8, per_address: 8 };

    #[tokio::test]
    async fn who_begins_with_http2_is_told_from_who_does_not() {
        let listener = listen("127.0.0.1:0".parse().expect("an address")).expect("a free port");
        let address = listener.local_addr().expect("bound");
        let stopping = CancellationToken::new();
        let (mut grpc, mut rest, telling) = apart(Incoming::either(listener, LIMITS, None), stopping.clone());
        let telling = JoinSet::from_iter([telling]);
        let mut silent = TcpStream::connect(address).await.expect("the backlog takes it");
        for (first, second, protocol) in [
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "", Protocol::Http2),
            ("P", "RI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Protocol::Http2),
            ("P", "OST / HTTP/1.1\r\n\r\n", Protocol::Http1),
            ("GET / HTTP/1.1\r\n\r\n", "", Protocol::Http1),
        ] {
            let mut client = TcpStream::connect(address).await.expect("the backlog takes it");
            client.set_nodelay(true).expect("it is open");
            client.write_all(first.as_bytes()).await.expect("connected");
            tokio::task::yield_now().await;
            client.write_all(second.as_bytes()).await.expect("connected");
            let from = if protocol == Protocol::Http2 { &mut grpc } else { &mut rest };
            let mut connection = from.next().await.expect("it is served").expect("accepted");
            let mut bytes = vec![0; first.len() + second.len()];
            connection.read_exact(&mut bytes).await.expect("connected");
            assert_eq!(bytes, [first, second].concat().as_bytes(), "nothing of it is lost");
        }
        stopping.cancel();
        telling.join_all().await.into_iter().collect::<anyhow::Result<()>>().expect("stopped");
        assert!(grpc.next().await.is_none() && rest.next().await.is_none());
        assert_eq!(silent.read(&mut [0]).await.unwrap_or(0), 0, "and who has said nothing is let go");
    }
}
