//! The files of an agent for controllers in Rust, most of which want none: opened by the first problem that does.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use anyhow::Context;
use pcfarm_proto::files::FileHash;

use super::Files;
use crate::named::{ProblemFile, Store};
use crate::settings::SettingsError;
use crate::work::CheckoutKey;

type Open = Box<dyn Fn() -> Result<Arc<Files>, SettingsError> + Send + Sync>;

pub struct Lazy {
    open: Open,
    opening: Mutex<()>,
    files: OnceLock<Arc<Files>>,
}

impl Lazy {
    /// `there` are those that somebody has opened already: nobody opens them twice.
    pub fn new(there: Option<Arc<Files>>, open: Open) -> Lazy {
        Lazy { open, opening: Mutex::default(), files: there.map_or_else(OnceLock::new, OnceLock::from) }
    }

    fn files(&self) -> anyhow::Result<&Files> {
        let _alone = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(files) = self.files.get() {
            return Ok(files);
        }
        let files = (self.open)().context("the agent's files")?;
        Ok(self.files.get_or_init(|| files))
    }
}

impl Store for Lazy {
    fn get(&self, hash: FileHash, of: CheckoutKey, cancelled: &dyn Fn() -> bool) -> anyhow::Result<ProblemFile<'_>> {
        let kept = self.files()?.get(hash, of, cancelled)?;
        Ok(ProblemFile::new(kept.path().to_owned(), Box::new(kept)))
    }
}
