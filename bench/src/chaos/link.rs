//! A link between two parties that can be cut, silenced, slowed, or made to swallow a reply: a proxy for TCP, whose
//! target may be a Unix socket.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// As much as is under way in one direction.
const CHUNK: usize = 64 << 10;

/// Where a link leads to.
#[derive(Clone, Debug)]
pub enum Target {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// What becomes of bytes. Connections stay open, and their ends do not learn of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weather {
    /// Nothing gets through to the target: it is kept back until the weather is better.
    pub silent_up: bool,
    /// Nothing gets through from the target.
    pub silent_down: bool,
    /// What is read waits this long.
    pub delay: Duration,
    /// Who connects is turned away.
    pub closed: bool,
}

/// A listening proxy; it ends with this value.
#[derive(Debug)]
pub struct Link {
    pub address: SocketAddr,
    weather: watch::Sender<Weather>,
    /// Ends the connections that there are.
    cut: watch::Sender<CancellationToken>,
    /// Replies that are still to be swallowed.
    hungry: Arc<AtomicU32>,
    /// Connections that there are.
    carried: Arc<AtomicUsize>,
    _task: JoinSet<()>,
}

impl Link {
    /// A proxy on a free port of the loopback address.
    pub async fn to(target: Target) -> io::Result<Link> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (weather, weathers) = watch::channel(Weather::default());
        let (cut, cuts) = watch::channel(CancellationToken::new());
        let hungry = Arc::<AtomicU32>::default();
        let carried = Arc::<AtomicUsize>::default();
        let mut task = JoinSet::new();
        task.spawn(accept(listener, target, weathers, cuts, hungry.clone(), carried.clone()));
        Ok(Link { address, weather, cut, hungry, carried, _task: task })
    }

    pub fn weather(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }

    /// Ends every connection at once, and says how many there were; new ones are welcome.
    pub fn cut(&self) -> usize {
        let old = self.cut.send_replace(CancellationToken::new());
        let count = self.carried.load(Ordering::Relaxed);
        old.cancel();
        count
    }

    /// Swallows the replies to that many statements: PostgreSQL has committed them, and the client never hears of it,
    /// since its connection ends.
    pub fn swallow_replies(&self, count: u32) {
        self.hungry.fetch_add(count, Ordering::Relaxed);
    }

    /// Swallows no more. Returns how many it was still to swallow.
    pub fn stop_swallowing(&self) -> u32 {
        self.hungry.swap(0, Ordering::Relaxed)
    }
}

async fn accept(
    listener: TcpListener,
    target: Target,
    weathers: watch::Receiver<Weather>,
    cuts: watch::Receiver<CancellationToken>,
    hungry: Arc<AtomicU32>,
    carried: Arc<AtomicUsize>,
) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let Ok((client, _)) = accepted else {
            tokio::time::sleep(Duration::from_millis(50)).await; // no descriptors
            continue;
        };
        if weathers.borrow().closed {
            continue;
        }
        let (target, weathers, cut) = (target.clone(), weathers.clone(), cuts.borrow().clone());
        let (hungry, carried) = (hungry.clone(), carried.clone());
        connections.spawn(async move {
            carried.fetch_add(1, Ordering::Relaxed);
            drop(cut.run_until_cancelled(carry(client, target, weathers, hungry)).await);
            carried.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

/// Carries bytes until one side ends, then the other one ends, too.
async fn carry(
    client: TcpStream,
    target: Target,
    weathers: watch::Receiver<Weather>,
    hungry: Arc<AtomicU32>,
) -> io::Result<()> {
    client.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    match target {
        Target::Tcp(address) => {
            let target = TcpStream::connect(address).await?;
            target.set_nodelay(true)?;
            let (from_target, to_target) = target.into_split();
            both(from_client, to_target, from_target, to_client, weathers, hungry).await
        }
        Target::Unix(path) => {
            let (from_target, to_target) = UnixStream::connect(path).await?.into_split();
            both(from_client, to_target, from_target, to_client, weathers, hungry).await
        }
    }
}

async fn both(
    from_client: impl AsyncRead + Unpin,
    to_target: impl AsyncWrite + Unpin,
    from_target: impl AsyncRead + Unpin,
    to_client: impl AsyncWrite + Unpin,
    weathers: watch::Receiver<Weather>,
    hungry: Arc<AtomicU32>,
) -> io::Result<()> {
    let up = pump(from_client, to_target, weathers.clone(), |weather| weather.silent_up, |_| false);
    let down = pump(
        from_target,
        to_client,
        weathers,
        |weather| weather.silent_down,
        |chunk| {
            is_reply_to_a_statement(chunk)
                && hungry.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
        },
    );
    // Whoever ends first ends it for both.
    tokio::select! {
        ended = up => ended,
        ended = down => ended,
    }
}

/// Ends when its source does, or at a chunk that is to be swallowed.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut weathers: watch::Receiver<Weather>,
    is_silent: impl Fn(&Weather) -> bool,
    swallows: impl Fn(&[u8]) -> bool,
) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let read = from.read(&mut chunk).await?;
        if read == 0 {
            return Ok(());
        }
        let weather = *weathers.borrow();
        if !weather.delay.is_zero() {
            tokio::time::sleep(weather.delay).await;
        }
        if weathers.wait_for(|weather| !is_silent(weather)).await.is_err() || swallows(&chunk[..read]) {
            return Ok(());
        }
        to.write_all(&chunk[..read]).await?;
    }
}

