//! Binding of the identity to the machine, so that a copied state directory or disk image never speaks for the original.
//!
//! The file `machine` records the machine on which the identity was first used. On another machine the copied identity and its
//! credentials are moved aside to `copied`, and the agent makes an identity of its own. The owner's wish, written by
//! `pcfarm-worker identity`, goes before that: `keep` takes the identity back and binds it to this machine, `new` makes another.
//!
//! Each step may be repeated: after a crash the next start finds the same difference, or the same wish, and goes on.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use tracing::{info, warn};
use uuid::Uuid;

use super::{IDENTITY_FILE, StateDirError, failed, make_identity, read_identity};
use crate::credentials::{self, NOBODY_ELSE};
use crate::machine::fingerprint::{Fingerprint, Hash};
use crate::platform;

const MACHINE_FILE: &str = "machine";
const WISH_FILE: &str = "identity.wish";

/// A wish to keep the identity, after the credentials of the other identity were removed.
const CLEARED: &str = "keep, cleared";

/// Copied identity and its credentials, moved aside.
pub(super) const COPIED_DIR: &str = "copied";

/// Machines before this one that are remembered: the farm knows one of them until it has heard of this one.
const BEFORE_LIMIT: usize = 8;

/// Machine to which an identity is bound, and how it came to that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Binding {
    pub machine: Fingerprint,
    /// Digests of machines to which the owner had the identity bound before, the newest last.
    pub before: Vec<Hash>,
    /// Identity of another machine that was found here.
    pub cloned_from: Option<Uuid>,
}

/// Wish of an owner for the identity at the next start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// The identity belongs to this machine, although its parts were replaced.
    Keep,
    /// This machine has an identity of its own.
    New,
}

impl Wish {
    /// Leaves the wish for the next start of the agent.
    pub fn leave(self, dir: &Path) -> Result<(), StateDirError> {
        let file = dir.join(WISH_FILE);
        let text = match self {
            Wish::Keep => "keep\n",
            Wish::New => "new\n",
        };
        remove(&file)?;
        fs::write(&file, text).map_err(failed("write", &file))?;
        // The agent reads it, also if root wrote it.
        platform::seal(&file).map_err(failed("give away", &file))
    }

    fn read(dir: &Path) -> Result<Option<Wish>, StateDirError> {
        Ok(match text_of(&dir.join(WISH_FILE))?.as_deref().map(str::trim) {
            Some("keep" | CLEARED) => Some(Wish::Keep),
            Some("new") => Some(Wish::New),
            Some(_) | None => None,
        })
    }
}

/// Binds the identity of this directory to the machine on which it is used, or replaces a copied one. Returns the identity to use.
pub fn bind(dir: &Path, present: &Fingerprint) -> Result<(Uuid, Binding), StateDirError> {
    let recorded = read(dir)?;
    let bound = match (Wish::read(dir)?, recorded) {
        (Some(Wish::Keep), recorded) => keep(dir, recorded, present)?,
        (Some(Wish::New), _) => replace(dir, present)?,
        (None, None) => first_use(dir, present)?,
        (None, Some(recorded)) => match recorded.machine.difference(present) {
            None if lacks_a_part(&recorded.machine, present) => complete(dir, recorded, present)?,
            None => (identity(dir)?, recorded),
            Some(why) => {
                warn!(
                    why,
                    "this state directory is a copy from another machine: this agent makes an identity of its own; if the hardware \
                     was replaced, `pcfarm-worker identity keep` and a restart take the old identity back"
                );
                replace(dir, present)?
            }
        },
    };
    remove(&dir.join(WISH_FILE))?;
    Ok(bound)
}

/// Returns the difference between the recorded machine and this one. None: there is none, or no machine is recorded.
pub fn difference(dir: &Path, present: &Fingerprint) -> Result<Option<&'static str>, StateDirError> {
    Ok(read(dir)?.and_then(|recorded| recorded.machine.difference(present)))
}

fn first_use(dir: &Path, present: &Fingerprint) -> Result<(Uuid, Binding), StateDirError> {
    let identity = identity(dir)?;
    let binding = Binding { machine: present.clone(), ..Binding::default() };
    write(dir, &binding)?;
    Ok((identity, binding))
}

