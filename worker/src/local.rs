//! The agent's socket on its own machine: for its owner, and for helpers in people's sessions.
//!
//! Owns who may say what. Everybody who has an account may ask, and pause the agent: it is their desk. A pause is ended by whoever
//! has made it, and by an administrator. Programs that the
//! agent runs for others may not, whoever they run as. What a helper says is
//! believed as far as `presence::helper` allows. Nothing that is said here is ever longer, more frequent or from more
//! connections than a helper and a few curious people need.
//!
//! A message is a line of JSON, and so is an answer. Both say which version of this they speak.

pub mod message;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use self::message::{Answer, Ask, Explanation};
use crate::clock;
use crate::platform::{self, CALLERS, Listener, SYSTEM_SOCKET, Stream};
use crate::presence::Desk;
use crate::presence::helper::Helper;
use crate::presence::history::Entry;
use crate::presence::inhibitors::{HELD_LIMIT, Held};
use crate::presence::pause::{Caller, NoPause, Wish};

const CONNECTIONS_LIMIT: usize = 64;
const CONNECTIONS_OF_CALLER_LIMIT: usize = 16;

/// Of a message.
const LINE_BYTES_LIMIT: u64 = 4096;

/// A helper has something to say once a second at most.
const MESSAGES_A_MINUTE: u32 = 240;

/// A connection without a message for so long is closed, unless it is a helper's. A helper that is silent hangs, and its session counts
/// as unknown: it stays connected for as long as its process lives.
const SILENCE_LIMIT: Duration = Duration::from_secs(150);

/// A disk that takes longer has stalled.
const DISK_WAIT: Duration = Duration::from_secs(5);

/// Most bytes of a source's name or of why it cannot tell.
const TEXT_BYTES_LIMIT: usize = 200;

/// Where an agent may be found by somebody who was told of none.
pub fn candidates(state_dir: &Path) -> Vec<PathBuf> {
    vec![platform::socket(state_dir), SYSTEM_SOCKET.into()]
}

/// The socket, which is gone when this is.
pub struct Local {
    listener: Listener,
    desk: Desk,
}

impl Local {
    /// Never in place of one that lives.
    pub fn open(path: PathBuf, desk: Desk) -> io::Result<Local> {
        Ok(Local { listener: Listener::open(path)?, desk })
    }

    /// Until it is dropped.
    pub async fn serve(mut self) {
        let mut connections: JoinSet<u64> = JoinSet::new();
        let mut callers: BTreeMap<u64, u32> = BTreeMap::new();
        let mut number = 0;
        loop {
            let stream = tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok(stream) => stream,
                    Err(error) => {
                        warn!(%error, "the agent's socket");
                        tokio::time::sleep(Duration::from_secs(1)).await;
                        continue;
                    }
                },
                Some(ended) = connections.join_next() => {
                    // Its panic is a bug, which is the whole agent's.
                    let ended = ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
                    callers.remove(&ended);
                    self.desk.hear(ended, None);
                    self.desk.hear_inhibitors(ended, None);
                    continue;
                }
            };
            let Ok(caller) = platform::number_of(&stream) else { continue };
            // It could end a person's pause, or say that nobody is there.
            if platform::is_of_program(&stream) {
                warn!(by = format!("{CALLERS} {caller}"), "a problem's program is not heard at the agent's socket");
                continue;
            }
            let of_caller = callers.values().filter(|known| **known == caller).count();
            if callers.len() >= CONNECTIONS_LIMIT || of_caller >= CONNECTIONS_OF_CALLER_LIMIT {
                debug!(by = format!("{CALLERS} {caller}"), "too many connections to the agent's socket");
                continue;
            }
            number += 1;
            callers.insert(number, caller);
            let connection = Connection { number, caller, desk: self.desk.clone() };
            connections.spawn(connection.serve(stream));
        }
    }
}

struct Connection {
    number: u64,
    /// Which of [`CALLERS`].
    caller: u32,
    desk: Desk,
}

