//! What a person touches at a desk, by each source that an agent knows that person from: an input device, a console, a session of
//! X11, a session of Wayland. Displays have no screen, and nobody sits before them.

mod uinput;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::chown;
use rustix::process::{Gid, Uid, geteuid};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use tempfile::TempDir;

use crate::desk::Desk;
use crate::farm::Farm;
use crate::program::Program;

/// Compositors take seconds to begin on a machine that has other things to do.
const BEGINS: Duration = Duration::from_secs(30);

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Compositors do not run as root, and tests may.
const NOBODY: u32 = 65534;

/// A desk, and what is touched there.
pub struct Seat {
    pub desk: Desk,
    touches: Touches,
}

enum Touches {
    /// The desk's own, which is a pipe.
    Keyboard,
    /// One of the kernel's.
    Virtual(uinput::Keyboard),
    Console(Console),
    Session(Session),
}

/// A terminal that is the desk's first console.
struct Console {
    /// Where a person's keys come in, and where a program hears them.
    keys: File,
    hears: File,
    /// In the desk's `/dev`.
    named: PathBuf,
}

/// A session with a display, about which a helper tells.
struct Session {
    source: &'static str,
    display: Program,
    /// What programs in it are told of it.
    environment: Vec<(&'static str, OsString)>,
    /// The program that presses a key in it.
    presses: &'static [&'static str],
    _runtime: Option<TempDir>,
}

impl Seat {
    pub const X11_WANTS: &[&str] = &["Xvfb", "xdotool"];
    pub const WAYLAND_WANTS: &[&str] = &["sway", "wtype", "setpriv"];

    /// With an input device that the agent reads by itself.
    pub fn keyboard(farm: &Farm) -> io::Result<Seat> {
        Ok(Seat { desk: desk(farm)?, touches: Touches::Keyboard })
    }

    /// The same with a device that the kernel has made. Not every machine lets it.
    pub fn virtual_keyboard(farm: &Farm) -> io::Result<Seat> {
        let keyboard = uinput::Keyboard::plug()?;
        let desk = desk(farm)?;
        desk.unplug()?;
        // No other device of this machine is the desk's.
        desk.plug(&keyboard.node(), &Path::new("/sys/class/input").join(&keyboard.event))?;
        Ok(Seat { desk, touches: Touches::Virtual(keyboard) })
    }

    /// Without any display: somebody types at a terminal.
    pub fn console(farm: &Farm) -> io::Result<Seat> {
        let desk = desk(farm)?;
        desk.unplug()?;
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        grantpt(&controller)?;
        unlockpt(&controller)?;
        let terminal = ptsname(&controller, Vec::new())?;
        let terminal = Path::new(terminal.to_str().map_err(io::Error::other)?);
        let hears = File::options().read(true).write(true).open(terminal)?;
        let named = desk.dev().join("tty1");
        symlink(terminal, &named)?;
        Ok(Seat { desk, touches: Touches::Console(Console { keys: File::from(controller), hears, named }) })
    }

    /// A display of X11.
    pub fn x11(farm: &Farm) -> io::Result<Seat> {
        let log = farm.path("display.log");
        let mut display = Program::new("display", Path::new("Xvfb"), &log).arguments([
            "-displayfd",
            "1",
            "-screen",
            "0",
            "640x480x24",
            "-nolisten",
            "tcp",
        ]);
        display.start();
        let number = begun(&display, || display.log().lines().find_map(|line| line.trim().parse::<u32>().ok()))?;
        let environment = vec![("DISPLAY", format!(":{number}").into())];
        Seat::of_session(
            farm,
            Session { source: "x11", display, environment, presses: &["xdotool", "key", "a"], _runtime: None },
        )
    }

    /// A compositor of Wayland.
    pub fn wayland(farm: &Farm) -> io::Result<Seat> {
        let runtime = tempfile::Builder::new().prefix("pcfarm-seat-").tempdir()?;
        let mut words: Vec<OsString> =
            ["-i", "WLR_BACKENDS=headless", "WLR_RENDERER=pixman", "WLR_LIBINPUT_NO_DEVICES=1"]
                .map(OsString::from)
                .to_vec();
        words.push(assignment("PATH", &std::env::var_os("PATH").unwrap_or_default()));
        words.push(assignment("XDG_RUNTIME_DIR", runtime.path().as_os_str()));
        if geteuid().is_root() {
            chown(runtime.path(), Some(Uid::from_raw(NOBODY)), Some(Gid::from_raw(NOBODY)))?;
            let nobody = NOBODY.to_string();
            words.extend(["setpriv", "--reuid", &nobody, "--regid", &nobody, "--clear-groups"].map(OsString::from));
        }
        words.extend(["sway", "--config", "/dev/null"].map(OsString::from));
        // `env` and `setpriv` become what they start.
        let mut display = Program::new("display", Path::new("env"), &farm.path("display.log")).arguments(words);
        display.start();
        let socket = begun(&display, || socket_in(runtime.path()))?;
        let environment = vec![("XDG_RUNTIME_DIR", runtime.path().into()), ("WAYLAND_DISPLAY", socket)];
        Seat::of_session(
            farm,
            Session { source: "wayland", display, environment, presses: &["wtype", "a"], _runtime: Some(runtime) },
        )
    }

