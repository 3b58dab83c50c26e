//! What a module may call: of WASI preview 1 as much as a program needs that reads lines and writes lines.
//!
//! All else of preview 1 is there and does nothing but say that it cannot, so that programs which could use files, if they had
//! any, are run all the same. What is beyond preview 1 is not there, and a module that wants it is refused.
//!
//! Nothing here takes long, whatever it is given: what reads or writes does so for a bounded number of bytes, as it may, and is
//! called again.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Instant, SystemTime};

use rand::Rng;
use wasmtime::{Caller, Error, ExternType, FuncType, Linker, Memory, Module, Result, Val, ValType};

use crate::fed::ANSWER_BYTES_LIMIT;
use crate::fed::failure::{Failure, Tail, cite};
use crate::wasm::instance::Limiter;

const WASI: &str = "wasi_snapshot_preview1";

/// Most bytes and most pieces that one call reads or writes.
const GULP: usize = 64 << 10;
const PIECES: usize = 128;

/// An answer is taken out of what was written when there is so much.
const OUT_TARGET: usize = 64 << 10;

/// The clock's steps, in nanoseconds: what is measured more finely than that is the machine, and nothing of the problem's.
const CLOCK_STEP_NS: u64 = 1_000_000;

const SUCCESS: i32 = 0;
const BADF: i32 = 8;
const FAULT: i32 = 21;
const INVAL: i32 = 28;
const NOSYS: i32 = 52;
const NOTSUP: i32 = 58;
const SPIPE: i32 = 70;

const STDIN: i32 = 0;
const STDOUT: i32 = 1;
const STDERR: i32 = 2;

/// What there is.
const GIVEN: &[&str] = &[
    "args_get",
    "args_sizes_get",
    "clock_res_get",
    "clock_time_get",
    "environ_get",
    "environ_sizes_get",
    "fd_close",
    "fd_fdstat_get",
    "fd_prestat_get",
    "fd_read",
    "fd_seek",
    "fd_write",
    "proc_exit",
    "random_get",
    "sched_yield",
];

/// What the rest of preview 1 is called. They all return a number.
const DENIED: &[&str] = &[
    "fd_advise",
    "fd_allocate",
    "fd_datasync",
    "fd_fdstat_set_flags",
    "fd_fdstat_set_rights",
    "fd_filestat_get",
    "fd_filestat_set_size",
    "fd_filestat_set_times",
    "fd_pread",
    "fd_prestat_dir_name",
    "fd_pwrite",
    "fd_readdir",
    "fd_renumber",
    "fd_sync",
    "fd_tell",
    "path_create_directory",
    "path_filestat_get",
    "path_filestat_set_times",
    "path_link",
    "path_open",
    "path_readlink",
    "path_remove_directory",
    "path_rename",
    "path_symlink",
    "path_unlink_file",
    "poll_oneoff",
    "proc_raise",
    "sock_accept",
    "sock_recv",
    "sock_send",
    "sock_shutdown",
];

/// What an instance has of the world.
pub struct Host {
    pub pipes: Arc<Mutex<Pipes>>,
    pub limiter: Limiter,
    started: Instant,
}

/// Its streams, shared with who asks it.
#[derive(Default)]
pub struct Pipes {
    input: Vec<u8>,
    taken: usize,
    /// It has read all there is and wants more.
    pub is_hungry: bool,
    /// What it has written and nobody has taken.
    pub out: Vec<u8>,
    /// So much of it has no line end.
    pub looked_at: usize,
    pub tail: Tail,
    /// What it did wrong in writing.
    pub failure: Option<Failure>,
}

/// It has called `exit`.
#[derive(Debug, thiserror::Error)]
#[error("it exited with code {0}")]
pub struct Exited(pub i32);

/// It may not go on: [`Pipes::failure`] says why.
#[derive(Debug, thiserror::Error)]
#[error("it was stopped")]
struct Stopped;

impl Host {
    pub fn new(pipes: Arc<Mutex<Pipes>>, memory_bytes: u64) -> Host {
        Host { pipes, limiter: Limiter::new(memory_bytes), started: Instant::now() }
    }
}

