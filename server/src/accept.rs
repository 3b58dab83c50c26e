//! Accepting connections: how many there may be, in all and from one address, and what is closed at once; which of two
//! protocols of a port they speak: [`mod@apart`]; which of them have ended without a word: `silence`.
//!
//! Never busy: when the process is out of file descriptors it waits, and those who knock wait in the backlog.

mod apart;
mod counted;
mod silence;

pub use apart::apart;
pub use silence::{PING_INTERVAL, PONG_WAIT, Signs};

use crate::access::Peer;
use crate::authority::{self, Tls};
use crate::session::progress::Progress;
use counted::Counted;
use silence::{SILENCE_LIMIT, Silence};
use socket2::SockRef;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::{Instant, Sleep, sleep};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::Stream;
use tonic::transport::server::Connected;
use tracing::{debug, warn};
use uuid::Uuid;

/// Thousands of agents come back at once when a server starts again; whoever finds the backlog full tries again only
/// after a second or more. The system may allow less.
const BACKLOG: u32 = 4096;

/// After an error that the next connection would meet, too: no descriptor is left, or no memory.
const PAUSE: Duration = Duration::from_millis(250);

/// HTTP/2's preface must be here by then, and TLS agreed on before; from there on [`silence`] watches.
const PREFACE_DEADLINE: Duration = Duration::from_secs(10);
const PREFACE_BYTES: usize = 24;

/// Bytes that the kernel may hold unsent for one connection. With more, pongs and acknowledgements wait behind them on a slow link.
#[cfg(target_os = "linux")]
const UNSENT_BYTES: u32 = 256 << 10;

/// A flood of connections is not to become a flood of log lines.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// What whoever serves them takes connections from.
pub type Connections = Pin<Box<dyn Stream<Item = io::Result<Connection>> + Send>>;

/// What a connection speaks: gRPC is HTTP/2, REST is HTTP/1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    Http2,
}

/// Begins to listen.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A server that starts again finds its port free.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// How many connections there may be at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub total: usize,
    pub per_address: usize,
}

/// Which limit a connection would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Full {
    Total,
    Address,
}

/// Who is connected, by address.
#[derive(Debug, Default)]
struct Taken {
    total: usize,
    by_address: HashMap<IpAddr, usize>,
}

impl Taken {
    fn take(&mut self, address: IpAddr, limits: Limits) -> Result<(), Full> {
        if self.total >= limits.total {
            return Err(Full::Total);
        }
        let here = self.by_address.entry(address).or_default();
        if *here >= limits.per_address {
            return Err(Full::Address);
        }
        *here += 1;
        self.total += 1;
        Ok(())
    }

    fn give_back(&mut self, address: IpAddr) {
        self.total -= 1;
        if let Some(here) = self.by_address.get_mut(&address) {
            *here -= 1;
            if *here == 0 {
                self.by_address.remove(&address);
            }
        }
    }
}

/// A connection's place among those that there may be, until it is dropped.
struct Place {
    taken: Arc<Mutex<Taken>>,
    address: IpAddr,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).give_back(self.address);
    }
}

/// Says now and then how often something happened.
#[derive(Debug, Default)]
struct Rarely {
    said: Option<Instant>,
    times: u64,
}

impl Rarely {
    /// How often since it was last said, if it is to be said now.
    fn again(&mut self) -> Option<u64> {
        self.times += 1;
        if self.said.is_some_and(|said| said.elapsed() < LOG_EVERY) {
            return None;
        }
        self.said = Some(Instant::now());
        Some(std::mem::take(&mut self.times))
    }
}

/// The connections that come, within the limits.
pub struct Incoming {
    listener: TcpListener,
    limits: Limits,
    /// None: it is told by how each begins.
    protocol: Option<Protocol>,
    /// None: everything is said in the clear.
    tls: Option<Arc<Tls>>,
    taken: Arc<Mutex<Taken>>,
    pause: Option<Pin<Box<Sleep>>>,
    refusals: Rarely,
    errors: Rarely,
}

