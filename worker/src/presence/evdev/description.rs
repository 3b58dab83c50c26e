//! Descriptions of input devices, as sysfs has them, and the owner's patterns for devices to ignore.

use std::fs;
use std::path::Path;

use super::{EV_KEY, EV_REL, EV_SW, SW_LID};

/// A device. Without a description it is taken for a keyboard.
pub struct Description {
    pub name: String,
    events: Option<u64>,
    switches: u64,
}

impl Description {
    pub fn read(device: &Path) -> Description {
        let text = |file: &str| fs::read_to_string(device.join(file)).ok();
        // Bit maps are words in hexadecimal, the lowest last.
        let lowest = |text: &str| u64::from_str_radix(text.split_ascii_whitespace().last()?, 16).ok();
        Description {
            name: text("name").map_or_else(|| "unknown".to_owned(), |name| name.trim().to_owned()),
            events: text("capabilities/ev").as_deref().and_then(lowest),
            switches: text("capabilities/sw").as_deref().and_then(lowest).unwrap_or(0),
        }
    }

    /// Keys, pointers and lids. Jacks, loudspeakers and accelerometers move by themselves.
    pub fn is_of_people(&self) -> bool {
        let Some(events) = self.events else { return true };
        let has = |event: u16| events & (1 << event) != 0;
        has(EV_KEY) || has(EV_REL) || (has(EV_SW) && self.switches & SW_LID != 0)
    }
}

/// Returns true if a name fits a pattern, in which `*` stands for any text and `?` for any character. Case does not matter.
pub fn fits(pattern: &str, name: &str) -> bool {
    let lower = |text: &str| text.chars().flat_map(char::to_lowercase).collect::<Vec<char>>();
    let (pattern, name) = (lower(pattern), lower(name));
    let (mut at, mut rest) = (0, 0);
    // Where the last star began to match, so that it may match more.
    let mut star: Option<(usize, usize)> = None;
    while rest < name.len() {
        match (pattern.get(at), star) {
            (Some('*'), _) => {
                star = Some((at, rest));
                at += 1;
            }
            (Some(one), _) if *one == '?' || *one == name[rest] => {
                at += 1;
                rest += 1;
            }
            (_, Some((begin, matched))) => {
                star = Some((begin, matched + 1));
                (at, rest) = (begin + 1, matched + 1);
            }
            (_, None) => return false,
        }
    }
    pattern[at.min(pattern.len())..].iter().all(|one| *one == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_name_devices() {
        for (pattern, name, expected) in [
            ("Old stick", "Old stick", true),
            ("old STICK", "Old stick", true),
            ("Old", "Old stick", false),
            ("Old*", "Old stick", true),
            ("*stick*", "Old stick 2", true),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b", "xxaxxbxx", false),
            ("Pad ?", "Pad 3", true),
            ("Pad ?", "Pad 33", false),
            ("*", "", true),
            ("", "", true),
            ("", "x", false),
            ("***", "x", true),
            ("a**********************b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false),
        ] {
            assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
        }
    }
}
