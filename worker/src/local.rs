//! The agent's socket on its own machine: for its owner, and for helpers in people's sessions.
//!
//! Owns who may say what. Everybody who has an account may ask, and pause the agent: it is their desk. What a helper says is
//! believed as far as `presence::helper` allows. Nothing that is said here is ever longer, more frequent or from more
//! connections than a helper and a few curious people need.
//!
//! A message is a line of JSON, and so is an answer. Both say which version of this they speak.

pub mod message;

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use self::message::{Answer, Ask, Explanation};
use crate::clock;
use crate::presence::Desk;
use crate::presence::helper::Helper;

const FILE: &str = "agent.sock";

/// Where services of the system have theirs.
const SYSTEM_SOCKET: &str = "/run/pcfarm-worker/agent.sock";

const CONNECTIONS_LIMIT: usize = 64;
const CONNECTIONS_OF_USER_LIMIT: usize = 16;

/// Of a message.
const LINE_BYTES_LIMIT: u64 = 4096;

/// A helper has something to say once a second at most.
const MESSAGES_A_MINUTE: u32 = 240;

/// Helpers speak at least every minute; who is silent for longer is gone or stuck.
const SILENCE_LIMIT: Duration = Duration::from_secs(150);

/// Most bytes of a source's name or of why it cannot tell.
const TEXT_BYTES_LIMIT: usize = 200;

/// Where an agent with this state directory has its socket.
pub fn path(state_dir: &Path) -> PathBuf {
    if let Some(directory) = crate::settings::made_by_manager("RUNTIME_DIRECTORY") {
        return directory.join(FILE);
    }
    if rustix::process::geteuid().is_root() && state_dir == Path::new(crate::settings::SYSTEM_STATE_DIR) {
        return SYSTEM_SOCKET.into();
    }
    state_dir.join(FILE)
}

/// Where an agent may be found by somebody who was told of none.
pub fn candidates(state_dir: &Path) -> Vec<PathBuf> {
    vec![path(state_dir), SYSTEM_SOCKET.into()]
}

/// The socket, which is gone when this is.
pub struct Local {
    listener: UnixListener,
    path: PathBuf,
    desk: Desk,
}

impl Local {
    /// In place of one that a killed agent has left. Never in place of one that lives.
    pub fn open(path: PathBuf, desk: Desk) -> io::Result<Local> {
        if std::os::unix::net::UnixStream::connect(&path).is_ok() {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another agent has it"));
        }
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))?;
        Ok(Local { listener, path, desk })
    }

    /// Until it is dropped.
    pub async fn serve(self) {
        let mut connections: JoinSet<u64> = JoinSet::new();
        let mut users: BTreeMap<u64, u32> = BTreeMap::new();
        let mut number = 0;
        loop {
            let stream = tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    Err(error) => {
                        warn!(%error, "the agent's socket");
                        tokio::time::sleep(Duration::from_secs(1)).await;
                        continue;
                    }
                },
                Some(ended) = connections.join_next() => {
                    // Its panic is a bug, which is the whole agent's.
                    let ended = ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
                    users.remove(&ended);
                    self.desk.hear(ended, None);
                    continue;
                }
            };
            let Ok(peer) = stream.peer_cred() else { continue };
            let of_user = users.values().filter(|uid| **uid == peer.uid()).count();
            if users.len() >= CONNECTIONS_LIMIT || of_user >= CONNECTIONS_OF_USER_LIMIT {
                debug!(uid = peer.uid(), "too many connections to the agent's socket");
                continue;
            }
            number += 1;
            users.insert(number, peer.uid());
            let connection = Connection { number, uid: peer.uid(), desk: self.desk.clone() };
            connections.spawn(connection.serve(stream));
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

struct Connection {
    number: u64,
    uid: u32,
    desk: Desk,
}

impl Connection {
    async fn serve(self, mut stream: UnixStream) -> u64 {
        let (from, mut to) = stream.split();
        let mut from = BufReader::new(from);
        let (mut minute, mut messages) = (Instant::now(), 0);
        loop {
            let mut line = Vec::new();
            let mut limited = (&mut from).take(LINE_BYTES_LIMIT);
            let read = timeout(SILENCE_LIMIT, limited.read_until(b'\n', &mut line)).await;
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
                match message::read::<Ask>(&line).and_then(|ask| self.answer(ask)) {
                    Ok(None) => continue,
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

    fn answer(&self, ask: Ask) -> Result<Option<Answer>, String> {
        let kept = |kept: io::Result<()>| kept.map_err(|error| format!("it holds, but is not kept: {error}"));
        match ask {
            Ask::Explain => {}
            Ask::History => return Ok(Some(Answer::History(self.desk.view(|_, _, _, history| history.entries())))),
            Ask::Pause { wish } => {
                let wish = wish.parse().map_err(|error: crate::presence::pause::NoPause| error.to_string())?;
                info!(uid = self.uid, ?wish, "paused");
                kept(self.desk.pause(Some(wish)))?;
            }
            Ask::Resume => {
                info!(uid = self.uid, "no longer paused");
                kept(self.desk.pause(None))?;
            }
            Ask::Session { source, idle_ms, error, full_screen } => {
                self.hear(&source, idle_ms, error, full_screen);
                return Ok(None);
            }
        }
        Ok(Some(Answer::Explanation(Box::new(Explanation::of(&self.desk)))))
    }

    fn hear(&self, source: &str, idle_ms: Option<u64>, error: Option<String>, full_screen: Option<bool>) {
        let short = |text: &str| text[..text.floor_char_boundary(TEXT_BYTES_LIMIT)].replace(char::is_control, " ");
        let now = clock::now();
        let unknown = || Err(error.as_deref().map_or_else(|| "it does not say why it cannot tell".to_owned(), short));
        let last = idle_ms.map_or_else(unknown, |idle| Ok(now.saturating_sub(Duration::from_millis(idle))));
        let helper = Helper {
            source: format!("{} of user {}", short(source), self.uid),
            is_own: self.uid == rustix::process::geteuid().as_raw(),
            at: now,
            last,
            full_screen,
        };
        self.desk.hear(self.number, Some(helper));
    }
}