impl Incoming {
    /// Those of a port where one of them is spoken.
    pub fn of(protocol: Protocol, listener: TcpListener, limits: Limits, tls: Option<Arc<Tls>>) -> Incoming {
        Incoming { protocol: Some(protocol), ..Incoming::either(listener, limits, tls) }
    }

    /// Those of a port where both are, to be told [`apart`].
    pub fn either(listener: TcpListener, limits: Limits, tls: Option<Arc<Tls>>) -> Incoming {
        Incoming {
            listener,
            limits,
            protocol: None,
            tls,
            taken: Arc::default(),
            pause: None,
            refusals: Rarely::default(),
            errors: Rarely::default(),
        }
    }

    /// The connection with its place, or nothing when there is none for it: then it is closed.
    fn admit(&mut self, stream: TcpStream, address: IpAddr) -> Option<Connection> {
        let outcome = self.taken.lock().unwrap_or_else(PoisonError::into_inner).take(address, self.limits);
        if let Err(full) = outcome {
            if let Some(refused) = self.refusals.again() {
                let setting = match full {
                    Full::Total => "connections",
                    Full::Address => "connections_per_address",
                };
                warn!(%address, refused, setting, "too many connections: refused");
            }
            return None;
        }
        // A stream that does not take it is about to fail anyway.
        drop(stream.set_nodelay(true));
        #[cfg(target_os = "linux")]
        drop(SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_BYTES));
        let place = Place { taken: self.taken.clone(), address };
        let info = ConnectInfo { address, proven: Arc::default(), progress: Arc::default(), signs: Signs::default() };
        let stream = Counted::new(stream, info.progress.clone());
        let socket = match (&self.tls, self.protocol) {
            (None, _) | (_, None) => Socket::Plain(stream),
            (Some(tls), Some(protocol)) => {
                Socket::Agreeing(Box::new(TlsAcceptor::from(tls.config(protocol)).accept(stream)))
            }
        };
        let (preface, silence) = watched(self.protocol, &info.signs);
        Some(Connection { socket, info, preface, silence, _place: place })
    }

    fn failed(&mut self, error: &io::Error) {
        // What is only that connection's end is no reason to wait.
        if matches!(
            error.kind(),
            io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
        ) {
            return;
        }
        if let Some(times) = self.errors.again() {
            warn!(%error, times, "no connection can be accepted: waiting a little");
        }
        self.pause = Some(Box::pin(sleep(PAUSE)));
    }
}

impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            match ready!(self.listener.poll_accept(context)) {
                Ok((stream, peer)) => {
                    if let Some(connection) = self.admit(stream, peer.ip().to_canonical()) {
                        return Poll::Ready(Some(Ok(connection)));
                    }
                }
                Err(error) => self.failed(&error),
            }
        }
    }
}

/// Until HTTP/2 has begun: somebody who connects and says nothing would keep a place for ever.
struct Preface {
    missing: usize,
    deadline: Pin<Box<Sleep>>,
}

impl Preface {
    /// HTTP/1.1's requests are timed by whoever serves them.
    fn of(protocol: Protocol) -> Option<Preface> {
        let expected = || Preface { missing: PREFACE_BYTES, deadline: Box::pin(sleep(PREFACE_DEADLINE)) };
        (protocol == Protocol::Http2).then(expected)
    }
}

/// Watches over a connection of HTTP/2 that does not go on. Requests of HTTP/1.1 are timed where they are served.
fn watched(protocol: Option<Protocol>, signs: &Signs) -> (Option<Preface>, Option<Silence>) {
    let silence = || Silence::new(SILENCE_LIMIT, signs.clone());
    (protocol.and_then(Preface::of), (protocol == Some(Protocol::Http2)).then(silence))
}

