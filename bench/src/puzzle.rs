//! The problems of these tests: payloads, what `fault-agent` makes of them, and the same without a farm.

use serde::{Deserialize, Serialize};

/// What every payload of these tests is: each controller looks at what concerns it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Puzzle {
    /// Makes payloads differ.
    pub n: i64,
    /// How long it takes: slept.
    pub ms: u64,
    /// How long it takes: computed.
    pub cpu_ms: u64,
    /// Kills the agent that solves it.
    pub poison: bool,
    /// Does not notice that it was cancelled.
    pub deaf: bool,
    /// Fails so many attempts.
    pub fails: u32,
    /// …by a panic.
    pub panic: bool,
}

/// A solution names its author: the checkout that it was computed under.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Solution {
    pub digest: String,
    pub checkout: i64,
    pub attempt: u32,
}

/// FNV-1a of a key and a payload's JSON text, as hexadecimal digits: the same on every machine.
pub fn digest(key: &str, payload: &str) -> String {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let bytes = key.bytes().chain([0]).chain(payload.bytes());
    let hash = bytes.fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_tell_keys_and_payloads_apart() {
        assert_eq!(digest("", ""), "af63bd4c8601b7df");
        assert_ne!(digest("a", "b"), digest("ab", ""));
        assert_ne!(digest("a", "b"), digest("b", "a"));
    }
}
