//! A keyboard of the kernel's own, where it lets one be made (`/dev/uinput`). A script makes it: that takes calls which are not safe.

use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const SCRIPT: &str = include_str!("uinput.py");

/// There until it is dropped, or unplugged.
pub struct Keyboard {
    /// Such as `event7`.
    pub event: String,
    presses: ChildStdin,
    says: BufReader<ChildStdout>,
    script: Child,
}

impl Keyboard {
    /// An error of the kind `PermissionDenied` or `NotFound`: nobody may here, or nobody can.
    pub fn plug() -> io::Result<Keyboard> {
        std::fs::File::options().write(true).open("/dev/uinput")?;
        let mut command = Command::new("python3");
        command.args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut script = command.spawn()?;
        let (presses, says) = (script.stdin.take(), script.stdout.take());
        let (Some(presses), Some(says)) = (presses, says) else { unreachable!("both are pipes") };
        let mut keyboard = Keyboard { event: String::new(), presses, says: BufReader::new(says), script };
        keyboard.event = keyboard.hear()?;
        std::fs::File::open(keyboard.node())?;
        Ok(keyboard)
    }

    pub fn node(&self) -> PathBuf {
        PathBuf::from("/dev/input").join(&self.event)
    }

    pub fn press_a_key(&mut self) -> io::Result<()> {
        self.presses.write_all(b"\n")?;
        self.hear().map(drop)
    }

    pub fn unplug(&mut self) {
        let _ = self.script.kill();
        let _ = self.script.wait();
    }

    fn hear(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.says.read_line(&mut line)?;
        match line.trim() {
            "" => Err(io::Error::other("the virtual keyboard has failed: its script says why on standard error")),
            word => Ok(word.to_owned()),
        }
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        self.unplug();
    }
}
