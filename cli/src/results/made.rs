//! Files that problems have made, beside their results: `DIR/KEY/NAME`.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use pcfarm_proto::files::{FILE_PIECE_BYTES, FileHash, is_file_name};
use pcfarm_proto::v1::ProblemOutcome;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::farm::Farm;
use crate::files;

/// Longest name of a directory; keys may be longer.
const DIRECTORY_LIMIT: usize = 200;

/// Where they go, and how many there are.
pub struct Made {
    pub directory: PathBuf,
    pub count: i64,
}

/// The part of a solution that says what came with it.
#[derive(Deserialize)]
struct Solution {
    files: BTreeMap<String, OfFarm>,
}

#[derive(Deserialize)]
struct OfFarm {
    sha256: String,
}

impl Made {
    pub fn to(directory: &Path) -> Result<Made> {
        fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
        Ok(Made { directory: directory.to_owned(), count: 0 })
    }

    /// Gets those of one problem. A solution of another form has none.
    pub async fn get(&mut self, farm: &Farm, outcome: &ProblemOutcome) -> Result<()> {
        if outcome.outcome != "done" {
            return Ok(());
        }
        let Ok(solution) = serde_json::from_slice::<Solution>(&outcome.result) else { return Ok(()) };
        let directory = self.directory.join(directory_name(&outcome.key, outcome.problem_id));
        for (name, file) in solution.files {
            let Some(hash) = file.sha256.parse::<FileHash>().ok().filter(|_| is_file_name(&name)) else { continue };
            fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
            let path = directory.join(&name);
            if !is_there(&path, hash) {
                files::download(farm, hash, Some(&path)).await?;
            }
            self.count += 1;
        }
        Ok(())
    }
}

/// Whether an earlier run has got it.
fn is_there(path: &Path, hash: FileHash) -> bool {
    let Ok(mut file) = fs::File::open(path) else { return false };
    let (mut digest, mut piece) = (Sha256::new(), vec![0; FILE_PIECE_BYTES]);
    while let Ok(came @ 1..) = file.read(&mut piece) {
        digest.update(&piece[..came]);
    }
    FileHash(digest.finalize().into()) == hash
}

/// A key as the name of a directory. Two keys never have the same: what is not plain is written as `%` and two digits, and one that is
/// too long ends with its problem's id.
fn directory_name(key: &str, problem_id: i64) -> String {
    let mut name = String::new();
    for (at, byte) in key.bytes().enumerate() {
        let plain = byte.is_ascii_alphanumeric() || b"_-".contains(&byte) || (byte == b'.' && at > 0);
        match plain {
            true => name.push(char::from(byte)),
            false => name.push_str(&format!("%{byte:02x}")),
        }
    }
    if name.is_empty() || name.len() > DIRECTORY_LIMIT {
        name.truncate(DIRECTORY_LIMIT);
        name.push_str(&format!("%-{problem_id}"));
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_directory_whatever_it_is() {
        for (key, expected) in [
            ("7", "7"),
            ("2026-11-23.a_b", "2026-11-23.a_b"),
            ("..", "%2e."),
            ("../../etc", "%2e.%2f..%2fetc"),
            ("a/b%", "a%2fb%25"),
            ("é", "%c3%a9"),
            ("", "%-9"),
        ] {
            assert_eq!(directory_name(key, 9), expected, "{key}");
        }
        let long = directory_name(&"x".repeat(1000), 9);
        assert!(long.len() < 255 && long.ends_with("x%-9"), "{long}");
    }
}
