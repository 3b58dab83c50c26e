//! Files by the hash of their content, and the controllers that are such files.

use std::fmt;
use std::str::FromStr;

/// Most bytes of a file.
pub const FILE_BYTES_LIMIT: u64 = 1 << 30;

/// Most bytes of a file in one message; each piece but the last has so many where it is kept.
pub const FILE_PIECE_BYTES: usize = 1 << 20;

/// Most characters of a name that a job or a problem knows a file by.
pub const FILE_NAME_LIMIT: usize = 100;

/// Most files that a problem may make.
pub const OUTPUTS_LIMIT: usize = 100;

/// What an agent says that it runs if it runs modules, whichever they are.
pub const WASM: &str = "wasm";

/// Before the hash of a module, in the name of the controller that it is.
const MODULE_PREFIX: &str = "wasm:";

/// The SHA-256 of a file's content: its name everywhere.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileHash(pub [u8; 32]);

/// Why a text is not the name of a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a SHA-256 in 64 hexadecimal digits")]
pub struct NotAHash(pub String);

impl fmt::Display for FileHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for FileHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for FileHash {
    type Err = NotAHash;

    fn from_str(text: &str) -> Result<FileHash, NotAHash> {
        let wrong = || NotAHash(text.chars().take(80).collect());
        let mut hash = [0; 32];
        if text.len() != 64 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        for (byte, at) in hash.iter_mut().zip((0..).step_by(2)) {
            *byte = u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| wrong())?;
        }
        Ok(FileHash(hash))
    }
}

impl TryFrom<&[u8]> for FileHash {
    type Error = NotAHash;

    fn try_from(bytes: &[u8]) -> Result<FileHash, NotAHash> {
        bytes.try_into().map(FileHash).map_err(|_| NotAHash(format!("{} bytes", bytes.len())))
    }
}

/// Whether a job or a problem may know a file by this name: it becomes one in a directory, and is never a path, an option or hidden.
pub fn is_file_name(name: &str) -> bool {
    let sensible = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    (1..=FILE_NAME_LIMIT).contains(&name.len()) && name.bytes().all(sensible) && !name.starts_with(['.', '-'])
}

/// The module that a controller is, if it is one.
pub fn module_of(controller: &str) -> Option<Result<FileHash, NotAHash>> {
    controller.strip_prefix(MODULE_PREFIX).map(str::parse)
}

/// What an agent must say that it runs, to be given problems of this controller. `pcfarm.announced` says the same in SQL.
pub fn announced(controller: &str) -> &str {
    if controller.starts_with(MODULE_PREFIX) { WASM } else { controller }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_read_as_it_is_written() {
        let hash = FileHash(std::array::from_fn(|n| u8::try_from(n * 7).expect("below 256")));
        assert_eq!(hash.to_string().parse(), Ok(hash));
        assert_eq!(hash.to_string().to_uppercase().parse(), Ok(hash));
        assert_eq!(FileHash::try_from(&hash.0[..]), Ok(hash));
        let short = &hash.to_string()[1..];
        for wrong in ["", short, &format!("{short}g"), &format!("{short}é"), &format!("+{short}")] {
            assert!(wrong.parse::<FileHash>().is_err(), "{wrong}");
        }
        assert!(FileHash::try_from(&hash.0[1..]).is_err());
    }

    #[test]
    fn a_name_is_no_path_and_no_option() {
        for name in ["a", "0", "_", "out.png", "a-b_c.tar.gz", &"x".repeat(100)] {
            assert!(is_file_name(name), "{name}");
        }
        for name in ["", ".", "..", ".x", "-x", "a/b", "a b", "a\0", "é", &"x".repeat(101)] {
            assert!(!is_file_name(name), "{name}");
        }
    }

    #[test]
    fn all_modules_are_one_controller_to_agents() {
        let hash = FileHash([7; 32]);
        let controller = format!("wasm:{hash}");
        assert_eq!((announced(&controller), module_of(&controller)), ("wasm", Some(Ok(hash))));
        assert_eq!((announced("exec:wasm"), module_of("exec:wasm")), ("exec:wasm", None));
        assert!(matches!(module_of("wasm:x"), Some(Err(_))));
    }
}