pub fn locked(pipes: &Mutex<Pipes>) -> MutexGuard<'_, Pipes> {
    pipes.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pipes {
    /// Gives it something to read.
    pub fn feed(&mut self, line: Vec<u8>) {
        (self.input, self.taken, self.is_hungry) = (line, 0, false);
    }

    fn unread(&self) -> &[u8] {
        &self.input[self.taken..]
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Stopped> {
        if !self.unread().is_empty() {
            self.failure = Some(Failure::Unread(cite(bytes)));
            return Err(Stopped);
        }
        self.out.extend_from_slice(bytes);
        if self.out.len() > ANSWER_BYTES_LIMIT + OUT_TARGET {
            self.failure = Some(Failure::TooMuchOutput(ANSWER_BYTES_LIMIT));
            return Err(Stopped);
        }
        Ok(())
    }
}

/// What a module wants and is not given, if it is any such thing.
#[derive(Debug, thiserror::Error)]
#[error("the module imports {module}.{name}, and modules are given nothing but WASI preview 1")]
pub struct NotGiven {
    module: String,
    name: String,
}

/// What this module may call.
pub fn linker(module: &Module) -> Result<Linker<Host>> {
    let mut linker = Linker::new(module.engine());
    streams(&mut linker)?;
    descriptors(&mut linker)?;
    surroundings(&mut linker)?;
    for import in module.imports() {
        let (from, name) = (import.module(), import.name());
        if from == WASI && GIVEN.contains(&name) {
            continue;
        }
        match import.ty() {
            ExternType::Func(wanted) if from == WASI && DENIED.contains(&name) && returns_a_number(&wanted) => {
                linker.func_new(WASI, name, wanted, |_, _, results| {
                    results[0] = Val::I32(NOSYS);
                    Ok(())
                })?;
            }
            _ => return Err(NotGiven { module: from.to_owned(), name: name.to_owned() }.into()),
        }
    }
    Ok(linker)
}

fn returns_a_number(wanted: &FuncType) -> bool {
    let mut results = wanted.results();
    matches!((results.next(), results.next()), (Some(ValType::I32), None))
}

fn streams(linker: &mut Linker<Host>) -> Result<()> {
    linker.func_wrap_async(
        WASI,
        "fd_read",
        |mut caller: Caller<'_, Host>, (fd, iovs, count, read): (i32, i32, i32, i32)| {
            Box::new(async move {
                if fd != STDIN {
                    return Ok(BADF);
                }
                let Some(pieces) = pieces(&mut caller, iovs, count) else { return Ok(FAULT) };
                if pieces.iter().all(|&(_, length)| length == 0) {
                    return Ok(store(&mut caller, read, 0));
                }
                let pipes = Arc::clone(&caller.data().pipes);
                poll_fn(|_| {
                    let mut pipes = locked(&pipes);
                    pipes.is_hungry = pipes.unread().is_empty();
                    // Whoever polls it has something to read for it by then.
                    if pipes.is_hungry { Poll::Pending } else { Poll::Ready(()) }
                })
                .await;
                let mut total = 0;
                for (at, length) in pieces {
                    let bytes = {
                        let mut pipes = locked(&pipes);
                        let length = length.min(pipes.unread().len());
                        let bytes = pipes.unread()[..length].to_vec();
                        pipes.taken += length;
                        bytes
                    };
                    if !put(&mut caller, at, &bytes) {
                        return Ok(FAULT);
                    }
                    total += bytes.len();
                }
                Ok::<i32, Error>(store(&mut caller, read, u32::try_from(total).unwrap_or(u32::MAX)))
            })
        },
    )?;
    linker.func_wrap_async(
        WASI,
        "fd_write",
        |mut caller: Caller<'_, Host>, (fd, iovs, count, written): (i32, i32, i32, i32)| {
            Box::new(async move {
                if fd != STDOUT && fd != STDERR {
                    return Ok(BADF);
                }
                let Some(pieces) = pieces(&mut caller, iovs, count) else { return Ok(FAULT) };
                let mut bytes = Vec::new();
                for (at, length) in pieces {
                    let Some(piece) = get(&mut caller, at, length) else { return Ok(FAULT) };
                    bytes.extend_from_slice(piece);
                }
                let pipes = Arc::clone(&caller.data().pipes);
                if fd == STDERR {
                    locked(&pipes).tail.push(&bytes);
                } else if !bytes.is_empty() {
                    locked(&pipes).write(&bytes)?;
                    // So that lines are taken out while there are more to come.
                    let mut is_over = !bytes.contains(&b'\n') || locked(&pipes).out.len() < OUT_TARGET;
                    poll_fn(|_| if std::mem::replace(&mut is_over, true) { Poll::Ready(()) } else { Poll::Pending })
                        .await;
                }
                Ok::<i32, Error>(store(&mut caller, written, u32::try_from(bytes.len()).unwrap_or(u32::MAX)))
            })
        },
    )?;
    Ok(())
}

fn descriptors(linker: &mut Linker<Host>) -> Result<()> {
    let is_stream = |fd| (STDIN..=STDERR).contains(&fd);
    linker.func_wrap(WASI, "fd_close", move |fd: i32| if is_stream(fd) { SUCCESS } else { BADF })?;
    linker.func_wrap(
        WASI,
        "fd_seek",
        move |fd: i32, _: i64, _: i32, _: i32| if is_stream(fd) { SPIPE } else { BADF },
    )?;
    // No directory was opened before.
    linker.func_wrap(WASI, "fd_prestat_get", |_: i32, _: i32| BADF)?;
    linker.func_wrap(WASI, "fd_fdstat_get", move |mut caller: Caller<'_, Host>, fd: i32, at: i32| {
        if !is_stream(fd) {
            return BADF;
        }
        // A character device that cannot seek is a terminal to C's library, which then ends each line by itself. Its rights are to
        // read and to write.
        let mut stat = [0; 24];
        stat[0] = 2;
        stat[8] = if fd == STDIN { 1 << 1 } else { 1 << 6 };
        if put(&mut caller, at.cast_unsigned(), &stat) { SUCCESS } else { FAULT }
    })?;
    Ok(())
}

