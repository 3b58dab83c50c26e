//! Messages between agent, supervisor and launcher.
//!
//! Frames on pipes: the length of a header in JSON, the length of a body of bytes, and both. The agent sends one [`Plan`], then
//! [`Request`]s. The supervisor answers each question with one [`Reply`] before the next question. It also answers
//! [`Request::Freeze`]; then [`Request::Thaw`] lets the program go on. While there is a question the agent says every second that
//! it is alive, to which there is no reply. If the agent closes the pipe, the supervisor ends all processes of the program,
//! running or not.

use std::io::{self, Read, Write};
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::exec::settings::Mode;
use crate::fed::failure::Failure;

/// Both pipes are between two processes of one binary: a longer frame is a bug, or a body that is not for us.
const FRAME_BYTES_LIMIT: u32 = 256 << 20;

/// What a supervisor needs to know to start its program as often as it must.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub path: PathBuf,
    pub mode: Mode,
    /// Of a fed program; a one-shot program has its question's.
    pub args: Vec<String>,
    pub environment: Vec<(String, String)>,
    pub user: Option<User>,
    pub limits: Limits,
    pub nice: i32,
    /// It has the idle class, behind whatever a person does; its supervisor may do better.
    pub is_guest: bool,
    /// What it must not read.
    pub hidden: Vec<PathBuf>,
    /// Where it may write.
    pub writable: Vec<PathBuf>,
    pub network: bool,
    /// Where a fed program works.
    pub home: PathBuf,
    /// All its directories.
    pub area: PathBuf,
    pub idle_ms: u64,
    /// Silence of the agent after which the program stands still; none: it runs on.
    pub silence_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Of all processes of the tree together.
    pub memory_bytes: u64,
    /// Of each process.
    pub address_space_bytes: Option<u64>,
    /// Of the tree.
    pub processes: u32,
    /// Of all trees of this program together, threads included, for the kernel.
    pub tasks: u64,
    /// Of all that is in the program's directories.
    pub disk_bytes: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    Question(Question),
    /// The agent looks for its person. Every second while there is a question, and when its lease is renewed.
    Alive {
        /// As in the question.
        lease_end_us: Option<u64>,
    },
    /// Also while there is a question.
    Freeze,
    Thaw,
}

/// A problem. The body is a fed program's line, without its end, or a one-shot program's standard input.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Question {
    /// What an answer may repeat, and must not get wrong.
    pub id: String,
    pub time_limit_ms: Option<u64>,
    /// End of the agent's lease by [`crate::clock::now`], in microseconds; none: the program goes on after it.
    pub lease_end_us: Option<u64>,
    pub args: Vec<String>,
    pub directory: PathBuf,
    pub exit_codes: Vec<i32>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The body is the answer: a fed program's line, or a one-shot program's output.
    Answer {
        exit_code: i32,
        stderr: String,
    },
    Failed {
        failure: Failure,
        stderr: String,
        ended: Ended,
    },
    /// Nothing of the program runs until the agent wants it to.
    Frozen,
    /// It had no problem for long and ends; the question was not looked at.
    Retired,
}

/// What a failure leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    /// The program never answered anything since it was started.
    BeforeAnyAnswer,
    AfterAnswers,
}

/// What a launcher needs to know, in a frame before the program's standard input.
#[derive(Debug, Serialize, Deserialize)]
pub struct Launch {
    pub plan: Plan,
    pub args: Vec<String>,
    pub directory: PathBuf,
    /// Most tasks that the program's user may have, whatever else it runs.
    pub tasks_of_user: u64,
    pub supervisor: i32,
    /// Begins the line by which a launcher says that it could not start the program.
    pub nonce: String,
}

pub fn write_frame(to: &mut impl Write, header: &impl Serialize, body: &[u8]) -> io::Result<()> {
    to.write_all(&frame(header, body)?)?;
    to.flush()
}

/// What [`write_frame`] writes.
pub fn frame(header: &impl Serialize, body: &[u8]) -> io::Result<Vec<u8>> {
    let header = serde_json::to_vec(header)?;
    let lengths = [header.len(), body.len()].map(|length| u32::try_from(length).unwrap_or(u32::MAX));
    if lengths.iter().any(|&length| length > FRAME_BYTES_LIMIT) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too long for a frame"));
    }
    let mut frame = Vec::with_capacity(8 + header.len() + body.len());
    lengths.iter().for_each(|length| frame.extend_from_slice(&length.to_le_bytes()));
    frame.extend_from_slice(&header);
    frame.extend_from_slice(body);
    Ok(frame)
}

/// The next frame; an error of kind `UnexpectedEof` when there is none.
pub fn read_frame<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<(T, Vec<u8>)> {
    let mut lengths = [[0; 4]; 2];
    for length in &mut lengths {
        from.read_exact(length)?;
    }
    let [header, body] = lengths.map(u32::from_le_bytes);
    if header > FRAME_BYTES_LIMIT || body > FRAME_BYTES_LIMIT {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "too long a frame"));
    }
    let mut read = |length: u32| {
        let mut bytes = vec![0; length as usize];
        from.read_exact(&mut bytes).map(|()| bytes)
    };
    let header = read(header)?;
    let body = read(body)?;
    Ok((serde_json::from_slice(&header)?, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_whole_or_not_at_all() {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, &Reply::Retired, b"").expect("memory");
        write_frame(&mut bytes, &Reply::Answer { exit_code: 1, stderr: "x".to_owned() }, b"\0\xff").expect("memory");
        let mut from = bytes.as_slice();
        assert!(matches!(read_frame(&mut from), Ok((Reply::Retired, body)) if body.is_empty()));
        assert!(matches!(read_frame(&mut from), Ok((Reply::Answer { exit_code: 1, .. }, body)) if body == b"\0\xff"));
        for end in 0..bytes.len() - 1 {
            let mut cut = &bytes[..end];
            let first = read_frame::<Reply>(&mut cut);
            let error = first.and_then(|_| read_frame::<Reply>(&mut cut)).expect_err("cut");
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
        assert!(read_frame::<Reply>(&mut [0xff; 16].as_slice()).is_err());
    }
}
