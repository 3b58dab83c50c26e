//! Which files there are, who uses them, and which go when others come: the decisions, without a disk.

use std::collections::HashMap;

use pcfarm_proto::files::FileHash;

/// What is known of an agent's files.
pub struct Shelf {
    bytes_limit: u64,
    /// Counts uses.
    now: u64,
    files: HashMap<FileHash, File>,
}

struct File {
    bytes: u64,
    used_at: u64,
    users: u32,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Coming,
    Here,
    /// It goes with its last user.
    Leaving,
}

/// What there is of a file that somebody wants.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// It is the asker's to release.
    Here,
    /// Somebody fetches it, or must let go of it first.
    Coming,
    /// It is the asker's to fetch, and then to say that it has arrived or failed.
    Nowhere,
}

impl Shelf {
    pub fn new(bytes_limit: u64) -> Shelf {
        Shelf { bytes_limit, now: 0, files: HashMap::new() }
    }

    pub fn bytes_limit(&self) -> u64 {
        self.bytes_limit
    }

    /// One that nobody uses; the later, the longer it stays.
    pub fn put(&mut self, hash: FileHash, bytes: u64) {
        let used_at = self.tick();
        self.files.insert(hash, File { bytes, used_at, users: 0, state: State::Here });
    }

    pub fn take(&mut self, hash: FileHash) -> Found {
        let used_at = self.tick();
        let file = self.files.entry(hash).or_insert(File { bytes: 0, used_at, users: 0, state: State::Coming });
        match file.state {
            State::Here => {
                file.used_at = used_at;
                file.users += 1;
                Found::Here
            }
            // Nobody had it before.
            State::Coming if file.used_at == used_at => Found::Nowhere,
            State::Coming | State::Leaving => Found::Coming,
        }
    }

    /// Files that make way for so many bytes, gone from here already; none if there is no room.
    pub fn room_for(&mut self, bytes: u64) -> Option<Vec<FileHash>> {
        let mut held: u64 = self.files.values().map(|file| file.bytes).sum();
        let mut idle: Vec<(u64, FileHash)> = self
            .files
            .iter()
            .filter(|(_, file)| file.users == 0 && file.state == State::Here)
            .map(|(&hash, file)| (file.used_at, hash))
            .collect();
        idle.sort_unstable();
        let mut gone = Vec::new();
        for (_, hash) in idle {
            if held.saturating_add(bytes) <= self.bytes_limit {
                break;
            }
            held -= self.files[&hash].bytes;
            gone.push(hash);
        }
        if held.saturating_add(bytes) > self.bytes_limit {
            return None;
        }
        self.files.retain(|hash, _| !gone.contains(hash));
        Some(gone)
    }

    /// What is fetched takes its room from the beginning.
    pub fn reserve(&mut self, hash: FileHash, bytes: u64) {
        if let Some(file) = self.files.get_mut(&hash) {
            file.bytes = bytes;
        }
    }

    /// It is its fetcher's to release.
    pub fn arrived(&mut self, hash: FileHash, bytes: u64) {
        let used_at = self.tick();
        self.files.insert(hash, File { bytes, used_at, users: 1, state: State::Here });
    }

    pub fn failed(&mut self, hash: FileHash) {
        self.files.remove(&hash);
    }

    /// Nobody is given it from now on.
    pub fn forget_when_unused(&mut self, hash: FileHash) {
        if let Some(file) = self.files.get_mut(&hash) {
            file.state = State::Leaving;
        }
    }

    /// True: it is to be removed.
    pub fn release(&mut self, hash: FileHash) -> bool {
        let Some(file) = self.files.get_mut(&hash) else { return false };
        file.users = file.users.saturating_sub(1);
        let leaves = file.state == State::Leaving && file.users == 0;
        if leaves {
            self.files.remove(&hash);
        }
        leaves
    }

    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(n: u8) -> FileHash {
        FileHash([n; 32])
    }

    #[test]
    fn what_was_used_longest_ago_goes_first_and_what_is_in_use_stays() {
        let mut shelf = Shelf::new(100);
        (1..=4).for_each(|n| shelf.put(hash(n), 25));
        assert_eq!(shelf.room_for(0), Some(vec![]));
        assert_eq!(shelf.take(hash(1)), Found::Here);
        assert_eq!(shelf.take(hash(2)), Found::Here);
        assert!(!shelf.release(hash(2)));
        assert_eq!(shelf.room_for(30), Some(vec![hash(3), hash(4)]));
        assert_eq!(shelf.room_for(80), None, "the first is in use");
        assert_eq!(shelf.take(hash(2)), Found::Here, "what found no room has cost nothing");
        assert!(!shelf.release(hash(2)));
        assert_eq!(shelf.room_for(75), Some(vec![hash(2)]));
    }

    #[test]
    fn one_fetches_and_the_others_wait() {
        let mut shelf = Shelf::new(100);
        assert_eq!(shelf.take(hash(1)), Found::Nowhere);
        assert_eq!(shelf.take(hash(1)), Found::Coming);
        shelf.reserve(hash(1), 60);
        assert_eq!(shelf.room_for(60), None, "what comes has its room already");
        shelf.failed(hash(1));
        assert_eq!(shelf.take(hash(1)), Found::Nowhere, "the next one tries");
        shelf.arrived(hash(1), 60);
        assert_eq!(shelf.take(hash(1)), Found::Here);
        shelf.forget_when_unused(hash(1));
        assert_eq!(shelf.take(hash(1)), Found::Coming);
        assert!(!shelf.release(hash(1)));
        assert!(shelf.release(hash(1)), "it goes with its last user");
        assert_eq!(shelf.take(hash(1)), Found::Nowhere);
    }
}
