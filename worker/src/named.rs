//! Files by the names that problems know them by: those of their job, and those that their payloads name.
//!
//! Owns what a controller in Rust sees of a file. Where contents come from, and how long they stay, is a [`Store`]'s to know.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use pcfarm_proto::files::{FileHash, is_file_name};
use serde::Deserialize;

use crate::work::{Checkout, CheckoutKey};

/// A file of a problem or its job, read-only. It stays where it is for as long as this lives.
pub struct ProblemFile<'a> {
    path: PathBuf,
    _kept: Box<dyn Send + 'a>,
}

impl fmt::Debug for ProblemFile<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProblemFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl<'a> ProblemFile<'a> {
    pub(crate) fn new(path: PathBuf, kept: Box<dyn Send + 'a>) -> ProblemFile<'a> {
        ProblemFile { path, _kept: kept }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All of it.
    pub fn read(&self) -> anyhow::Result<Vec<u8>> {
        std::fs::read(&self.path).with_context(|| format!("reading {}", self.path.display()))
    }
}

/// Where contents come from: the farm, or a test.
pub trait Store: Send + Sync {
    /// Waits until it is here, for as long as it is wanted.
    fn get(&self, hash: FileHash, of: CheckoutKey, cancelled: &dyn Fn() -> bool) -> anyhow::Result<ProblemFile<'_>>;
}

/// What a payload says about files, whatever else it says.
#[derive(Deserialize)]
struct Naming {
    files: Option<BTreeMap<String, String>>,
}

/// The files of a problem by their names: its own, and those of its job that it has none of the same name for.
pub fn files(checkout: &Checkout, payload: &[u8]) -> anyhow::Result<BTreeMap<String, FileHash>> {
    let mut all = BTreeMap::new();
    for file in &checkout.files {
        ensure!(is_file_name(&file.name), "{:?} is no name of a file", file.name);
        all.insert(file.name.clone(), FileHash::try_from(&file.sha256[..])?);
    }
    // Anything else than an object names none.
    if checkout.problem_files && payload.trim_ascii_start().starts_with(b"{") {
        let own: Naming = serde_json::from_slice(payload).context("the payload's files are no names and SHA-256")?;
        for (name, hash) in own.files.into_iter().flatten() {
            ensure!(is_file_name(&name), "{name:?} is no name of a file");
            let hash = hash.parse().with_context(|| format!("file {name}"))?;
            all.insert(name, hash);
        }
    }
    Ok(all)
}

/// The one of this name.
pub fn file<'a>(
    checkout: &'a Checkout,
    payload: &[u8],
    name: &str,
    cancelled: &dyn Fn() -> bool,
) -> anyhow::Result<ProblemFile<'a>> {
    let all = files(checkout, payload)?;
    let hash = *all.get(name).with_context(|| format!("neither the problem nor its job has a file {name:?}"))?;
    let store = checkout.store().context("this agent has no files")?;
    store.get(hash, checkout.key, cancelled).with_context(|| format!("file {name}"))
}

#[cfg(test)]
mod tests {
    use pcfarm_proto::v1;

    use super::*;

    fn named(problem_files: bool, payload: &str) -> Result<Vec<(String, u8)>, String> {
        let of_job = |name: &str| v1::JobFile { name: name.to_owned(), sha256: vec![1; 32].into() };
        let files = vec![of_job("a"), of_job("b")];
        let checkout = Checkout::new(v1::Checkout { files, problem_files, ..v1::Checkout::default() });
        let all = super::files(&checkout, payload.as_bytes()).map_err(|error| format!("{error:#}"))?;
        Ok(all.into_iter().map(|(name, hash)| (name, hash.0[0])).collect())
    }

    #[test]
    fn a_problems_own_files_are_before_its_jobs() {
        let of_job = Ok(vec![("a".to_owned(), 1), ("b".to_owned(), 1)]);
        let own = format!(" {{\"n\": [1], \"files\": {{\"b\": \"{0}\", \"c.txt\": \"{0}\"}}}}", "02".repeat(32));
        let both = vec![("a".to_owned(), 1), ("b".to_owned(), 2), ("c.txt".to_owned(), 2)];
        assert_eq!(named(true, &own), Ok(both));
        assert_eq!(named(false, &own), of_job, "the job does not say that payloads name files");
        for without in ["7", "null", "[\"files\"]", "\"files\"", "{}", "{\"files\": null}"] {
            assert_eq!(named(true, without), of_job, "{without}");
        }
        for wrong in ["{\"files\": 7}", "{\"files\": {\"x\": \"00\"}}", "{\"files\": {\"x\": 7}}"] {
            named(true, wrong).expect_err(wrong);
        }
        let up = format!("{{\"files\": {{\"../x\": \"{}\"}}}}", "02".repeat(32));
        assert_eq!(named(true, &up), Err("\"../x\" is no name of a file".to_owned()));
    }
}