/// The end of PostgreSQL's answer to a statement that has done something, outside a transaction: committed.
fn is_reply_to_a_statement(chunk: &[u8]) -> bool {
    const READY: &[u8] = b"Z\0\0\0\x05I";
    let Some(before) = chunk.strip_suffix(READY) else { return false };
    // CommandComplete is the last message before it: C, length, tag, NUL.
    ["INSERT 0 ", "SELECT ", "UPDATE ", "COMMIT"].iter().any(|tag| {
        let longest = before.len().min(40);
        let end = &before[before.len() - longest..];
        end.windows(tag.len()).any(|window| window == tag.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::timeout;

    /// A server that says what it hears, for as long as the tasks live.
    async fn echo(tasks: &mut JoinSet<()>) -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let address = listener.local_addr().expect("its address");
        tasks.spawn(async move {
            let mut clients = JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                clients.spawn(async move {
                    let (mut from, mut to) = client.split();
                    tokio::io::copy(&mut from, &mut to).await
                });
            }
        });
        address
    }

    async fn says(stream: &mut TcpStream, text: &[u8]) -> io::Result<Vec<u8>> {
        stream.write_all(text).await?;
        let mut answer = vec![0; text.len()];
        stream.read_exact(&mut answer).await?;
        Ok(answer)
    }

    #[tokio::test]
    async fn weather_holds_back_and_a_cut_ends() {
        let mut tasks = JoinSet::new();
        let link = Link::to(Target::Tcp(echo(&mut tasks).await)).await.expect("a link");
        let mut stream = TcpStream::connect(link.address).await.expect("connected");
        assert_eq!(says(&mut stream, b"one").await.expect("an answer"), b"one");
        link.weather(Weather { silent_down: true, ..Weather::default() });
        let silence = timeout(Duration::from_millis(100), says(&mut stream, b"two")).await;
        assert!(silence.is_err(), "nothing comes through");
        link.weather(Weather::default());
        let mut late = [0; 3];
        stream.read_exact(&mut late).await.expect("what was kept back");
        assert_eq!(&late, b"two");
        link.cut();
        assert!(says(&mut stream, b"three").await.is_err(), "the connection is gone");
        let mut stream = TcpStream::connect(link.address).await.expect("a new one is welcome");
        assert_eq!(says(&mut stream, b"four").await.expect("an answer"), b"four");
        link.weather(Weather { closed: true, ..Weather::default() });
        let mut stream = TcpStream::connect(link.address).await.expect("accepted, and dropped");
        assert!(says(&mut stream, b"five").await.is_err());
    }

    #[test]
    fn replies_are_told_from_the_rest() {
        assert!(is_reply_to_a_statement(b"2\0\0\0\x04C\0\0\0\x0fINSERT 0 1\0Z\0\0\0\x05I"));
        assert!(is_reply_to_a_statement(b"C\0\0\0\x0bCOMMIT\0Z\0\0\0\x05I"));
        assert!(is_reply_to_a_statement(b"D....C\0\0\0\x0dSELECT 2\0Z\0\0\0\x05I"));
        assert!(!is_reply_to_a_statement(b"C\0\0\0\x0dSELECT 2\0Z\0\0\0\x05T"), "in a transaction");
        assert!(!is_reply_to_a_statement(b"C\0\0\0\x0aBEGIN\0Z\0\0\0\x05I"));
        assert!(!is_reply_to_a_statement(b"SELECT 2\0"));
    }
}