/// True if this machine has an id or cards, and the record has none.
fn lacks_a_part(recorded: &Fingerprint, present: &Fingerprint) -> bool {
    (recorded.id.is_none() && present.id.is_some()) || (recorded.cards.is_empty() && !present.cards.is_empty())
}

/// Adds the parts to the record that it lacks: from then on they tell a copy. The farm knows the machine by the former digest.
fn complete(dir: &Path, recorded: Binding, present: &Fingerprint) -> Result<(Uuid, Binding), StateDirError> {
    let Binding { machine, mut before, cloned_from } = recorded;
    before.extend(machine.digest());
    before.drain(..before.len().saturating_sub(BEFORE_LIMIT));
    let cards = if machine.cards.is_empty() { present.cards.clone() } else { machine.cards };
    let machine = Fingerprint { id: machine.id.or(present.id), cards };
    let binding = Binding { machine, before, cloned_from };
    write(dir, &binding)?;
    let identity = identity(dir)?;
    info!(%identity, "the record of this machine is completed by parts that were not known before");
    Ok((identity, binding))
}

fn keep(dir: &Path, recorded: Option<Binding>, present: &Fingerprint) -> Result<(Uuid, Binding), StateDirError> {
    let copied = dir.join(COPIED_DIR);
    // The identity that goes last says whether everything is back.
    let was_moved = copied.join(IDENTITY_FILE).exists();
    let recorded = if was_moved { read(&copied)? } else { recorded };
    let mut before = recorded.as_ref().map(|recorded| recorded.before.clone()).unwrap_or_default();
    let digest =
        recorded.and_then(|recorded| recorded.machine.digest()).filter(|digest| Some(*digest) != present.digest());
    before.extend(digest);
    before.drain(..before.len().saturating_sub(BEFORE_LIMIT));
    if was_moved {
        let wish = dir.join(WISH_FILE);
        if text_of(&wish)?.as_deref() != Some(CLEARED) {
            credentials::OWN_FILES.iter().try_for_each(|file| remove(&dir.join(file)))?;
            // From here on these files come from `copied`.
            written(&wish, CLEARED)?;
        }
        credentials::OWN_FILES.iter().try_for_each(|file| move_if_there(&copied.join(file), &dir.join(file)))?;
    }
    let binding = Binding { machine: present.clone(), before, cloned_from: None };
    write(dir, &binding)?;
    if was_moved {
        move_if_there(&copied.join(IDENTITY_FILE), &dir.join(IDENTITY_FILE))?;
        remove(&copied.join(MACHINE_FILE))?;
    }
    let identity = identity(dir)?;
    info!(%identity, "the identity is bound to this machine");
    Ok((identity, binding))
}

fn replace(dir: &Path, present: &Fingerprint) -> Result<(Uuid, Binding), StateDirError> {
    let copied = dir.join(COPIED_DIR);
    platform::make_private_dir(&copied).map_err(failed("make the directory", &copied))?;
    for file in credentials::OWN_FILES.iter().chain(&[IDENTITY_FILE]) {
        move_if_there(&dir.join(file), &copied.join(file))?;
    }
    if let Some(record) = text_of(&dir.join(MACHINE_FILE))? {
        written(&copied.join(MACHINE_FILE), &record)?;
    }
    let cloned_from = read_identity(&copied.join(IDENTITY_FILE))?;
    let binding = Binding { machine: present.clone(), before: Vec::new(), cloned_from };
    // Before the identity: the next start must not take a new one for a copy.
    write(dir, &binding)?;
    let identity = make_identity(dir, &dir.join(IDENTITY_FILE))?;
    info!(%identity, "this machine has an identity of its own");
    Ok((identity, binding))
}

fn identity(dir: &Path) -> Result<Uuid, StateDirError> {
    let path = dir.join(IDENTITY_FILE);
    read_identity(&path)?.map_or_else(|| make_identity(dir, &path), Ok)
}

/// A record that is spoilt is as good as none: the identity is bound anew, and the farm judges it.
fn read(dir: &Path) -> Result<Option<Binding>, StateDirError> {
    let path = dir.join(MACHINE_FILE);
    let Some(text) = text_of(&path)? else { return Ok(None) };
    let binding = text.parse().ok();
    if binding.is_none() {
        warn!(file = %path.display(), "cannot read the record of the machine: the identity is bound anew");
    }
    Ok(binding)
}

