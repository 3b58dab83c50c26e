//! From a hash to compiled code: once for an agent, whichever core asks first.
//!
//! Owns the compiler, and what it has compiled last. Compiled code is kept in memory alone: to load it from a disk is to trust
//! whoever may write there, as it is not checked again. A compiler cannot be interrupted, so it works on a thread of its own,
//! one module at a time, and whoever waits for it can still be cancelled.

use std::collections::HashMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use pcfarm_proto::files::FileHash;
use sha2::{Digest, Sha256};
use tracing::{info, warn};
use wasmtime::{Config, Engine, InstancePre, Module};

use crate::files::Files;
use crate::wasm::preview1::{self, Host};
#[cfg(target_os = "linux")]
use crate::wasm::rehearsal;
use crate::wasm::sections::{self, MODULE_BYTES_LIMIT};
use crate::work::CheckoutKey;

/// Modules that stay compiled, and how large all of them together were before.
const COMPILED_LIMIT: usize = 64;
const COMPILED_BYTES_LIMIT: usize = 256 << 20;

/// How often who waits asks whether it is still wanted.
const STEP: Duration = Duration::from_millis(20);

/// After a compiler that was ended from outside: who does so goes on, and is not to fail a whole job in the blink of an eye.
#[cfg(target_os = "linux")]
const INTERRUPTED_PAUSE: Duration = Duration::from_secs(1);

/// A module's own stack, and what is left for what it calls.
const WASM_STACK_BYTES: usize = 1 << 20;
const STACK_BYTES: usize = 2 << 20;

/// A spoilt file is fetched again, once.
const TRIES: u32 = 2;

pub struct Modules {
    files: Arc<Files>,
    engine: Engine,
    binary: Option<PathBuf>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    shelf: Mutex<Shelf>,
    changed: Condvar,
}

#[derive(Default)]
struct Shelf {
    /// Counts uses.
    now: u64,
    known: HashMap<FileHash, Known>,
    /// Whether the compiler is.
    at_work: bool,
}

struct Known {
    used_at: u64,
    /// Of the file.
    bytes: usize,
    outcome: Result<InstancePre<Host>, Objection>,
    since: Instant,
}

impl Known {
    /// Whether it is an answer for somebody who asked at that time.
    fn holds_for(&self, asked: Instant) -> bool {
        match self.outcome {
            Ok(_) | Err(Objection::ForGood(_)) => true,
            #[cfg(target_os = "linux")]
            Err(Objection::Interrupted(_)) => self.since >= asked,
        }
    }
}

/// Why a module cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Objection {
    /// Its content is its name.
    #[error("{0}")]
    ForGood(String),
    /// Only who waits now is told so.
    #[cfg(target_os = "linux")]
    #[error("the module's compiler was ended by signal {0}, from outside: the next problem tries again")]
    Interrupted(i32),
}

