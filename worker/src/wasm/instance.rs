//! One run of a module, question by question.
//!
//! Owns its memory and its stack, which stands still between two questions. Dropped, nothing of it is left.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use wasmtime::{InstancePre, ResourceLimiter, Store, Trap};

use crate::fed::ANSWER_BYTES_LIMIT;
use crate::fed::failure::{Exit, Failure, Milliseconds, cite};
use crate::fed::lines::{Kind, kind};
use crate::wasm::preview1::{Exited, Host, Pipes, locked};
use crate::wasm::settings::Limits;

/// Of an entry of a table: a function that can be called by address.
const ENTRY_BYTES: u64 = 8;

/// What a command begins with.
const START: &str = "_start";

pub struct Instance {
    run: Pin<Box<dyn Future<Output = wasmtime::Result<()>> + Send>>,
    pipes: Arc<Mutex<Pipes>>,
    /// Set when it has been refused memory, to as much as it wanted.
    wanted: Arc<Mutex<Option<u64>>>,
    limits: Limits,
}

/// How a question ended.
pub enum Asked {
    /// The answer's line, and whether the instance can be asked again.
    Answered(Vec<u8>, bool),
    Failed(Trouble),
    Cancelled,
}

/// What went wrong; the instance is of no use any more.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    #[error("{0}")]
    Program(Failure),
    #[error("the program has crashed: {0}")]
    Crashed(String),
    #[error("the program wanted {} MiB of memory; its limit is {} MiB", .wanted.div_ceil(1 << 20), .limit >> 20)]
    Memory { wanted: u64, limit: u64 },
    #[error(
        "the program asked for its next question before it answered this one: does it write a whole line, and at once?"
    )]
    NextBeforeAnswer,
}

/// Counts what an instance takes, memory and tables together.
pub struct Limiter {
    memory_bytes: u64,
    taken: u64,
    wanted: Arc<Mutex<Option<u64>>>,
}

impl Limiter {
    pub fn new(memory_bytes: u64) -> Limiter {
        Limiter { memory_bytes, taken: 0, wanted: Arc::default() }
    }

    fn take(&mut self, more: u64) -> bool {
        let wanted = self.taken.saturating_add(more);
        let is_given = wanted <= self.memory_bytes;
        if is_given {
            self.taken = wanted;
        } else {
            *self.wanted.lock().expect("nothing panics under this lock") = Some(wanted);
        }
        is_given
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(self.take(desired.saturating_sub(current) as u64))
    }

    fn table_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(self.take(ENTRY_BYTES.saturating_mul(desired.saturating_sub(current) as u64)))
    }

    fn instances(&self) -> usize {
        1
    }

    fn tables(&self) -> usize {
        8
    }

    fn memories(&self) -> usize {
        1
    }
}

impl Instance {
    /// Nothing runs until it is asked.
    pub fn new(module: &InstancePre<Host>, limits: Limits) -> Instance {
        let pipes = Arc::<Mutex<Pipes>>::default();
        let host = Host::new(Arc::clone(&pipes), limits.memory_bytes);
        let wanted = Arc::clone(&host.limiter.wanted);
        let mut store = Store::new(module.module().engine(), host);
        store.limiter(|host| &mut host.limiter);
        store.epoch_deadline_async_yield_and_update(1);
        store.set_epoch_deadline(1);
        let module = module.clone();
        let run = Box::pin(async move {
            let instance = module.instantiate_async(&mut store).await?;
            let start = instance.get_typed_func::<(), ()>(&mut store, START)?;
            start.call_async(&mut store, ()).await
        });
        Instance { run, pipes, wanted, limits }
    }

    /// Puts a question to it, a line without its end, and lets it run on this thread until it asks for the next one. It is
    /// asked a hundred times a second whether it is to stand still, which says for how long it did.
    pub fn ask(
        &mut self,
        mut line: Vec<u8>,
        id: &str,
        is_cancelled: impl Fn() -> bool,
        mut stand_still: impl FnMut() -> Duration,
    ) -> Asked {
        let mut until = self.limits.time.and_then(|limit| Instant::now().checked_add(limit));
        line.push(b'\n');
        locked(&self.pipes).feed(line);
        let mut answer = None;
        loop {
            let polled = self.run.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            if let Err(failure) = take_lines(&mut locked(&self.pipes), id, &mut answer) {
                return Asked::Failed(Trouble::Program(failure));
            }
            match polled {
                Poll::Ready(ended) => return self.ended(ended, answer),
                Poll::Pending if locked(&self.pipes).is_hungry => return self.paused(answer),
                Poll::Pending => {}
            }
            let stood = stand_still();
            until = until.and_then(|until| until.checked_add(stood));
            if is_cancelled() {
                return Asked::Cancelled;
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                let limit = self.limits.time.unwrap_or(Duration::MAX).as_millis();
                let limit = Milliseconds(u64::try_from(limit).unwrap_or(u64::MAX));
                return Asked::Failed(Trouble::Program(Failure::TimedOut(limit)));
            }
        }
    }

