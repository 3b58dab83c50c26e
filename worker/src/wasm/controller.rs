//! Problems to instances, on the cores of the agent.
//!
//! Owns the instances that wait for another problem of their convoy. Like any controller it is called on the agent's cores and
//! asks whether its work is still wanted.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, ensure};
use pcfarm_proto::files::{WASM, module_of};
use serde_json::value::RawValue;
use tracing::info;

use crate::controller::{Controller, Problem};
use crate::fed::failure::message;
use crate::fed::lines;
use crate::files::Files;
use crate::settings::SettingsError;
use crate::solve::Controllers;
use crate::wasm::instance::{Asked, Instance};
use crate::wasm::modules::Modules;
use crate::wasm::settings::{Limits, WAITING_BY_CORE, WasmError};
use crate::wasm::ticker::Ticker;
use crate::work::CheckoutKey;

/// Gives an agent the controller `wasm`. `binary` is this program, if it can be started as a compiler.
pub fn add(
    files: Arc<Files>,
    binary: Option<PathBuf>,
    (limits, cores): (Limits, usize),
    controllers: &mut Controllers,
) -> Result<(), SettingsError> {
    let wrong = |why: String| SettingsError::Wasm(WasmError::Machine(why));
    let modules = Modules::new(files, binary).map_err(|error| wrong(format!("{error:#}")))?;
    let waiting = Arc::<Waiting>::default();
    let (engine, idle) = (modules.engine().clone(), Arc::clone(&waiting));
    let ticker = Ticker::start(move || engine.increment_epoch(), move || drop(idle.take_all()));
    let ticker = ticker.map_err(|error| wrong(error.to_string()))?;
    info!(memory_mib = limits.memory_bytes >> 20, time_limit = ?limits.time, "modules are run");
    let wasm = Wasm { modules, limits, ticker, waiting, most_waiting: cores * WAITING_BY_CORE };
    if controllers.add_as(WASM.to_owned(), wasm) {
        Ok(())
    } else {
        Err(SettingsError::DuplicateController(WASM.to_owned()))
    }
}

struct Wasm {
    modules: Modules,
    limits: Limits,
    ticker: Ticker,
    waiting: Arc<Waiting>,
    most_waiting: usize,
}

/// Whose instance it is: problems of one batch order and one checkout are a convoy.
type Convoy = (CheckoutKey, i64);

/// In the order in which they came.
#[derive(Default)]
struct Waiting(Mutex<Vec<(Convoy, Instance)>>);

impl Waiting {
    fn all(&self) -> MutexGuard<'_, Vec<(Convoy, Instance)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, of: &Convoy) -> Option<Instance> {
        let mut all = self.all();
        let at = all.iter().rposition(|(convoy, _)| convoy == of)?;
        Some(all.swap_remove(at).1)
    }

    /// Returns the one that must go: to end it may take a moment, which nobody else should wait for.
    fn put(&self, of: Convoy, instance: Instance, most: usize) -> Option<(Convoy, Instance)> {
        let mut all = self.all();
        let over = (all.len() >= most).then(|| all.remove(0));
        all.push((of, instance));
        over
    }

    fn take_all(&self) -> Vec<(Convoy, Instance)> {
        std::mem::take(&mut *self.all())
    }

    /// Those of a convoy that needs none any more.
    fn take_of(&self, of: &Convoy) -> Vec<(Convoy, Instance)> {
        self.all().extract_if(.., |(convoy, _)| convoy == of).collect()
    }
}

impl Controller for Wasm {
    const NAME: &'static str = WASM;
    type Payload = Box<RawValue>;
    type Solution = Box<RawValue>;

    fn solve(&self, problem: &Problem<'_, Box<RawValue>>) -> anyhow::Result<Box<RawValue>> {
        let convoy = (problem.checkout.key, problem.message.batch_order);
        let mut instance = match self.waiting.take(&convoy) {
            Some(instance) => instance,
            None => {
                let controller = &problem.checkout.controller;
                let Some(hash) = module_of(controller) else { bail!("controller {controller} names no module") };
                let module = self.modules.get(hash?, convoy.0, &|| problem.cancelled())?;
                Instance::new(&module, self.limits)
            }
        };
        let question = lines::question(problem, None)?;
        let id = problem.problem_id().to_string();
        let asked = {
            let mut watched = Some(self.ticker.watch());
            let stand_still = || {
                if !problem.checkout.is_frozen() {
                    return Duration::ZERO;
                }
                // Nothing ticks meanwhile.
                drop(watched.take());
                let since = Instant::now();
                problem.checkout.stand_still();
                watched = Some(self.ticker.watch());
                since.elapsed()
            };
            instance.ask(question, &id, || problem.cancelled(), stand_still)
        };
        let words = instance.words();
        match asked {
            Asked::Answered(line, can_go_on) => {
                if problem.checkout.next_batch_order() != Some(convoy.1) {
                    drop(self.waiting.take_of(&convoy));
                } else if can_go_on {
                    drop(self.waiting.put(convoy, instance, self.most_waiting));
                }
                let answer = lines::answer(problem, &line, &words)?;
                ensure!(answer.files.is_none(), "a module has no files, and its answer names some");
                Ok(answer.result)
            }
            Asked::Failed(trouble) => Err(anyhow!(message(&trouble.to_string(), &words))),
            Asked::Cancelled => bail!("cancelled"),
        }
    }
}