impl Connection {
    async fn serve(self, stream: Stream) -> u64 {
        let (from, mut to) = tokio::io::split(stream);
        let mut from = BufReader::new(from);
        let (mut minute, mut messages) = (Instant::now(), 0);
        let mut is_helper = false;
        loop {
            let mut line = Vec::new();
            let mut limited = (&mut from).take(LINE_BYTES_LIMIT);
            let patience = if is_helper { Duration::MAX } else { SILENCE_LIMIT };
            let read = timeout(patience, limited.read_until(b'\n', &mut line)).await;
            if !matches!(read, Ok(Ok(1..))) {
                return self.number;
            }
            if minute.elapsed() > Duration::from_secs(60) {
                (minute, messages) = (Instant::now(), 0);
            }
            messages += 1;
            let answer = if !line.ends_with(b"\n") {
                Answer::Error(format!("a message has at most {LINE_BYTES_LIMIT} bytes and ends with a line"))
            } else if messages > MESSAGES_A_MINUTE {
                Answer::Error(format!("more than {MESSAGES_A_MINUTE} messages a minute"))
            } else {
                let answered = match message::read::<Ask>(&line) {
                    Ok(ask) => self.answer(ask).await,
                    Err(why) => Err(why),
                };
                match answered {
                    Ok(None) => {
                        is_helper = true;
                        continue;
                    }
                    Ok(Some(answer)) => answer,
                    Err(why) => Answer::Error(why),
                }
            };
            let is_error = matches!(answer, Answer::Error(_));
            let said = timeout(Duration::from_secs(10), to.write_all(&message::write(&answer))).await;
            if is_error || !matches!(said, Ok(Ok(()))) {
                return self.number;
            }
        }
    }

    fn caller(&self) -> String {
        format!("{CALLERS} {}", self.caller)
    }

    async fn answer(&self, ask: Ask) -> Result<Option<Answer>, String> {
        match ask {
            Ask::Explain => {}
            Ask::History => return self.history().await.map(|entries| Some(Answer::History(entries))),
            Ask::Pause { wish } => {
                let wish: Wish = wish.parse().map_err(|error: NoPause| error.to_string())?;
                info!(by = self.caller(), ?wish, "paused");
                kept(self.desk.pause(self.caller, wish).map_err(|error| error.to_string())?).await?;
            }
            Ask::Resume => {
                let caller = Caller { number: self.caller, is_administrator: platform::is_administrator(self.caller) };
                let ended = self.desk.resume(caller).map_err(|error| error.to_string())?;
                info!(by = self.caller(), "no longer paused");
                kept(ended).await?;
            }
            Ask::Session { source, idle_ms, error, full_screen, seat } => {
                self.hear(&source, idle_ms, error, full_screen, seat.is_some());
                return Ok(None);
            }
            Ask::Inhibitors { held } => {
                self.hear_inhibitors(held);
                return Ok(None);
            }
        }
        Ok(Some(Answer::Explanation(Box::new(Explanation::of(&self.desk)))))
    }

    /// Beside the agent's own threads, which wait for no disk.
    async fn history(&self) -> Result<Vec<Entry>, String> {
        let book = self.desk.view(|_, _, _, history| history.book());
        let read = timeout(DISK_WAIT, tokio::task::spawn_blocking(move || book.entries())).await;
        let read = read.map_err(|_| "the disk of the agent's state does not answer".to_owned())?;
        read.map_err(|error| error.to_string())
    }

    fn hear_inhibitors(&self, held: Vec<Held>) {
        let shortened = |held: Held| Held { by: short(&held.by), ..held };
        let held = held.into_iter().take(HELD_LIMIT).map(shortened).collect();
        self.desk.hear_inhibitors(self.number, Some((format!("session of {}", self.caller()), held)));
    }

    fn hear(
        &self,
        source: &str,
        idle_ms: Option<u64>,
        error: Option<String>,
        full_screen: Option<bool>,
        at_seat: bool,
    ) {
        let now = clock::now();
        let unknown = || Err(error.as_deref().map_or_else(|| "it does not say why it cannot tell".to_owned(), short));
        let last = idle_ms.map_or_else(unknown, |idle| Ok(now.saturating_sub(Duration::from_millis(idle))));
        let helper = Helper {
            source: format!("{} of {}", short(source), self.caller()),
            is_own: platform::own_number() == Some(self.caller),
            at: now,
            last,
            full_screen,
            at_seat,
        };
        self.desk.hear(self.number, Some(helper));
    }
}

/// As others chose it, for logs and terminals.
fn short(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_BYTES_LIMIT)].replace(char::is_control, " ")
}

async fn kept(kept: oneshot::Receiver<io::Result<()>>) -> Result<(), String> {
    let why = match timeout(DISK_WAIT, kept).await {
        Ok(Ok(Ok(()))) => return Ok(()),
        Ok(Ok(Err(error))) => error.to_string(),
        Ok(Err(_)) | Err(_) => "the disk of the agent's state does not answer".to_owned(),
    };
    Err(format!("it holds, but is not kept: {why}"))
}