fn surroundings(linker: &mut Linker<Host>) -> Result<()> {
    // One argument, as every program has; no environment.
    const NAME: &[u8] = b"module\0";
    linker.func_wrap(WASI, "args_sizes_get", |mut caller: Caller<'_, Host>, count: i32, bytes: i32| {
        let first = store(&mut caller, count, 1);
        if first == SUCCESS { store(&mut caller, bytes, NAME.len() as u32) } else { first }
    })?;
    linker.func_wrap(WASI, "args_get", |mut caller: Caller<'_, Host>, list: i32, text: i32| {
        let first = store(&mut caller, list, text.cast_unsigned());
        if first == SUCCESS && !put(&mut caller, text.cast_unsigned(), NAME) { FAULT } else { first }
    })?;
    linker.func_wrap(WASI, "environ_sizes_get", |mut caller: Caller<'_, Host>, count: i32, bytes: i32| {
        let first = store(&mut caller, count, 0);
        if first == SUCCESS { store(&mut caller, bytes, 0) } else { first }
    })?;
    linker.func_wrap(WASI, "environ_get", |_: i32, _: i32| SUCCESS)?;
    linker.func_wrap(WASI, "clock_res_get", |mut caller: Caller<'_, Host>, clock: i32, at: i32| {
        if !(0..=1).contains(&clock) {
            return NOTSUP;
        }
        if put(&mut caller, at.cast_unsigned(), &CLOCK_STEP_NS.to_le_bytes()) { SUCCESS } else { FAULT }
    })?;
    linker.func_wrap(WASI, "clock_time_get", |mut caller: Caller<'_, Host>, clock: i32, _: i64, at: i32| {
        let since = match clock {
            0 => SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default(),
            1 => caller.data().started.elapsed(),
            // Processor time is nobody's but the agent's.
            _ => return NOTSUP,
        };
        let now = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX) / CLOCK_STEP_NS * CLOCK_STEP_NS;
        if put(&mut caller, at.cast_unsigned(), &now.to_le_bytes()) { SUCCESS } else { FAULT }
    })?;
    linker.func_wrap(WASI, "random_get", |mut caller: Caller<'_, Host>, at: i32, length: i32| {
        let length = length.cast_unsigned() as usize;
        if length > GULP {
            return INVAL;
        }
        let mut bytes = vec![0; length];
        rand::rng().fill_bytes(&mut bytes);
        if put(&mut caller, at.cast_unsigned(), &bytes) { SUCCESS } else { FAULT }
    })?;
    linker.func_wrap(WASI, "sched_yield", || SUCCESS)?;
    linker.func_wrap(WASI, "proc_exit", |code: i32| -> Result<()> { Err(Exited(code).into()) })?;
    Ok(())
}

/// Where bytes are to be read from or written to: offsets and lengths, cut to what one call may move. None: not in its memory.
fn pieces(caller: &mut Caller<'_, Host>, iovs: i32, count: i32) -> Option<Vec<(u32, usize)>> {
    let count = (count.cast_unsigned() as usize).min(PIECES);
    let list = get(caller, iovs.cast_unsigned(), count * 8)?;
    let mut left = GULP;
    let mut pieces = Vec::with_capacity(count);
    for entry in list.chunks_exact(8) {
        let number = |at: usize| u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]]);
        let length = (number(4) as usize).min(left);
        left -= length;
        pieces.push((number(0), length));
    }
    Some(pieces)
}

fn memory(caller: &mut Caller<'_, Host>) -> Option<Memory> {
    caller.get_export("memory")?.into_memory()
}

fn get<'a>(caller: &'a mut Caller<'_, Host>, at: u32, length: usize) -> Option<&'a [u8]> {
    let memory = memory(caller)?;
    memory.data(caller).get(at as usize..)?.get(..length)
}

/// False: not in its memory.
fn put(caller: &mut Caller<'_, Host>, at: u32, bytes: &[u8]) -> bool {
    let Some(memory) = memory(caller) else { return false };
    let to = memory.data_mut(caller).get_mut(at as usize..).and_then(|rest| rest.get_mut(..bytes.len()));
    to.map(|to| to.copy_from_slice(bytes)).is_some()
}

fn store(caller: &mut Caller<'_, Host>, at: i32, number: u32) -> i32 {
    if put(caller, at.cast_unsigned(), &number.to_le_bytes()) { SUCCESS } else { FAULT }
}
