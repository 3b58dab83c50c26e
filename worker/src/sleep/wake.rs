//! By which network card the farm may wake the PC.
//!
//! Owns how the card is found: it is the one by which the agent reaches its server. Nothing is said of it unless the owner wants
//! that, so who may not be woken cannot be.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use pcfarm_proto::v1;
use serde::Deserialize;
use tonic::transport::Uri;

/// Whether the farm may wake it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Said")]
pub enum Wake {
    #[default]
    Never,
    /// By the card by which it reaches its server.
    ByRoute,
    /// By this one, of which its owner says that it can.
    By(Card),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Said {
    Whether(bool),
    Card(Card),
}

impl From<Said> for Wake {
    fn from(said: Said) -> Wake {
        match said {
            Said::Whether(false) => Wake::Never,
            Said::Whether(true) => Wake::ByRoute,
            Said::Card(card) => Wake::By(card),
        }
    }
}

/// The address of a network card: `52:54:00:12:34:56`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Card(String);

#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no network card's address, such as 52:54:00:12:34:56")]
pub struct NoCard(String);

impl TryFrom<String> for Card {
    type Error = NoCard;

    fn try_from(text: String) -> Result<Card, NoCard> {
        let lower = text.trim().to_ascii_lowercase();
        let is_byte = |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_card = lower.split(':').count() == 6 && lower.split(':').all(is_byte);
        // That of what is no card, such as the loopback interface.
        if is_card && lower != "00:00:00:00:00:00" { Ok(Card(lower)) } else { Err(NoCard(text)) }
    }
}

impl Wake {
    /// What the server at this address is told; nothing if it is not to know, or nothing can be found.
    pub async fn by(&self, server: &Uri) -> Option<v1::Waking> {
        match self {
            Wake::Never => None,
            Wake::ByRoute => {
                let port = server.port_u16().unwrap_or(443);
                let found = tokio::net::lookup_host((server.host()?.trim_matches(['[', ']']), port)).await.ok()?;
                let address = found.map(|address| address.ip()).find_map(|ip| match ip {
                    IpAddr::V4(ip) => Some(ip),
                    IpAddr::V6(ip) => ip.to_ipv4_mapped(),
                })?;
                by_route(Path::new("/"), address)
            }
            Wake::By(card) => Some(v1::Waking { card: card.0.clone(), broadcast: String::new() }),
        }
    }
}

/// The card by which that address is reached, by the kernel's table of routes. `root`: of the file system.
fn by_route(root: &Path, address: Ipv4Addr) -> Option<v1::Waking> {
    let routes = routes(&fs::read_to_string(root.join("proc/net/route")).ok()?);
    // The narrowest, as the kernel chooses; of equals the one that is preferred.
    let fitting = routes.iter().filter(|route| route.includes(address));
    let chosen = fitting.max_by_key(|route| (route.mask.to_bits(), std::cmp::Reverse(route.metric)))?;
    let card = fs::read_to_string(root.join("sys/class/net").join(&chosen.interface).join("address")).ok()?;
    let card = Card::try_from(card.trim().to_owned()).ok()?;
    // Of the network that the card is in itself, which need not be the server's.
    let own = routes.iter().filter(|route| route.interface == chosen.interface && route.is_of_card());
    let own = own.max_by_key(|route| route.mask.to_bits());
    let broadcast = own.map(|own| (own.network | !own.mask).to_string()).unwrap_or_default();
    Some(v1::Waking { card: card.0, broadcast })
}

struct Route {
    interface: String,
    network: Ipv4Addr,
    mask: Ipv4Addr,
    gateway: Ipv4Addr,
    metric: u32,
}

impl Route {
    fn includes(&self, address: Ipv4Addr) -> bool {
        address & self.mask == self.network
    }

    /// Whoever is there is reached without a router.
    fn is_of_card(&self) -> bool {
        self.gateway.is_unspecified() && !self.mask.is_unspecified()
    }
}

/// The kernel's table: addresses are in hexadecimal, in the machine's order of bytes.
fn routes(table: &str) -> Vec<Route> {
    let address = |text: &str| u32::from_str_radix(text, 16).ok().map(|bits| Ipv4Addr::from(bits.to_ne_bytes()));
    let route = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [interface, network, gateway, _, _, _, metric, mask, ..] = fields[..] else { return None };
        Some(Route {
            interface: interface.to_owned(),
            network: address(network)?,
            mask: address(mask)?,
            gateway: address(gateway)?,
            metric: metric.parse().ok()?,
        })
    };
    table.lines().skip(1).filter_map(route).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Linux shows it.
    const TABLE: &str = "\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0102000A\t0003\t0\t0\t100\t00000000\t0\t0\t0
wlan0\t00000000\t0103000A\t0003\t0\t0\t600\t00000000\t0\t0\t0
eth0\t0002000A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0
wlan0\t0003000A\t00000000\t0001\t0\t0\t600\t00FFFFFF\t0\t0\t0
tun0\t0000100A\t00000000\t0001\t0\t0\t50\t0000F0FF\t0\t0\t0
";

    #[test]
    #[cfg(target_endian = "little")]
    fn the_card_is_the_one_that_leads_to_the_server() {
        let root = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a directory")).expect("made");
            fs::write(path, text).expect("written");
        };
        write("proc/net/route", TABLE);
        write("sys/class/net/eth0/address", "52:54:00:AB:cd:01\n");
        write("sys/class/net/wlan0/address", "52:54:00:ab:cd:02\n");
        write("sys/class/net/tun0/address", "00:00:00:00:00:00\n");
        for (server, expected) in [
            ([10, 0, 2, 7], Some(("52:54:00:ab:cd:01", "10.0.2.255"))),
            ([10, 0, 3, 7], Some(("52:54:00:ab:cd:02", "10.0.3.255"))),
            // By the router that is preferred; and all hear in the card's own network.
            ([192, 0, 2, 1], Some(("52:54:00:ab:cd:01", "10.0.2.255"))),
            // A tunnel has no card.
            ([10, 16, 0, 1], None),
        ] {
            let found = by_route(root.path(), Ipv4Addr::from(server)).map(|waking| (waking.card, waking.broadcast));
            let expected = expected.map(|(card, broadcast)| (card.to_owned(), broadcast.to_owned()));
            assert_eq!(found, expected, "{server:?}");
        }
    }

    #[tokio::test]
    async fn nothing_is_said_unless_the_owner_wants_it() {
        let wake = |text: &str| {
            toml::from_str::<std::collections::BTreeMap<String, Wake>>(text).map(|mut all| all.remove("wake"))
        };
        let server = Uri::from_static("http://127.0.0.1:7070");
        assert_eq!(wake("wake = false").expect("good"), Some(Wake::Never));
        assert_eq!(Wake::Never.by(&server).await, None);
        let named = wake("wake = \"52:54:00:AB:CD:EF\"").expect("good").expect("given");
        let waking = v1::Waking { card: "52:54:00:ab:cd:ef".to_owned(), broadcast: String::new() };
        assert_eq!(named.by(&server).await, Some(waking));
        assert!(wake("wake = \"eth0\"").is_err() && wake("wake = \"00:00:00:00:00:00\"").is_err());
    }
}