fn write(dir: &Path, binding: &Binding) -> Result<(), StateDirError> {
    written(&dir.join(MACHINE_FILE), &binding.to_string())
}

fn written(path: &Path, text: &str) -> Result<(), StateDirError> {
    let path: PathBuf = path.to_owned();
    credentials::write(&path, text, NOBODY_ELSE).map_err(|error| StateDirError::Io {
        doing: "write",
        source: io::Error::other(format!("{error:#}")),
        path,
    })
}

fn text_of(path: &Path) -> Result<Option<String>, StateDirError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", path)(error)),
    }
}

fn move_if_there(from: &Path, to: &Path) -> Result<(), StateDirError> {
    match fs::rename(from, to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("move", from)(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn remove(path: &Path) -> Result<(), StateDirError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path)(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Lines of a word and a value; lines of later versions are passed over.
impl FromStr for Binding {
    type Err = ();

    fn from_str(text: &str) -> Result<Binding, ()> {
        let mut binding = Binding::default();
        for (word, value) in text.lines().filter_map(|line| line.trim().split_once(' ')) {
            match word {
                "id" => binding.machine.id = Some(hash(value)?),
                "card" => drop(binding.machine.cards.insert(hash(value)?)),
                "before" => binding.before.push(hash(value)?),
                "cloned-from" => binding.cloned_from = Some(value.parse().map_err(|_| ())?),
                _ => {}
            }
        }
        Ok(binding)
    }
}

impl std::fmt::Display for Binding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "# Digests of the machine to which this identity belongs. `pcfarm-worker identity` explains and changes it."
        )?;
        let of_machine =
            self.machine.id.iter().map(|id| ("id", id)).chain(self.machine.cards.iter().map(|card| ("card", card)));
        for (word, hash) in of_machine.chain(self.before.iter().map(|before| ("before", before))) {
            write!(f, "{word} ")?;
            hash.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
            writeln!(f)?;
        }
        self.cloned_from.iter().try_for_each(|identity| writeln!(f, "cloned-from {identity}"))
    }
}