    fn of_session(farm: &Farm, session: Session) -> io::Result<Seat> {
        let desk = desk(farm)?;
        desk.unplug()?;
        Ok(Seat { desk, touches: Touches::Session(session) })
    }

    /// As agents call it.
    pub fn source(&self) -> &'static str {
        match &self.touches {
            Touches::Keyboard | Touches::Virtual(_) => "evdev",
            Touches::Console(_) => "tty",
            Touches::Session(session) => session.source,
        }
    }

    /// What the agent's owner must have said for this source to prove that nobody is there, beside [`Desk::config`].
    pub fn trust(&self) -> &'static str {
        match &self.touches {
            Touches::Keyboard | Touches::Virtual(_) | Touches::Session(_) => "",
            Touches::Console(_) => "trust_terminals = true",
        }
    }

    /// One key. Returns once it is pressed.
    pub fn press_a_key(&mut self) -> io::Result<()> {
        match &mut self.touches {
            Touches::Keyboard => self.desk.press_a_key(),
            Touches::Virtual(keyboard) => keyboard.press_a_key(),
            Touches::Console(console) => {
                console.keys.write_all(b"a\n")?;
                console.hears.read(&mut [0; 16]).map(drop)
            }
            Touches::Session(session) => session.press_a_key(),
        }
    }

    /// Tells the agent at this socket what only the session knows; not started yet. None: there is no session.
    pub fn helper(&self, farm: &Farm, socket: &Path) -> Option<Program> {
        let Touches::Session(session) = &self.touches else { return None };
        // Whoever runs this may sit in a session of their own.
        let others = [("WAYLAND_DISPLAY", OsString::new()), ("XDG_SESSION_TYPE", OsString::new())];
        let helper = farm.program("helper", "pcfarm-worker").arguments(["session"]);
        let environment = others.into_iter().chain(session.environment.iter().cloned());
        let helper = environment.fold(helper, |helper, (name, value)| helper.environment(name, value));
        Some(helper.environment("PCFARM_WORKER_SOCKET", socket))
    }

    /// From now on nothing can be known of whoever sits here.
    pub fn break_down(&mut self) -> io::Result<()> {
        match &mut self.touches {
            Touches::Keyboard => self.desk.unplug(),
            Touches::Virtual(keyboard) => {
                keyboard.unplug();
                Ok(())
            }
            Touches::Console(console) => fs::remove_file(&console.named),
            Touches::Session(session) => {
                session.display.kill();
                Ok(())
            }
        }
    }
}

impl Session {
    fn press_a_key(&self) -> io::Result<()> {
        let [program, arguments @ ..] = self.presses else { unreachable!("each names a program") };
        let mut command = Command::new(program);
        command.args(arguments).envs(self.environment.iter().map(|(name, value)| (name, value)));
        let pressed = command.stdin(Stdio::null()).output()?;
        if pressed.status.success() {
            return Ok(());
        }
        Err(io::Error::other(format!("{program}: {}", String::from_utf8_lossy(&pressed.stderr))))
    }
}

/// Those of these programs that are not installed.
pub fn missing(programs: &[&'static str]) -> Vec<&'static str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |program: &&str| std::env::split_paths(&path).any(|directory| directory.join(program).is_file());
    programs.iter().filter(|program| !is_there(program)).copied().collect()
}

fn desk(farm: &Farm) -> io::Result<Desk> {
    let place = farm.path("desk");
    fs::create_dir(&place)?;
    Desk::new(&place)
}

fn assignment(name: &str, value: &OsStr) -> OsString {
    let mut word = OsString::from(format!("{name}="));
    word.push(value);
    word
}

/// What a display tells once it is ready.
fn begun<T>(display: &Program, told: impl Fn() -> Option<T>) -> io::Result<T> {
    let deadline = Instant::now() + BEGINS;
    while Instant::now() < deadline {
        if let Some(told) = told() {
            return Ok(told);
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Err(io::Error::other(format!("{} does not begin: {}", display.path().display(), display.log())))
}

/// Of a compositor that listens there, its name.
fn socket_in(runtime: &Path) -> Option<OsString> {
    let names = fs::read_dir(runtime).ok()?.flatten().map(|entry| entry.file_name());
    names.into_iter().find(|name| {
        let name = name.to_string_lossy();
        name.starts_with("wayland-") && !name.ends_with(".lock")
    })
}
