//! A real SMTP server that keeps a Maildir, and knows nobody whose name begins with `gone`.

use std::path::{Path, PathBuf};

use pcfarm_bench::farm::Farm;
use pcfarm_bench::program::Program;

/// As one looks for it: the first of PATH, else where Debian has it.
const SMTP_SERVER: &str = "aiosmtpd";

const HANDLER: &str = "import os, aiosmtpd.handlers
class Box(aiosmtpd.handlers.Mailbox):
    async def handle_RCPT(self, server, session, envelope, address, options):
        if address.startswith('gone'):
            return '550 5.1.1 no such mailbox'
        with open(os.path.join(os.path.dirname(__file__), 'hello'), 'w') as file:
            file.write(session.host_name)
        envelope.rcpt_tos.append(address)
        return '250 OK'
";

/// Not started yet. Its certificate, if it has one: `trusted.pem` and `key.pem` of the farm's files.
pub fn smtp(farm: &Farm, port: u16, encrypted: bool) -> Program {
    let directories = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&directories).chain([PathBuf::from("/usr/bin")]);
    let executable = places.find_map(|place| Some(place.join(SMTP_SERVER)).filter(|path| path.is_file()));
    let executable = executable.expect("aiosmtpd is missing: scripts/test installs it (python3-aiosmtpd)");
    std::fs::write(farm.path("box.py"), HANDLER).expect("written");
    let mut program = Program::new("smtp", &executable, &farm.path("smtp.log"))
        .environment("PYTHONPATH", farm.path("").into_os_string());
    if encrypted {
        program = program.arguments(["--tlscert".into(), farm.path("trusted.pem")]);
        program = program.arguments(["--tlskey".into(), farm.path("key.pem")]);
    }
    program
        .arguments(["-n", "-l", &format!("127.0.0.1:{port}"), "-c", "box.Box"])
        .arguments([farm.path("mail").into_os_string()])
}

/// Starts it and waits until it answers.
pub fn start(smtp: &mut Program, port: u16) {
    smtp.start();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(smtp.runs(), "{}", smtp.log());
        std::thread::yield_now();
    }
}

/// The mails that came, unfolded, by subject.
pub fn mails(directory: &Path) -> Vec<String> {
    let files = std::fs::read_dir(directory.join("mail/new")).into_iter().flatten().flatten();
    let mut mails: Vec<String> = files
        .map(|file| std::fs::read_to_string(file.path()).expect("a mail"))
        .map(|mail| mail.replace("\r\n", "\n"))
        .map(|mail| {
            let (head, body) = mail.split_once("\n\n").expect("a mail has a body");
            format!("{}\n\n{body}", head.replace("\n ", " "))
        })
        .collect();
    mails.sort_by_key(|mail| header(mail, "Subject").map(str::to_owned));
    mails
}

/// The name in the last greeting (EHLO).
pub fn hello(directory: &Path) -> String {
    std::fs::read_to_string(directory.join("hello")).expect("somebody has greeted")
}

/// What a mail's header says.
pub fn header<'a>(mail: &'a str, name: &str) -> Option<&'a str> {
    let head = mail.split("\n\n").next()?;
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

pub fn has(mail: &str, parts: &[&str]) {
    for part in parts {
        assert!(mail.contains(part), "{part}: {mail}");
    }
}