/// From where a connection comes, whose certificate was shown on it, once TLS is agreed on, and when its bytes come.
#[derive(Clone, Debug)]
pub struct ConnectInfo {
    address: IpAddr,
    proven: Arc<OnceLock<(Uuid, SystemTime)>>,
    progress: Arc<Progress>,
    signs: Signs,
}

impl ConnectInfo {
    pub fn peer(&self) -> Peer {
        Peer { address: Some(self.address), workstation: self.proven.get().copied() }
    }

    pub fn progress(&self) -> Arc<Progress> {
        self.progress.clone()
    }

    /// Signs of life on the connection.
    pub fn signs(&self) -> Signs {
        self.signs.clone()
    }
}

enum Socket {
    Plain(Counted),
    /// In the connection's own task: whoever is slow keeps nobody else waiting.
    Agreeing(Box<tokio_rustls::Accept<Counted>>),
    Secret(Box<TlsStream<Counted>>),
    /// They did not agree.
    Over,
}

/// A connection that has its place.
pub struct Connection {
    socket: Socket,
    info: ConnectInfo,
    preface: Option<Preface>,
    silence: Option<Silence>,
    _place: Place,
}

impl Connected for Connection {
    type ConnectInfo = ConnectInfo;

    fn connect_info(&self) -> ConnectInfo {
        self.info.clone()
    }
}

impl Connection {
    /// Goes on with agreeing on TLS, if that is not done.
    fn poll_agreed(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.socket {
            Socket::Plain(_) | Socket::Secret(_) => Poll::Ready(Ok(())),
            Socket::Over => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
            Socket::Agreeing(agreeing) => match ready!(Pin::new(agreeing).poll(context)) {
                Ok(stream) => {
                    // Checked by now: signed by the farm's authority, for clients, and within its time.
                    let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                    if let Some(named) = shown.and_then(authority::named_in) {
                        // Agreed on once.
                        let _ = self.info.proven.set(named);
                    }
                    self.socket = Socket::Secret(Box::new(stream));
                    Poll::Ready(Ok(()))
                }
                Err(error) => {
                    debug!(address = %self.info.address, %error, "no TLS was agreed on");
                    self.socket = Socket::Over;
                    Poll::Ready(Err(error))
                }
            },
        }
    }

