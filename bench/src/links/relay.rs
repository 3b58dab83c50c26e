//! A relay in front of a server that delays bytes, both ways, however many are under way.

use anyhow::Context;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

/// Size of a chunk, and chunks under way: more than 100 Mbit/s put on a wire of a second.
const CHUNK_BYTES: usize = 16 << 10;
const CHUNKS: usize = 2048;

/// Counts of connections and bytes that have passed.
#[derive(Debug, Default)]
pub struct Passed {
    pub connections: AtomicU64,
    pub to_server_bytes: AtomicU64,
    pub to_agent_bytes: AtomicU64,
    /// Bytes a second to the server, once it is not zero: the link has gone bad.
    pub trickle: AtomicU64,
}

pub struct Relay {
    address: SocketAddr,
    pub passed: Arc<Passed>,
    /// Ends when the relay is dropped.
    _accepting: JoinSet<()>,
}

impl Relay {
    /// Listens at this address for a server on this machine. Each direction takes half of the delay.
    pub async fn start(address: Ipv4Addr, port: u16, delay: Duration) -> anyhow::Result<Relay> {
        let listener = TcpListener::bind((address, 0)).await.with_context(|| format!("listening at {address}"))?;
        let address = listener.local_addr().context("an address")?;
        let passed = Arc::<Passed>::default();
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, port, delay / 2, passed.clone()));
        Ok(Relay { address, passed, _accepting: accepting })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn connections(&self) -> u64 {
        self.passed.connections.load(Ordering::Relaxed)
    }

    pub fn to_server_bytes(&self) -> u64 {
        self.passed.to_server_bytes.load(Ordering::Relaxed)
    }
}

async fn accept(listener: TcpListener, port: u16, delay: Duration, passed: Arc<Passed>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        passed.connections.fetch_add(1, Ordering::Relaxed);
        connections.spawn(relay(client, port, delay, passed.clone()));
    }
}

async fn relay(client: TcpStream, port: u16, delay: Duration, passed: Arc<Passed>) -> io::Result<()> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        ended = carry(from_client, to_server, delay, &passed, Direction::ToServer) => ended,
        ended = carry(from_server, to_client, delay, &passed, Direction::ToAgent) => ended,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToAgent,
}

async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    delay: Duration,
    passed: &Passed,
    direction: Direction,
) -> io::Result<()> {
    let (put, mut take) = mpsc::channel::<(Instant, Vec<u8>)>(CHUNKS);
    let reading = async move {
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            let bytes = from.read(&mut buffer).await?;
            if bytes == 0 || put.send((Instant::now() + delay, buffer[..bytes].to_vec())).await.is_err() {
                return io::Result::Ok(());
            }
        }
    };
    let writing = async {
        while let Some((at, bytes)) = take.recv().await {
            sleep_until(at).await;
            let counter = match direction {
                Direction::ToServer => &passed.to_server_bytes,
                Direction::ToAgent => &passed.to_agent_bytes,
            };
            match passed.trickle.load(Ordering::Relaxed) {
                trickle if trickle > 0 && direction == Direction::ToServer => {
                    let pause = Duration::from_secs(1) / u32::try_from(trickle).unwrap_or(u32::MAX);
                    for byte in bytes.chunks(1) {
                        sleep(pause).await;
                        to.write_all(byte).await?;
                    }
                }
                _ => to.write_all(&bytes).await?,
            }
            counter.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        io::Result::Ok(())
    };
    let (read, written) = tokio::join!(reading, writing);
    read.and(written)
}
