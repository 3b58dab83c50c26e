//! Permanent addresses of this machine's own network cards.
//!
//! A card counts if it belongs to the machine from day to day: it has a device of its own in sysfs, speaks Ethernet or Wi-Fi, and
//! neither it nor the bus behind it can be unplugged. So bridges, tunnels, bonds, containers' ends, USB dongles, docks and
//! virtual functions do not count.
//!
//! The permanent address is the one that the maker gave. The kernel names it by netlink, even if the card uses another address
//! now. The service's unit closes netlink, so each card is also asked for by a socket of the internet family. Where neither names
//! one, the current address counts if it is the card's own and was not set or made up.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with, sockopt};

pub type Address = [u8; 6];

/// The kernel's numbers: messages, flags, attributes and types of hardware.
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const IFLA_IFNAME: u16 = 3;
const IFLA_PERM_ADDRESS: u16 = 54;
const ARPHRD_ETHER: &str = "1";
/// `addr_assign_type` of an address that the card has by itself.
const NET_ADDR_PERM: &str = "0";

/// Lengths of a message's header, of a link's, and of an attribute's.
const HEADER: usize = 16;
const LINK: usize = 16;
const ATTRIBUTE: usize = 4;

/// The kernel answers at once, and a dump of links is small.
const ANSWER_WAIT: std::time::Duration = std::time::Duration::from_secs(2);
const MESSAGES_LIMIT: usize = 1000;

/// `root`: of the file system. Below another one than `/` the kernel is not asked.
pub fn permanent_addresses(root: &Path) -> BTreeSet<Address> {
    let has_kernel = root == Path::new("/");
    let of_kernel = if has_kernel { ask_kernel().unwrap_or_default() } else { BTreeMap::new() };
    let entries = fs::read_dir(root.join("sys/class/net")).into_iter().flatten().flatten();
    let own = entries.filter(|entry| is_own_card(&entry.path()));
    own.filter_map(|entry| {
        let name = entry.file_name();
        let name = name.to_str()?;
        let by_netlink = of_kernel.get(name).copied().filter(is_address);
        let by_kernel = by_netlink.or_else(|| has_kernel.then(|| ask_for(name)).flatten());
        by_kernel.or_else(|| current(&entry.path())).filter(is_address)
    })
    .collect()
}

/// Permanent address of one card. No right is needed for it.
fn ask_for(card: &str) -> Option<Address> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
    pcfarm_native::linux::permanent_address(socket.as_fd(), card).filter(is_address)
}

fn is_own_card(card: &Path) -> bool {
    let Ok(device) = fs::canonicalize(card.join("device")) else { return false };
    let is_fixed = |place: &Path| {
        let removable = says(&place.join("removable")).is_some_and(|text| text == "removable");
        let is_usb = place.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("usb"));
        !removable && !is_usb
    };
    says(&card.join("type")).is_some_and(|kind| kind == ARPHRD_ETHER)
        && !device.join("physfn").exists()
        && device.ancestors().all(is_fixed)
}

fn current(card: &Path) -> Option<Address> {
    says(&card.join("addr_assign_type")).filter(|kind| kind == NET_ADDR_PERM)?;
    let text = says(&card.join("address"))?;
    let bytes: Vec<u8> = text.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect::<Result<_, _>>().ok()?;
    bytes.try_into().ok()
}

fn says(file: &Path) -> Option<String> {
    Some(fs::read_to_string(file).ok()?.trim().to_owned())
}

/// Not a group's, and not all zeros, which cards without a memory of their own report.
fn is_address(address: &Address) -> bool {
    address[0] & 1 == 0 && address.iter().any(|byte| *byte != 0)
}

/// Permanent addresses by the names of their links, from a dump of all links.
fn ask_kernel() -> io::Result<BTreeMap<String, Address>> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(ANSWER_WAIT))?;
    let mut request = Vec::with_capacity(HEADER + LINK);
    request.extend(u32::try_from(HEADER + LINK).unwrap_or(0).to_ne_bytes());
    request.extend(RTM_GETLINK.to_ne_bytes());
    request.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    request.extend(1_u32.to_ne_bytes());
    request.resize(HEADER + LINK, 0);
    sendto(&socket, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut found = BTreeMap::new();
    let mut answer = vec![0; 64 << 10];
    for _ in 0..MESSAGES_LIMIT {
        let (length, _) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
        if !take(&answer[..length.min(answer.len())], &mut found) {
            break;
        }
    }
    Ok(found)
}

/// Takes in one datagram of a dump. False if it is the last one.
fn take(mut datagram: &[u8], found: &mut BTreeMap<String, Address>) -> bool {
    while let Some((length, kind)) = number::<4>(datagram, 0).zip(number::<2>(datagram, 4)) {
        let (length, kind) = (u32::from_ne_bytes(length) as usize, u16::from_ne_bytes(kind));
        // An error, which is no link, ends the dump as well.
        if kind != RTM_NEWLINK || length < HEADER + LINK || length > datagram.len() {
            return kind != NLMSG_DONE && kind == RTM_NEWLINK;
        }
        if let Some((name, address)) = link(&datagram[HEADER + LINK..length]) {
            found.insert(name, address);
        }
        datagram = datagram.get(aligned(length)..).unwrap_or_default();
    }
    true
}

