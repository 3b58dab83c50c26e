//! The pool of one bounded dependency: a queue, and as many threads as it can serve.
//!
//! Its queue is bounded by the places that were taken before anything comes here. It survives whatever a step does: a
//! panic ends in its problem. A step that does not return keeps its thread, and nobody else gets it: what it called may
//! still be occupied as well.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tracing::{debug, error};

use super::budget::{Budget, Meter};
use super::climb::{Climb, Window};
use super::dependency::Bound;
use super::engine::Engine;
use super::flight::{Task, Where};
use crate::manners::Rank;

/// A thread that has had nothing to do for so long ends.
const IDLE: Duration = Duration::from_secs(30);

pub(super) struct StepPool {
    pub name: String,
    pub bound: Bound,
    index: usize,
    state: Mutex<State>,
    work: Condvar,
}

struct State {
    queue: VecDeque<Task>,
    threads: usize,
    idle: usize,
    climb: Climb,
    budget: Budget,
    /// A thread waits until the budget has something for it, and wakes others then.
    pausing: bool,
    /// Idle threads that are on their way.
    woken: usize,
    closing: bool,
    served: u64,
    most_threads: usize,
    most_queued: usize,
    window: Instant,
    served_before: u64,
    queued_before: bool,
}

/// What a pool does just now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolReport {
    pub name: String,
    /// Threads that it may have now; they come when they are needed.
    pub size: usize,
    pub busy: usize,
    pub queued: usize,
    /// Problems on their way to it, waiting for it or served, and how many there can be.
    pub taken: usize,
    pub places: usize,
    /// The most there ever were.
    pub most_taken: usize,
    pub most_threads: usize,
    pub most_queued: usize,
    pub served: u64,
}

impl State {
    /// What is taken of the budget for it, or how long to wait.
    fn may_begin(&mut self, engine: &Engine) -> Result<f64, Duration> {
        let now = Instant::now();
        if engine.cores_compute() { self.budget.begin(now) } else { Ok(self.budget.free(now)) }
    }

    fn may_begin_now(&mut self, engine: &Engine) -> usize {
        if engine.cores_compute() { self.budget.calls(Instant::now()) } else { usize::MAX }
    }
}