    /// The end of what it wrote to standard error since it was last asked for it.
    pub fn words(&self) -> String {
        locked(&self.pipes).tail.take()
    }

    /// It waits for another question.
    fn paused(&self, answer: Option<Vec<u8>>) -> Asked {
        let rest = std::mem::take(&mut locked(&self.pipes).out);
        match answer {
            Some(_) if !rest.is_empty() => Asked::Failed(Trouble::Program(Failure::ExtraOutput(cite(&rest)))),
            Some(answer) => Asked::Answered(answer, true),
            None if !rest.is_empty() => {
                let how = "it asks for its next question".to_owned();
                Asked::Failed(Trouble::Program(Failure::HalfLine { bytes: rest.len(), how }))
            }
            None => Asked::Failed(Trouble::NextBeforeAnswer),
        }
    }

    fn ended(&self, ended: wasmtime::Result<()>, answer: Option<Vec<u8>>) -> Asked {
        let mut pipes = locked(&self.pipes);
        if let Some(failure) = pipes.failure.take() {
            return Asked::Failed(Trouble::Program(failure));
        }
        let exit = match ended {
            Ok(()) => 0,
            Err(error) => match error.downcast_ref::<Exited>() {
                Some(Exited(code)) => *code,
                None => return Asked::Failed(self.crashed(&error)),
            },
        };
        let rest = std::mem::take(&mut pipes.out);
        match answer {
            Some(_) if !rest.is_empty() => Asked::Failed(Trouble::Program(Failure::ExtraOutput(cite(&rest)))),
            Some(answer) => Asked::Answered(answer, false),
            None if !rest.is_empty() => {
                let how = format!("the program {}", Exit::Code(exit));
                Asked::Failed(Trouble::Program(Failure::HalfLine { bytes: rest.len(), how }))
            }
            None => {
                let otherwise = Trouble::Program(Failure::EndedUnanswered(Exit::Code(exit)));
                Asked::Failed(self.out_of_memory().filter(|_| exit != 0).unwrap_or(otherwise))
            }
        }
    }

    fn crashed(&self, error: &wasmtime::Error) -> Trouble {
        // Who is refused memory mostly gives up in some way of its own.
        if let Some(trouble) = self.out_of_memory() {
            return trouble;
        }
        Trouble::Crashed(match error.downcast_ref::<Trap>() {
            Some(trap) => trap.to_string().trim_start_matches("wasm trap: ").to_owned(),
            None => format!("{error:#}"),
        })
    }

    fn out_of_memory(&self) -> Option<Trouble> {
        let wanted = *self.wanted.lock().expect("nothing panics under this lock");
        wanted.map(|wanted| Trouble::Memory { wanted, limit: self.limits.memory_bytes })
    }
}

/// Takes whole lines out of what it has written, of which one is the answer.
fn take_lines(pipes: &mut Pipes, id: &str, answer: &mut Option<Vec<u8>>) -> Result<(), Failure> {
    let mut taken = 0;
    let mut from = pipes.looked_at.min(pipes.out.len());
    while let Some(length) = pipes.out[from..].iter().position(|&byte| byte == b'\n') {
        let end = from + length;
        let line = &pipes.out[taken..end];
        if answer.is_some() {
            return Err(Failure::ExtraOutput(cite(line)));
        }
        if line.len() > ANSWER_BYTES_LIMIT {
            return Err(Failure::TooMuchOutput(ANSWER_BYTES_LIMIT));
        }
        match kind(line, id)? {
            Kind::Progress => {}
            Kind::Answer => *answer = Some(line.to_vec()),
        }
        (taken, from) = (end + 1, end + 1);
    }
    pipes.out.drain(..taken);
    pipes.looked_at = pipes.out.len();
    if pipes.out.len() > ANSWER_BYTES_LIMIT {
        return Err(Failure::TooMuchOutput(ANSWER_BYTES_LIMIT));
    }
    Ok(())
}
