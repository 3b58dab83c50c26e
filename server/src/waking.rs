//! Wakes workstations that sleep: sends the packets that the database wants to be sent.
//!
//! Owns the socket. Who is woken, when, and by which server, the database decides: a try is claimed before it is made, so it is made
//! once at most. A packet that is lost is sent again with the next try; that a workstation is back nobody but its agent says.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use pcfarm_sql::fleet::{self, Wake};
use tokio::net::{UdpSocket, lookup_host};
use tokio::time::{Instant, MissedTickBehavior, timeout};
use tracing::{info, warn};

use crate::farm::Farm;

/// How soon somebody who asks has it done.
const LOOK: Duration = Duration::from_secs(1);

/// How often it is looked whether there is work for those that sleep: they take minutes to begin anyway.
const LOOK_FOR_WORK: Duration = Duration::from_secs(10);

/// "Discard": what most network cards and whoever relays for them listen to, if they look at the port at all.
const PORT: u16 = 9;

/// A name that is not found by then is not found.
const NAME_WAIT: Duration = Duration::from_secs(5);

/// Runs until the server stops.
pub async fn run(farm: Arc<Farm>) {
    let mut tick = tokio::time::interval(LOOK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut looked_for_work: Option<Instant> = None;
    loop {
        tokio::select! {
            () = farm.stopping.cancelled() => return,
            _ = tick.tick() => {}
        }
        let for_work = looked_for_work.is_none_or(|at| at.elapsed() >= LOOK_FOR_WORK);
        if for_work {
            looked_for_work = Some(Instant::now());
        }
        match claim(&farm, for_work).await {
            Ok(claimed) => {
                farm.stopping.run_until_cancelled(wake(&claimed)).await;
            }
            Err(error) => warn!(error = format!("{error:#}"), "looking for workstations to wake failed: trying again"),
        }
    }
}

async fn claim(farm: &Farm, for_work: bool) -> anyhow::Result<Vec<Wake>> {
    let client = farm.pool.get().await.context("getting a connection")?;
    if for_work {
        let begun = fleet::wake_for_work(&*client).await.context("looking for work for those that sleep")?;
        if begun > 0 {
            info!(workstations = begun, "there is work for workstations that sleep");
        }
    }
    fleet::claim_wakes(&*client).await.context("claiming whom to wake")
}

async fn wake(claimed: &[Wake]) {
    for one in claimed {
        let Wake { workstation_id, hostname, card, address, attempt } = one;
        match send(card, address).await {
            Ok(()) => info!(%workstation_id, hostname, card, address, attempt, "sent a packet that wakes"),
            Err(error) => {
                let error = format!("{error:#}");
                warn!(%workstation_id, hostname, card, address, error, "the packet that wakes was not sent: it is tried again");
            }
        }
    }
}

async fn send(card: &str, address: &str) -> anyhow::Result<()> {
    let packet = magic_packet(card).with_context(|| format!("{card:?} is no network card's address"))?;
    let to = resolve(address).await?;
    let any: SocketAddr = if to.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { "[::]:0".parse()? };
    let socket = UdpSocket::bind(any).await.context("opening a socket")?;
    socket.set_broadcast(true).context("to be allowed to broadcast")?;
    socket.send_to(&packet, to).await.with_context(|| format!("sending to {to}"))?;
    Ok(())
}

/// `192.0.2.255`, `192.0.2.255:7` or a name with a port or without.
async fn resolve(address: &str) -> anyhow::Result<SocketAddr> {
    if let Ok(whole) = address.parse() {
        return Ok(whole);
    }
    if let Ok(ip) = address.trim_start_matches('[').trim_end_matches(']').parse() {
        return Ok(SocketAddr::new(ip, PORT));
    }
    let with_port = if address.contains(':') { address.to_owned() } else { format!("{address}:{PORT}") };
    let mut found = timeout(NAME_WAIT, lookup_host(with_port)).await.context("looking the name up")??;
    found.next().context("the name has no address")
}

/// Six bytes of ones, and the card's address sixteen times.
fn magic_packet(card: &str) -> Option<Vec<u8>> {
    let bytes: Option<Vec<u8>> = card.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    let address = bytes.filter(|bytes| bytes.len() == 6)?;
    let mut packet = vec![0xff; 6];
    (0..16).for_each(|_| packet.extend(&address));
    Some(packet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_magic_packet_has_the_address_sixteen_times() {
        let packet = magic_packet("52:54:00:12:34:5f").expect("an address");
        assert_eq!((packet.len(), &packet[..6]), (102, &[0xff; 6][..]));
        assert!(packet[6..].chunks(6).all(|part| part == [0x52, 0x54, 0, 0x12, 0x34, 0x5f]));
        assert_eq!((magic_packet("52:54:00:12:34"), magic_packet("")), (None, None));
    }

    #[tokio::test]
    async fn addresses_may_have_a_port() {
        for (address, expected) in [
            ("192.0.2.255", "192.0.2.255:9"),
            ("192.0.2.255:7", "192.0.2.255:7"),
            ("[ff02::1]", "[ff02::1]:9"),
            ("ff02::1", "[ff02::1]:9"),
            ("localhost:77", "127.0.0.1:77"),
        ] {
            let found = resolve(address).await.expect(address);
            assert_eq!(found.port(), expected.parse::<SocketAddr>().expect("an address").port(), "{address}");
            if !address.starts_with("localhost") {
                assert_eq!(found.to_string(), expected);
            }
        }
    }
}