/// Lets go of the compiler.
struct AtWork(Arc<Shared>);

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.shelf().at_work = false;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Modules {
    /// `binary` is this program, if it can be started as a compiler.
    pub fn new(files: Arc<Files>, binary: Option<PathBuf>) -> anyhow::Result<Modules> {
        Ok(Modules { files, engine: engine()?, binary, shared: Arc::default() })
    }

    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// A module, ready to be run.
    pub fn get(
        &self,
        hash: FileHash,
        of: CheckoutKey,
        is_cancelled: &dyn Fn() -> bool,
    ) -> anyhow::Result<InstancePre<Host>> {
        let asked = Instant::now();
        let mut content = None;
        let mut shelf = self.shared.shelf();
        loop {
            shelf.now += 1;
            let now = shelf.now;
            if let Some(known) = shelf.known.get_mut(&hash).filter(|known| known.holds_for(asked)) {
                known.used_at = now;
                return known.outcome.clone().map_err(|why| anyhow!(why));
            }
            if is_cancelled() {
                bail!("cancelled");
            }
            let Some(bytes) = content.take() else {
                // Who waits for one from the farm does not hold up others that are here.
                drop(shelf);
                content = Some(Arc::new(self.read(hash, of, is_cancelled)?));
                shelf = self.shared.shelf();
                continue;
            };
            if !shelf.at_work {
                shelf.at_work = true;
                drop(shelf);
                self.compile(hash, Arc::clone(&bytes), AtWork(Arc::clone(&self.shared)))?;
                content = Some(bytes);
                shelf = self.shared.shelf();
                continue;
            }
            content = Some(bytes);
            shelf = self.shared.changed.wait_timeout(shelf, STEP).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn read(&self, hash: FileHash, of: CheckoutKey, is_cancelled: &dyn Fn() -> bool) -> anyhow::Result<Vec<u8>> {
        for _ in 0..TRIES {
            let kept = self.files.get(hash, of, is_cancelled)?;
            let bytes = fs::metadata(kept.path()).map_or(0, |metadata| metadata.len());
            if bytes > MODULE_BYTES_LIMIT {
                bail!("the module has {} MiB; at most {} MiB can be", bytes >> 20, MODULE_BYTES_LIMIT >> 20);
            }
            match fs::read(kept.path()) {
                Ok(content) if FileHash(Sha256::digest(&content).into()) == hash => return Ok(content),
                Ok(_) | Err(_) => kept.spoilt(),
            }
        }
        bail!("module {hash} is not what it was as soon as it is here: this workstation's disk fails")
    }

    /// Begins to.
    fn compile(&self, hash: FileHash, bytes: Arc<Vec<u8>>, at_work: AtWork) -> anyhow::Result<()> {
        let (engine, binary) = (self.engine.clone(), self.binary.clone());
        let work = move || {
            let began = Instant::now();
            let make = || match against(binary.as_deref(), &bytes) {
                None => compiled(&engine, &bytes).map_err(Objection::ForGood),
                Some(why) => Err(why),
            };
            // A bug of the compiler is that module's, and would be the same the next time. What it leaves of the engine is caches.
            let failed = || Objection::ForGood("the module cannot be compiled: the compiler failed".to_owned());
            let outcome = catch_unwind(AssertUnwindSafe(make)).unwrap_or_else(|_| Err(failed()));
            match &outcome {
                Ok(_) => {
                    info!(module = %hash, bytes = bytes.len(), ms = began.elapsed().as_millis(), "a module was compiled")
                }
                Err(why) => warn!(module = %hash, %why, "a module cannot be run"),
            }
            #[cfg(target_os = "linux")]
            if let Err(Objection::Interrupted(_)) = &outcome {
                thread::sleep(INTERRUPTED_PAUSE);
            }
            at_work.0.shelf().put(hash, bytes.len(), outcome);
            drop(at_work);
        };
        thread::Builder::new().name("pcfarm-compiler".to_owned()).spawn(work).context("starting the compiler")?;
        Ok(())
    }
}

impl Shelf {
    fn put(&mut self, hash: FileHash, bytes: usize, outcome: Result<InstancePre<Host>, Objection>) {
        self.now += 1;
        self.known.insert(hash, Known { used_at: self.now, bytes, outcome, since: Instant::now() });
        let is_full = |known: &HashMap<FileHash, Known>| {
            known.len() > COMPILED_LIMIT || known.values().map(|one| one.bytes).sum::<usize>() > COMPILED_BYTES_LIMIT
        };
        while self.known.len() > 1 && is_full(&self.known) {
            let oldest = self.known.iter().min_by_key(|(_, one)| one.used_at).map(|(&hash, _)| hash);
            oldest.and_then(|hash| self.known.remove(&hash));
        }
    }
}

/// What every module here is compiled for.
pub fn engine() -> anyhow::Result<Engine> {
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        .max_wasm_stack(WASM_STACK_BYTES)
        .async_stack_size(STACK_BYTES)
        // One memory, with addresses of 32 bits, so that a limit is a limit; and nothing that differs from machine to machine.
        .wasm_multi_memory(false)
        .wasm_memory64(false)
        .wasm_relaxed_simd(false);
    Engine::new(&config).map_err(|error| anyhow!("{error:#}"))
}

/// Why a module is not compiled.
#[cfg_attr(not(target_os = "linux"), allow(unused_variables, reason = "its size is what is known elsewhere"))]
fn against(binary: Option<&Path>, bytes: &[u8]) -> Option<Objection> {
    if let Some(why) = sections::against(bytes) {
        return Some(Objection::ForGood(why));
    }
    #[cfg(target_os = "linux")]
    if let Some(why) = binary.and_then(|binary| rehearsal::against(binary, bytes)) {
        return Some(why);
    }
    None
}

/// Or why it cannot be run, on any machine.
fn compiled(engine: &Engine, bytes: &[u8]) -> Result<InstancePre<Host>, String> {
    let module = Module::new(engine, bytes).map_err(|error| format!("the module cannot be compiled: {error:#}"))?;
    let command = module
        .get_export("_start")
        .and_then(|export| export.func().map(|its| its.params().len() + its.results().len()));
    if command != Some(0) {
        return Err(
            "the module has no function _start to begin with: build it as a command, for wasm32-wasip1".to_owned()
        );
    }
    if module.get_export("memory").is_none_or(|export| export.memory().is_none()) {
        return Err("the module exports no memory".to_owned());
    }
    let linked = preview1::linker(&module).and_then(|linker| linker.instantiate_pre(&module));
    linked.map_err(|error| match error.downcast_ref::<preview1::NotGiven>() {
        Some(not_given) => not_given.to_string(),
        None => format!("the module cannot be linked: {error:#}"),
    })
}