fn link(mut attributes: &[u8]) -> Option<(String, Address)> {
    let (mut name, mut address) = (None, None);
    while let Some((length, kind)) = number::<2>(attributes, 0).zip(number::<2>(attributes, 2)) {
        let (length, kind) = (usize::from(u16::from_ne_bytes(length)), u16::from_ne_bytes(kind));
        let value = attributes.get(ATTRIBUTE..length)?;
        match kind {
            IFLA_IFNAME => name = std::str::from_utf8(value).ok().map(|name| name.trim_end_matches('\0').to_owned()),
            IFLA_PERM_ADDRESS => address = value.try_into().ok(),
            _ => {}
        }
        attributes = attributes.get(aligned(length)..).unwrap_or_default();
    }
    name.zip(address)
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A link as sysfs shows it. `device`: its place on a bus; none: it is virtual.
    fn card(root: &Path, name: &str, device: Option<&str>, address: &str, assigned: &str) {
        let card = root.join("sys/class/net").join(name);
        fs::create_dir_all(&card).expect("a card");
        for (file, text) in [("type", "1"), ("address", address), ("addr_assign_type", assigned)] {
            fs::write(card.join(file), format!("{text}\n")).expect("written");
        }
        if let Some(device) = device {
            let device = root.join("sys/devices").join(device);
            fs::create_dir_all(&device).expect("a device");
            symlink(&device, card.join("device")).expect("a link");
        }
    }

    #[test]
    fn only_the_machines_own_cards_count() {
        let root = tempfile::tempdir().expect("a directory");
        let root = root.path();
        assert_eq!(permanent_addresses(root), BTreeSet::new());
        card(root, "eth0", Some("pci0000:00/0000:00:1f.6"), "52:54:00:00:00:01", "0");
        card(root, "veth1", None, "52:54:00:00:00:02", "0");
        card(root, "dongle", Some("pci0000:00/0000:00:14.0/usb1/1-2"), "52:54:00:00:00:03", "0");
        card(root, "wlan0", Some("pci0000:00/0000:00:1c.0"), "52:54:00:00:00:04", "3");
        card(root, "dock", Some("pci0000:00/0000:00:1d.0/0000:05:00.0"), "52:54:00:00:00:05", "0");
        fs::write(root.join("sys/devices/pci0000:00/0000:00:1d.0/removable"), "removable\n").expect("written");
        card(root, "vf0", Some("pci0000:00/0000:00:1e.0"), "52:54:00:00:00:06", "0");
        fs::create_dir(root.join("sys/devices/pci0000:00/0000:00:1e.0/physfn")).expect("a function");
        card(root, "dead0", Some("pci0000:00/0000:00:1b.0"), "00:00:00:00:00:00", "0");
        assert_eq!(permanent_addresses(root), BTreeSet::from([[0x52, 0x54, 0, 0, 0, 1]]));
    }

    #[test]
    fn links_are_read_from_a_dump_and_nonsense_is_not() {
        let attribute = |kind: u16, value: &[u8]| {
            let length = ATTRIBUTE + value.len();
            let mut bytes = u16::try_from(length).expect("short").to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(value);
            bytes.resize(aligned(length), 0);
            bytes
        };
        let message = |kind: u16, body: &[u8]| {
            let mut bytes = u32::try_from(HEADER + LINK + body.len()).expect("short").to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.resize(HEADER + LINK, 0);
            bytes.extend(body);
            bytes
        };
        let link = [attribute(IFLA_IFNAME, b"eth0\0"), attribute(IFLA_PERM_ADDRESS, &[2, 0, 0, 0, 0, 9])].concat();
        let without = attribute(IFLA_IFNAME, b"lo\0");
        let datagram = [message(RTM_NEWLINK, &link), message(RTM_NEWLINK, &without)].concat();
        let mut found = BTreeMap::new();
        assert!(take(&datagram, &mut found));
        assert_eq!(found, BTreeMap::from([("eth0".to_owned(), [2, 0, 0, 0, 0, 9])]));
        assert!(!take(&message(NLMSG_DONE, &[]), &mut found));
        for end in 0..datagram.len() {
            take(&datagram[..end], &mut BTreeMap::new());
        }
    }

    /// Netlink answers on any machine.
    #[test]
    fn the_kernel_answers() {
        let links = ask_kernel().expect("netlink");
        assert!(links.values().all(is_address), "{links:?}");
    }

    /// On a machine with cards both ways name the same addresses.
    #[test]
    fn netlink_and_the_internets_sockets_agree() {
        for (name, address) in ask_kernel().expect("netlink") {
            assert_eq!(ask_for(&name), Some(address), "{name}");
        }
        for none in ["lo", "no such card", "a name that is longer than any card's", ""] {
            assert_eq!(ask_for(none), None, "{none:?}");
        }
    }
}