fn hash(text: &str) -> Result<Hash, ()> {
    let mut hash = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return Err(());
    }
    for (byte, digits) in hash.iter_mut().zip(text.as_bytes().chunks(2)) {
        let digits = std::str::from_utf8(digits).map_err(|_| ())?;
        *byte = u8::from_str_radix(digits, 16).map_err(|_| ())?;
    }
    Ok(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(id: u8, card: u8) -> Fingerprint {
        Fingerprint { id: Some([id; 32]), cards: [[card; 32]].into() }
    }

    /// A state directory as it is after its first start on a machine, with a certificate.
    fn used(on: &Fingerprint) -> (tempfile::TempDir, Uuid) {
        let dir = tempfile::tempdir().expect("a directory");
        let (identity, binding) = bind(dir.path(), on).expect("bound");
        assert_eq!(binding, Binding { machine: on.clone(), ..Binding::default() });
        fs::write(dir.path().join("certificate.pem"), identity.to_string()).expect("written");
        (dir, identity)
    }

    fn certificate(dir: &Path) -> Option<String> {
        fs::read_to_string(dir.join("certificate.pem")).ok()
    }

    #[test]
    fn a_copy_gets_an_identity_of_its_own_once_and_the_original_keeps_its_own() {
        let (dir, original) = used(&machine(1, 1));
        assert_eq!(bind(dir.path(), &machine(1, 1)).expect("bound").0, original);
        let (own, binding) = bind(dir.path(), &machine(1, 2)).expect("bound");
        assert!(own != original && binding.cloned_from == Some(original) && binding.before.is_empty());
        assert_eq!(certificate(dir.path()), None, "the original's credentials are not the copy's");
        let again = bind(dir.path(), &machine(1, 2)).expect("bound");
        assert_eq!(again, (own, binding), "the farm is told until it knows");
        // A copy of the copy.
        let (third, binding) = bind(dir.path(), &machine(1, 3)).expect("bound");
        assert!(third != own && binding.cloned_from == Some(own));
    }

    #[test]
    fn an_owner_who_replaced_the_hardware_takes_the_identity_back() {
        let (dir, original) = used(&machine(1, 1));
        bind(dir.path(), &machine(1, 2)).expect("bound");
        fs::write(dir.path().join("key.pem"), "of the interim identity").expect("written");
        Wish::Keep.leave(dir.path()).expect("left");
        let (kept, binding) = bind(dir.path(), &machine(1, 2)).expect("bound");
        assert_eq!((kept, &binding.machine, binding.cloned_from), (original, &machine(1, 2), None));
        assert_eq!(binding.before, [machine(1, 1).digest().expect("a digest")]);
        assert_eq!(certificate(dir.path()), Some(original.to_string()));
        assert!(!dir.path().join("key.pem").exists(), "a key without its certificate is of no use");
        assert_eq!(bind(dir.path(), &machine(1, 2)).expect("bound"), (original, binding));
    }

    #[test]
    fn a_wish_before_the_first_start_on_new_hardware_holds_as_well() {
        let (dir, original) = used(&machine(1, 1));
        for card in 2..20 {
            Wish::Keep.leave(dir.path()).expect("left");
            let (kept, binding) = bind(dir.path(), &machine(1, card)).expect("bound");
            assert_eq!((kept, binding.before.last().copied()), (original, machine(1, card - 1).digest()));
            assert!(binding.before.len() <= BEFORE_LIMIT);
        }
        Wish::Keep.leave(dir.path()).expect("left");
        let (_, binding) = bind(dir.path(), &machine(1, 19)).expect("bound");
        assert_eq!(binding.before.last().copied(), machine(1, 18).digest(), "nothing was replaced");
        Wish::New.leave(dir.path()).expect("left");
        let (own, binding) = bind(dir.path(), &machine(1, 19)).expect("bound");
        assert!(own != original && binding.cloned_from == Some(original));
    }

    #[test]
    fn a_record_is_completed_by_the_parts_that_it_lacks() {
        let id_alone = Fingerprint { id: Some([1; 32]), ..Fingerprint::default() };
        let cards_alone = Fingerprint { id: None, cards: [[1; 32]].into() };
        for first in [&id_alone, &cards_alone] {
            let (dir, original) = used(first);
            let (same, binding) = bind(dir.path(), &machine(1, 1)).expect("bound");
            assert_eq!((same, &binding.machine), (original, &machine(1, 1)));
            assert_eq!(binding.before, [first.digest().expect("a digest")], "the farm knows it by this one");
            assert_eq!(bind(dir.path(), first).expect("bound"), (original, binding.clone()), "a part is missing today");
            assert_eq!(bind(dir.path(), &machine(1, 1)).expect("bound"), (original, binding), "once");
            let (own, _) = bind(dir.path(), &machine(1, 2)).expect("bound");
            assert_ne!(own, original, "a copy on other cards is told from now on");
        }
        // More cards than the record has are no reason to bind anew.
        let (dir, _) = used(&machine(1, 1));
        let more = Fingerprint { id: Some([1; 32]), cards: [[1; 32], [2; 32]].into() };
        assert_eq!(bind(dir.path(), &more).expect("bound").1.machine, machine(1, 1));
    }

    #[test]
    fn a_crash_between_the_steps_is_made_good_by_the_next_start() {
        let (dir, original) = used(&machine(1, 1));
        // Killed when half was moved.
        fs::create_dir(dir.path().join(COPIED_DIR)).expect("a directory");
        fs::rename(dir.path().join(IDENTITY_FILE), dir.path().join(COPIED_DIR).join(IDENTITY_FILE)).expect("moved");
        let (own, binding) = bind(dir.path(), &machine(1, 2)).expect("bound");
        assert!(own != original && binding.cloned_from == Some(original) && certificate(dir.path()).is_none());
    }

    #[test]
    fn records_are_read_as_they_are_written_and_spoilt_ones_are_none() {
        let binding = Binding {
            machine: Fingerprint { id: Some([0xab; 32]), cards: [[1; 32], [2; 32]].into() },
            before: vec![[3; 32], [2; 32]],
            cloned_from: Some(Uuid::from_u128(7)),
        };
        assert_eq!(binding.to_string().parse(), Ok(binding.clone()));
        let later = format!("{binding}colour green\n");
        assert_eq!(later.parse(), Ok(binding));
        assert_eq!(format!("id {}", "ä".repeat(32)).parse::<Binding>(), Err(()));
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join(MACHINE_FILE), "id nonsense").expect("written");
        assert_eq!(bind(dir.path(), &machine(1, 1)).expect("bound").1.machine, machine(1, 1));
    }
}