    fn poll_read_some(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_agreed(context))?;
        match &mut self.socket {
            Socket::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Socket::Secret(stream) => Pin::new(stream).poll_read(context, buffer),
            Socket::Agreeing(_) | Socket::Over => unreachable!("agreed on just now"),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = self.poll_read_some(context, buffer);
        if let Some(silence) = &mut self.silence {
            if buffer.filled().len() > before {
                silence.received();
            } else if polled.is_pending() && silence.is_over(context) {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "no byte has moved for too long")));
            }
        }
        let Some(preface) = &mut self.preface else { return polled };
        preface.missing = preface.missing.saturating_sub(buffer.filled().len() - before);
        if preface.missing == 0 {
            self.preface = None;
        } else if polled.is_pending() && preface.deadline.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "HTTP/2 has not begun in time")));
        }
        polled
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_agreed(context))?;
        let polled = match &mut self.socket {
            Socket::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Socket::Secret(stream) => Pin::new(stream).poll_write(context, bytes),
            Socket::Agreeing(_) | Socket::Over => unreachable!("agreed on just now"),
        };
        self.silence.iter_mut().for_each(|silence| silence.wrote(polled.is_pending()));
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_agreed(context))?;
        let polled = match &mut self.socket {
            Socket::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Socket::Secret(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Socket::Agreeing(_) | Socket::Over => unreachable!("agreed on just now"),
        };
        self.silence.iter_mut().for_each(|silence| silence.wrote(polled.is_pending()));
        polled
    }

    fn is_write_vectored(&self) -> bool {
        true // so are both
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.socket {
            Socket::Plain(stream) => Pin::new(stream).poll_flush(context),
            Socket::Secret(stream) => Pin::new(stream).poll_flush(context),
            // Nothing was written.
            Socket::Agreeing(_) | Socket::Over => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.socket {
            Socket::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Socket::Secret(stream) => Pin::new(stream).poll_shutdown(context),
            Socket::Agreeing(_) | Socket::Over => Poll::Ready(Ok(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_stream::StreamExt;

    const LIMITS: Limits = Limits { total: 3, per_address: 2 };

    #[test]
    fn places_are_counted_in_all_and_by_address() {
        let mut taken = Taken::default();
        let [a, b] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().expect("an address"));
        assert_eq!(taken.take(a, LIMITS), Ok(()));
        assert_eq!(taken.take(a, LIMITS), Ok(()));
        assert_eq!(taken.take(a, LIMITS), Err(Full::Address));
        assert_eq!(taken.take(b, LIMITS), Ok(()));
        assert_eq!(taken.take(b, LIMITS), Err(Full::Total));
        taken.give_back(a);
        assert_eq!(taken.take(b, LIMITS), Ok(()));
        (0..2).for_each(|_| taken.give_back(b));
        taken.give_back(a);
        assert_eq!((taken.total, taken.by_address.len()), (0, 0), "nothing is kept of those who are gone");
    }

    #[test]
    fn floods_are_told_rarely() {
        let mut rarely = Rarely::default();
        assert_eq!(rarely.again(), Some(1));
        assert_eq!([rarely.again(), rarely.again()], [None, None]);
        rarely.said = rarely.said.and_then(|said| said.checked_sub(LOG_EVERY));
        assert_eq!(rarely.again(), Some(3));
    }

    fn incoming(limits: Limits) -> (Incoming, std::net::SocketAddr) {
        let listener = listen("127.0.0.1:0".parse().expect("an address")).expect("a free port");
        let address = listener.local_addr().expect("bound");
        (Incoming::of(Protocol::Http2, listener, limits, None), address)
    }

    #[tokio::test]
    async fn one_too_many_is_closed_and_makes_room_for_nobody() {
        let (mut incoming, address) = incoming(LIMITS);
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(TcpStream::connect(address).await.expect("the backlog takes it"));
        }
        let first = incoming.next().await.expect("a connection").expect("accepted");
        let _second = incoming.next().await.expect("a connection").expect("accepted");
        // Polling on meets the third, which is closed.
        let mut byte = [0];
        tokio::select! {
            _ = incoming.next() => panic!("there was no place left"),
            read = clients[2].read(&mut byte) => assert!(!matches!(read, Ok(1..)), "nobody answers"),
        }
        drop(first);
        let mut fourth = TcpStream::connect(address).await.expect("the backlog takes it");
        let mut accepted = incoming.next().await.expect("a connection").expect("accepted");
        fourth.write_all(b"x").await.expect("connected");
        assert_eq!(accepted.read(&mut byte).await.expect("connected"), 1);
    }

    #[tokio::test]
    async fn an_accept_loop_without_descriptors_waits() {
        let (mut incoming, address) = incoming(LIMITS);
        incoming.failed(&io::Error::from_raw_os_error(24)); // EMFILE
        assert!(incoming.pause.is_some());
        let _client = TcpStream::connect(address).await.expect("the backlog takes it");
        assert!(incoming.next().await.expect("a connection").is_ok(), "and goes on");
        incoming.failed(&io::Error::from(io::ErrorKind::ConnectionAborted));
        assert!(incoming.pause.is_none(), "one connection's end is no reason to wait");
    }

    #[tokio::test]
    async fn who_says_nothing_is_let_go() {
        let (mut incoming, address) = incoming(LIMITS);
        let mut client = TcpStream::connect(address).await.expect("the backlog takes it");
        let mut accepted = incoming.next().await.expect("a connection").expect("accepted");
        accepted.preface.as_mut().expect("not spoken yet").deadline = Box::pin(sleep(Duration::from_millis(20)));
        client.write_all(b"PRI").await.expect("connected");
        let mut bytes = Vec::new();
        let error = accepted.read_to_end(&mut bytes).await.expect_err("too slow");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
