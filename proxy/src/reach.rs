//! Addresses that a request may reach. Users choose the targets of webhooks, and the server stands inside the network: without a
//! limit a user could have it ask the cloud's metadata service, a database, or each port of each neighbour.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

/// Addresses that requests may reach.
#[derive(Clone, Debug, Default)]
pub enum Reach {
    /// All, for targets that administrators choose.
    #[default]
    Any,
    /// Public addresses, and these networks.
    Public(Arc<[Network]>),
}

/// A network such as `10.0.0.0/8`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

/// Text for users. It is the same whether the address answers or not, and does not show what a name resolves to.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the address of {host} is not public; an administrator may allow it with webhook_networks")]
pub struct NotPublic {
    pub host: String,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a network: write an address and its number of fixed bits, such as 10.0.0.0/8")]
pub struct NotANetwork(String);

impl Reach {
    /// Public addresses, and these networks.
    pub fn public_and(networks: &[Network]) -> Reach {
        Reach::Public(networks.into())
    }

    pub fn permits(&self, address: IpAddr) -> bool {
        let Reach::Public(networks) = self else { return true };
        let inside = |address: IpAddr| networks.iter().any(|network| network.contains(address));
        let address = address.to_canonical();
        if inside(address) {
            return true;
        }
        match address {
            IpAddr::V4(address) => is_public_v4(address),
            IpAddr::V6(address) => match embedded(address) {
                Some(within) => within.into_iter().all(|within| is_public_v4(within) || inside(IpAddr::V4(within))),
                None => is_public_v6(address),
            },
        }
    }

    /// Refuses a destination by its text alone, before its name is resolved. A proxy would resolve it elsewhere.
    pub(crate) fn check(&self, host: &str) -> Result<(), NotPublic> {
        if matches!(self, Reach::Any) {
            return Ok(());
        }
        let refused = || NotPublic { host: host.to_owned() };
        let name = host.trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase();
        let address = match name.parse() {
            Ok(address) => address,
            Err(_) if name == "localhost" || name.ends_with(".localhost") => IpAddr::V4(Ipv4Addr::LOCALHOST),
            // Old spellings of addresses, such as 127.1, 2130706433 and 0x7f000001.
            Err(_) if ends_in_a_number(&name) => return Err(refused()),
            Err(_) => return Ok(()),
        };
        if self.permits(address) { Ok(()) } else { Err(refused()) }
    }
}

fn ends_in_a_number(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    match last.strip_prefix("0x") {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

/// By IANA's registry of special addresses.
fn is_public_v4(address: Ipv4Addr) -> bool {
    const SPECIAL: [(Ipv4Addr, u8); 14] = [
        (Ipv4Addr::new(0, 0, 0, 0), 8),
        (Ipv4Addr::new(10, 0, 0, 0), 8),
        (Ipv4Addr::new(100, 64, 0, 0), 10), // carrier-grade NAT
        (Ipv4Addr::new(127, 0, 0, 0), 8),
        (Ipv4Addr::new(169, 254, 0, 0), 16),
        (Ipv4Addr::new(172, 16, 0, 0), 12),
        (Ipv4Addr::new(192, 0, 0, 0), 24),
        (Ipv4Addr::new(192, 0, 2, 0), 24),
        (Ipv4Addr::new(192, 88, 99, 0), 24), // relays of 6to4
        (Ipv4Addr::new(192, 168, 0, 0), 16),
        (Ipv4Addr::new(198, 18, 0, 0), 15),
        (Ipv4Addr::new(198, 51, 100, 0), 24),
        (Ipv4Addr::new(203, 0, 113, 0), 24),
        (Ipv4Addr::new(224, 0, 0, 0), 3), // multicast, reserved, broadcast
    ];
    let is_in = |&(address_of, bits): &(Ipv4Addr, u8)| {
        Network { address: IpAddr::V4(address_of), bits }.contains(IpAddr::V4(address))
    };
    !SPECIAL.iter().any(is_in)
}

/// Global unicast addresses that are not special.
fn is_public_v6(address: Ipv6Addr) -> bool {
    let [first, second, ..] = address.segments();
    let is_global = first & 0xe000 == 0x2000;
    let is_protocol = first == 0x2001 && second < 0x200;
    let is_documentation = (first == 0x2001 && second == 0xdb8) || (first == 0x3fff && second < 0x1000);
    is_global && !is_protocol && !is_documentation
}

/// IPv4 addresses to which a translator or a tunnel passes packets for this address.
fn embedded(address: Ipv6Addr) -> Option<Vec<Ipv4Addr>> {
    let of = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match address.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(vec![of(high, low)]), // NAT64
        [0x2002, high, low, ..] => Some(vec![of(high, low)]),               // 6to4
        [0x2001, 0, high, low, _, _, client_high, client_low] => {
            Some(vec![of(high, low), of(!client_high, !client_low)]) // Teredo
        }
        _ => None,
    }
}

impl Network {
    fn contains(&self, address: IpAddr) -> bool {
        let (own, other, width) = match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => (u128::from(own.to_bits()), u128::from(other.to_bits()), 32),
            (IpAddr::V6(own), IpAddr::V6(other)) => (own.to_bits(), other.to_bits(), 128),
            _ => return false,
        };
        let free = width - u32::from(self.bits).min(width);
        own.checked_shr(free) == other.checked_shr(free)
    }
}

impl FromStr for Network {
    type Err = NotANetwork;