impl StepPool {
    /// One of so many, which use the cores at this rate together while there are computations.
    pub fn new(name: String, bound: Bound, index: usize, pools: usize, rate: f64) -> StepPool {
        let state = State {
            queue: VecDeque::new(),
            threads: 0,
            idle: 0,
            climb: Climb::new(bound.least, bound.most),
            budget: Budget::new(rate, pools, Instant::now()),
            pausing: false,
            woken: 0,
            closing: false,
            served: 0,
            most_threads: 0,
            most_queued: 0,
            window: Instant::now(),
            served_before: 0,
            queued_before: false,
        };
        StepPool { name, bound, index, state: Mutex::new(state), work: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no controller's code runs under this lock")
    }

    pub fn size(&self) -> usize {
        self.state().climb.size()
    }

    pub fn push(self: &Arc<Self>, engine: &Arc<Engine>, task: Task) {
        let mut state = self.state();
        if state.closing {
            drop(state);
            drop(task);
            return;
        }
        state.queue.push_back(task);
        state.most_queued = state.most_queued.max(state.queue.len());
        self.man(engine, state);
    }

    /// Wakes or starts a thread for what is queued, if one is needed and none is on its way.
    fn man(self: &Arc<Self>, engine: &Arc<Engine>, mut state: MutexGuard<'_, State>) {
        if state.pausing || state.woken >= state.queue.len() {
            return;
        }
        if state.idle > state.woken {
            state.woken += 1;
            drop(state);
            self.work.notify_one();
            return;
        }
        if state.threads >= state.climb.size() {
            return;
        }
        state.threads += 1;
        state.most_threads = state.most_threads.max(state.threads);
        drop(state);
        let (pool, engine) = (Arc::clone(self), Arc::clone(engine));
        let name = format!("pcfarm-{}", self.name);
        // Not awaited, as a core is not: a step that does not return must not keep an agent from ending.
        if let Err(error) = std::thread::Builder::new().name(name).spawn(move || pool.serve(&engine)) {
            self.state().threads -= 1;
            error!(pool = self.name, error = %error, "a thread could not be started; what waits is tried again in a second");
        }
    }

    fn serve(self: &Arc<Self>, engine: &Arc<Engine>) {
        // It waits, by and large, beside perhaps hundreds of others: where they and the cores' threads want the same core, what
        // computes goes first.
        Rank::Guest.take();
        let mut meter = Meter::start();
        let mut taken = None;
        while let Some(task) = self.next(engine, &mut meter, &mut taken) {
            // Steps' own panics have ended in their problems by then; what is left are destructors.
            if catch_unwind(AssertUnwindSafe(|| engine.run(task, Where::Pool(self.index)))).is_err() {
                error!(pool = self.name, "something panicked that a step left behind");
            }
        }
    }

    /// None: the thread is to end, and is not counted any more. `taken`: of the budget, for what it has done since.
    fn next(self: &Arc<Self>, engine: &Arc<Engine>, meter: &mut Meter, taken: &mut Option<f64>) -> Option<Task> {
        let used = meter.lap();
        let mut state = self.state();
        if let Some(taken) = taken.take() {
            state.budget.settle(taken, used);
        }
        loop {
            if state.closing || state.threads > state.climb.size() {
                state.threads -= 1;
                if state.woken == 0 {
                    self.man(engine, state);
                }
                return None;
            }
            let mut wait = IDLE;
            if !state.queue.is_empty() {
                match state.may_begin(engine) {
                    Ok(of_budget) => {
                        *taken = Some(of_budget);
                        state.served += 1;
                        let task = state.queue.pop_front();
                        if state.woken == 0 {
                            self.man(engine, state);
                        }
                        return task;
                    }
                    Err(pause) if !state.pausing => wait = pause,
                    Err(_) => {}
                }
            }
            let pauses = wait < IDLE;
            state.pausing |= pauses;
            state.idle += 1;
            let (woken, timed_out) =
                self.work.wait_timeout(state, wait).expect("no controller's code runs under this lock");
            state = woken;
            state.idle -= 1;
            // Woken or not: one too many is woken now and then, and never one too few.
            state.woken = state.woken.saturating_sub(1);
            if pauses {
                state.pausing = false;
                let others = state.may_begin_now(engine).min(state.queue.len()).saturating_sub(1);
                drop(state);
                (0..others).for_each(|_| self.man(engine, self.state()));
                state = self.state();
            } else if timed_out.timed_out() && state.queue.is_empty() {
                state.threads -= 1;
                return None;
            }
        }
    }

    /// Takes out what nobody wants any more, to be dropped where no lock is held.
    pub fn sweep(&self) -> Vec<Task> {
        let mut state = self.state();
        let (dead, alive): (VecDeque<Task>, _) = std::mem::take(&mut state.queue).into_iter().partition(Task::is_dead);
        state.queue = alive;
        dead.into()
    }

    /// It has something to do, or had since it was tended last.
    pub fn is_active(&self) -> bool {
        let state = self.state();
        !state.queue.is_empty() || state.idle < state.threads || state.served > state.served_before
    }

    /// Every second: sees to its size, and to its part of the cores' time as one of so many that are active.
    pub fn tend(self: &Arc<Self>, engine: &Arc<Engine>, active: usize) {
        let mut state = self.state();
        state.budget.share(engine.pools_rate(), active);
        let queued = !state.queue.is_empty();
        let window = Window {
            served: state.served - state.served_before,
            time: state.window.elapsed(),
            saturated: queued && state.queued_before,
        };
        let before = state.climb.size();
        let size = state.climb.measured(window);
        (state.window, state.served_before, state.queued_before) = (Instant::now(), state.served, queued);
        if size != before {
            debug!(pool = self.name, size, before, served = window.served, "another size is tried");
        }
        if size < before {
            self.work.notify_all();
        }
        // As many as are missing; and whoever was woken in vain is not waited for.
        state.woken = 0;
        let missing = state.queue.len().min(size);
        drop(state);
        for _ in 0..missing {
            self.man(engine, self.state());
        }
    }

    /// Its threads end as soon as they return, and what is queued is dropped by the caller.
    pub fn close(&self) -> Vec<Task> {
        let mut state = self.state();
        state.closing = true;
        let left = std::mem::take(&mut state.queue);
        drop(state);
        self.work.notify_all();
        left.into()
    }

    pub fn report(&self, taken: usize, most_taken: usize) -> PoolReport {
        let state = self.state();
        PoolReport {
            name: self.name.clone(),
            size: state.climb.size(),
            busy: state.threads - state.idle,
            queued: state.queue.len(),
            taken,
            places: self.bound.places(),
            most_taken,
            most_threads: state.most_threads,
            most_queued: state.most_queued,
            served: state.served,
        }
    }
}
