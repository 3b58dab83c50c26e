//! Fingerprint of this machine: the digests of its machine-id and of the permanent addresses of its network cards.
//!
//! Machines differ if their machine-ids differ, or if both have cards and none in common. Either difference shows a copied disk:
//! its machine-id was made anew, or it runs on other cards. A part that one of the two lacks decides nothing. So a card that
//! appears late, a second card and a dongle change nothing from day to day.
//!
//! Digests have domains of PC Farm, so they match no digest that other software makes of a machine-id or an address.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

#[cfg(target_os = "linux")]
use super::cards;

/// Another root of the file system than `/`, for tests: `etc/machine-id` and `sys/class/net` are read below it.
const ROOT: &str = "PCFARM_HOST_ROOT";

/// Domains of the digests. A change of one makes every identity a copy.
const ID_DOMAIN: &[u8] = b"pcfarm machine-id v1\0";
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "network cards are read on Linux"))]
const CARD_DOMAIN: &[u8] = b"pcfarm network card v1\0";
const MACHINE_DOMAIN: &[u8] = b"pcfarm machine v1\0";

pub type Hash = [u8; 32];

/// Parts that identify a machine. Empty where nothing does: in containers without a machine-id, and on macOS and Windows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint {
    pub id: Option<Hash>,
    pub cards: BTreeSet<Hash>,
}

impl Fingerprint {
    /// Fingerprint of the machine on which this process runs.
    pub fn of_this_machine() -> Fingerprint {
        let root = std::env::var_os(ROOT).filter(|root| !root.is_empty()).map(PathBuf::from);
        Fingerprint::read(root.as_deref().unwrap_or(Path::new("/")))
    }

    pub fn read(root: &Path) -> Fingerprint {
        let id = machine_id(root).map(|id| hash(ID_DOMAIN, id.as_bytes()));
        #[cfg(target_os = "linux")]
        let cards = cards::permanent_addresses(root).iter().map(|address| hash(CARD_DOMAIN, address)).collect();
        #[cfg(not(target_os = "linux"))]
        let cards = BTreeSet::new();
        Fingerprint { id, cards }
    }

    /// Digest of all parts; none if there are none.
    pub fn digest(&self) -> Option<Hash> {
        if self.id.is_none() && self.cards.is_empty() {
            return None;
        }
        let digest = Sha256::new().chain_update(MACHINE_DOMAIN).chain_update(self.id.unwrap_or_default());
        Some(self.cards.iter().fold(digest, |digest, card| digest.chain_update(card)).finalize().into())
    }

    /// Returns why `present` is another machine than this one. None: nothing shows a difference.
    pub fn difference(&self, present: &Fingerprint) -> Option<&'static str> {
        if let (Some(recorded), Some(present)) = (&self.id, &present.id)
            && recorded != present
        {
            return Some("it has another machine-id");
        }
        let both_have_cards = !self.cards.is_empty() && !present.cards.is_empty();
        (both_have_cards && self.cards.is_disjoint(&present.cards)).then_some("none of its network cards is known")
    }
}

fn hash(domain: &[u8], value: &[u8]) -> Hash {
    Sha256::new().chain_update(domain).chain_update(value).finalize().into()
}

/// 32 hexadecimal digits, as systemd writes them; anything else, such as `uninitialized`, identifies nothing.
fn machine_id(root: &Path) -> Option<String> {
    let text = fs::read_to_string(root.join("etc/machine-id")).ok()?;
    let id = text.trim().to_ascii_lowercase();
    (id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()) && id.bytes().any(|b| b != b'0')).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint(id: u8, cards: &[u8]) -> Fingerprint {
        let id = (id != 0).then_some([id; 32]);
        Fingerprint { id, cards: cards.iter().map(|card| [*card; 32]).collect() }
    }

    #[test]
    fn a_machine_is_another_if_its_id_or_all_its_cards_are() {
        let recorded = fingerprint(1, &[10, 11]);
        for (case, present, is_same) in [
            ("unchanged", fingerprint(1, &[10, 11]), true),
            ("a card more", fingerprint(1, &[10, 11, 12]), true),
            ("a card less", fingerprint(1, &[11]), true),
            ("one card replaced", fingerprint(1, &[10, 12]), true),
            ("no card yet", fingerprint(1, &[]), true),
            ("no machine-id", fingerprint(0, &[10]), true),
            ("a copy on other cards", fingerprint(1, &[12, 13]), false),
            ("a copy whose id was made anew", fingerprint(2, &[12]), false),
            ("a new id on the same cards", fingerprint(2, &[10, 11]), false),
            ("a new id without cards", fingerprint(2, &[]), false),
            ("no id, other cards", fingerprint(0, &[12]), false),
        ] {
            assert_eq!(recorded.difference(&present).is_none(), is_same, "{case}");
            assert_eq!(present.difference(&recorded).is_none(), is_same, "{case}, the other way round");
        }
        let nothing = fingerprint(0, &[]);
        assert_eq!(nothing.difference(&recorded), None);
        assert_eq!((nothing.digest(), nothing.difference(&nothing)), (None, None));
    }

    #[test]
    fn digests_tell_machines_apart() {
        let all = [
            fingerprint(1, &[]),
            fingerprint(2, &[]),
            fingerprint(0, &[1]),
            fingerprint(1, &[1]),
            fingerprint(1, &[1, 2]),
        ];
        let digests: BTreeSet<_> = all.iter().map(Fingerprint::digest).collect();
        assert_eq!(digests.len(), all.len());
    }

    #[test]
    fn a_machine_id_that_is_none_identifies_nothing() {
        let root = tempfile::tempdir().expect("a directory");
        fs::create_dir(root.path().join("etc")).expect("a directory");
        for (text, is_one) in [
            ("0123456789abcdef0123456789ABCDEF\n", true),
            ("uninitialized\n", false),
            ("", false),
            ("00000000000000000000000000000000\n", false),
            ("0123456789abcdef", false),
        ] {
            fs::write(root.path().join("etc/machine-id"), text).expect("written");
            assert_eq!(Fingerprint::read(root.path()).digest().is_some(), is_one, "{text:?}");
        }
    }
}