    fn from_str(text: &str) -> Result<Network, NotANetwork> {
        let wrong = || NotANetwork(text.to_owned());
        let (address, bits) = match text.trim().split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text.trim(), None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(width), |bits| bits.parse().map_err(|_| wrong()))?;
        let network = Network { address, bits };
        // 10.1.2.3/8 is more likely a slip than the network 10.0.0.0/8.
        let first = match address {
            IpAddr::V4(address) => address.to_bits().checked_shl(u32::from(bits)).unwrap_or(0) == 0,
            IpAddr::V6(address) => address.to_bits().checked_shl(u32::from(bits)).unwrap_or(0) == 0,
        };
        if bits <= width && first { Ok(network) } else { Err(wrong()) }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(texts: &[&str]) -> Reach {
        let networks: Vec<Network> = texts.iter().map(|text| text.parse().expect(text)).collect();
        Reach::public_and(&networks)
    }

    #[test]
    fn public_addresses_alone_are_reached() {
        let public = networks(&[]);
        for address in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2002:a00:1::1",
            "2001::1",
            "fe80::1",
            "2001:0:4136:e378:8000:63bf:80ff:fffe",
            "fc00::1",
            "fd12::1",
            "fec0::1",
            "ff02::1",
            "2001:db8::1",
            "3fff::1",
            "100::1",
        ] {
            assert!(!public.permits(address.parse().expect(address)), "{address}");
            assert!(Reach::Any.permits(address.parse().expect(address)), "{address}");
        }
        for address in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.0.1",
            "100.128.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "192.167.0.1",
            "223.255.255.255",
            "::ffff:1.1.1.1",
            "64:ff9b::101:101",
            "2002:101:101::1",
            "2600::1",
            "2a00::1",
            "2001:4860:4860::8888",
        ] {
            assert!(public.permits(address.parse().expect(address)), "{address}");
        }
    }

    #[test]
    fn administrators_allow_networks() {
        let reach = networks(&["10.0.0.0/8", "192.168.7.9", "fd12:3456::/32"]);
        for (address, expected) in [
            ("10.255.0.1", true),
            ("11.0.0.1", true),
            ("::ffff:10.1.2.3", true),
            ("64:ff9b::a00:1", true),
            ("192.168.7.9", true),
            ("192.168.7.8", false),
            ("fd12:3456:1::1", true),
            ("fd12:3457::1", false),
            ("127.0.0.1", false),
        ] {
            assert_eq!(reach.permits(address.parse().expect(address)), expected, "{address}");
        }
        assert!(networks(&["0.0.0.0/0"]).permits("127.0.0.1".parse().expect("an address")));
        assert!(networks(&["::/0"]).permits("::1".parse().expect("an address")));
        for wrong in
            ["", "10.0.0.0/33", "10.1.2.3/8", "fd12::/129", "10.0.0.0/", "10/8", "farm.example.org", "10.0.0.0/-1"]
        {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn destinations_are_refused_by_their_text() {
        let public = networks(&[]);
        for host in [
            "localhost",
            "LOCALHOST.",
            "a.localhost",
            "127.0.0.1",
            "127.0.0.1.",
            "127.1",
            "2130706433",
            "0x7f000001",
            "0x7f.1",
            "017700000001",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "169.254.169.254",
            "1.1.1.1.1",
            "a.0x",
        ] {
            assert!(public.check(host).is_err(), "{host}");
            assert_eq!(Reach::Any.check(host), Ok(()), "{host}");
        }
        for host in ["hooks.example.org", "1.1.1.1", "[2600::1]", "host1", "4chan.example", "localhost.example.org"] {
            assert_eq!(public.check(host), Ok(()), "{host}");
        }
        assert_eq!(networks(&["127.0.0.0/8"]).check("localhost"), Ok(()));
        let said = public.check("127.0.0.1").expect_err("refused").to_string();
        assert_eq!(said, "the address of 127.0.0.1 is not public; an administrator may allow it with webhook_networks");
    }
}
