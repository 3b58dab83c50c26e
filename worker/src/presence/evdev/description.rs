//! Descriptions of input devices, as sysfs has them, and the owner's patterns for devices to ignore.

use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;

use super::{EV_KEY, EV_REL, EV_SW, SW_LID};

/// Keys of digits, letters, signs and the number pad, by linux/input-event-codes.h.
const TYPING: [RangeInclusive<usize>; 6] = [2..=13, 16..=27, 30..=41, 43..=53, 71..=83, 86..=86];

/// So many of them make a keyboard or a number pad. The keys of a case, a headset or a remote control are fewer.
const TYPING_LEAST: usize = 10;

/// Buttons of mice, joysticks, gamepads, pens and touch screens.
const BUTTONS: RangeInclusive<usize> = 0x110..=0x14f;

/// Axes of a pointer: `REL_X` and `REL_Y`.
const POINTER: [usize; 2] = [0, 1];

/// A device. Without a description it is taken for a keyboard.
pub struct Description {
    pub name: String,
    events: Option<Bits>,
    switches: Bits,
    /// None: sysfs does not tell.
    keys: Option<Bits>,
    axes: Option<Bits>,
}

impl Description {
    pub fn read(device: &Path) -> Description {
        let text = |file: &str| fs::read_to_string(device.join(file)).ok();
        let bits = |file: &str| text(file).as_deref().and_then(Bits::parse);
        Description {
            name: text("name").map_or_else(|| "unknown".to_owned(), |name| name.trim().to_owned()),
            events: bits("capabilities/ev"),
            switches: bits("capabilities/sw").unwrap_or_default(),
            keys: bits("capabilities/key"),
            axes: bits("capabilities/rel"),
        }
    }

    /// Keys, pointers and lids. Jacks, loudspeakers and accelerometers move by themselves.
    pub fn is_of_people(&self) -> bool {
        let Some(events) = &self.events else { return true };
        let has = |event: u16| events.has(event.into());
        has(EV_KEY) || has(EV_REL) || (has(EV_SW) && self.switches.has(SW_LID.into()))
    }

    /// Returns true for a keyboard or a pointing device, without which a person does no work. A PC without a person has keys as well:
    /// power and sleep buttons, keys for brightness and displays, lids, hotkeys of the board, headsets.
    pub fn is_of_work(&self) -> bool {
        let Some(events) = &self.events else { return true };
        let is_keyboard =
            |keys: &Bits| TYPING.into_iter().flatten().filter(|key| keys.has(*key)).count() >= TYPING_LEAST;
        let has_buttons = |keys: &Bits| BUTTONS.into_iter().any(|button| keys.has(button));
        let by_keys = self.keys.as_ref().is_none_or(|keys| is_keyboard(keys) || has_buttons(keys));
        let by_axes = self.axes.as_ref().is_none_or(|axes| POINTER.into_iter().all(|axis| axes.has(axis)));
        (events.has(EV_KEY.into()) && by_keys) || (events.has(EV_REL.into()) && by_axes)
    }
}

/// A bit map of sysfs: words in hexadecimal, the lowest last. A word has as many bits as one of this process.
#[derive(Debug, Default)]
struct Bits(Vec<usize>);

impl Bits {
    fn parse(text: &str) -> Option<Bits> {
        let words = text.split_ascii_whitespace().rev().map(|word| usize::from_str_radix(word, 16));
        let words: Vec<usize> = words.collect::<Result<_, _>>().ok()?;
        (!words.is_empty()).then_some(Bits(words))
    }

    fn has(&self, bit: usize) -> bool {
        let bits = usize::BITS as usize;
        self.0.get(bit / bits).is_some_and(|word| word & (1 << (bit % bits)) != 0)
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

    /// Name, and bit maps of events, keys, relative axes and switches, as kernels of 64 bits show real devices. An empty one is not there.
    const DEVICES: [(&str, [&str; 4], bool, bool); 16] = [
        ("Power Button", ["3", "10000000000000 0", "", ""], true, false),
        ("Sleep Button", ["3", "4000 0 0", "", ""], true, false),
        ("Video Bus", ["3", "3e000b00000000 0 0 0", "", ""], true, false),
        ("Lid Switch", ["21", "", "", "1"], true, false),
        ("PC Speaker", ["40001", "", "", ""], false, false),
        ("HDA Intel PCH Headphone", ["21", "", "", "4"], false, false),
        ("UVC Camera", ["3", "100000 0 0 0", "", ""], true, false),
        (
            "Eee PC WMI hotkeys",
            ["100013", "40000 0 0 0 0 2407b00100000 4000003800305000 1e000000000000 0", "", ""],
            true,
            false,
        ),
        ("Intel HID events", ["13", "80000300000000 7800004000 1e294000000020 0", "", ""], true, false),
        ("USB Audio Consumer Control", ["1f", "300000000000000 0 0 0 c000000000000 0", "40", ""], true, false),
        (
            "AT Translated Set 2 keyboard",
            ["120013", "402000000 3803078f800d001 feffffdfffefffff fffffffffffffffe", "", ""],
            true,
            true,
        ),
        ("USB number pad", ["120013", "5000fffa0 80000000000000", "", ""], true, true),
        ("A mouse", ["17", "70000 0 0 0 0", "903", ""], true, true),
        ("Trackpoint without buttons", ["5", "", "3", ""], true, true),
        ("A touch screen", ["b", "400 0 0 0 0 0", "", ""], true, true),
        ("A device that sysfs does not describe", ["", "", "", ""], true, true),
    ];

    #[test]
    fn power_buttons_and_hotkeys_are_no_keyboard() {
        if usize::BITS != 64 {
            return;
        }
        for (name, maps, is_of_people, is_of_work) in DEVICES {
            let dir = tempfile::tempdir().expect("a directory");
            fs::create_dir(dir.path().join("capabilities")).expect("made");
            for (file, map) in ["ev", "key", "rel", "sw"].iter().zip(maps).filter(|(_, map)| !map.is_empty()) {
                fs::write(dir.path().join("capabilities").join(file), format!("{map}\n")).expect("written");
            }
            let described = Description::read(dir.path());
            assert_eq!((described.is_of_people(), described.is_of_work()), (is_of_people, is_of_work), "{name}");
        }
    }

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
