//! What the workspace's programs say of themselves by `--help`: what is written elsewhere about them is checked against it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where this workspace's programs are built.
pub fn beside(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("this program has a path");
    own.parent().and_then(Path::parent).expect("it is in target/*/deps").join(name)
}

/// Texts of `--help`, each asked for once.
#[derive(Default)]
pub struct Helps(HashMap<(PathBuf, Vec<String>), String>);

impl Helps {
    pub fn of(&mut self, program: &Path, path: &[String]) -> &str {
        self.0.entry((program.to_owned(), path.to_vec())).or_insert_with(|| {
            let output =
                Command::new(program).args(path).arg("--help").env("COLUMNS", "200").stdin(Stdio::null()).output();
            let output = output.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
            String::from_utf8_lossy(&output.stdout).into_owned()
        })
    }
}

/// The line of a help text that defines a flag, such as `  -o, --output <FORM>`.
pub fn definition<'a>(help: &'a str, flag: &str) -> Option<&'a str> {
    help.lines().map(str::trim).find(|line| {
        line.starts_with('-')
            && line.split([' ', ',']).take_while(|w| w.is_empty() || w.starts_with('-')).any(|w| w == flag)
    })
}

fn has_verb(help: &str, verb: &str) -> bool {
    let verbs = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| line.starts_with("  "));
    verbs.filter_map(|line| line.split_whitespace().next()).any(|known| known == verb)
}

/// Checks a command against its program's own help: verbs first, then every flag.
pub fn check_by_help(helps: &mut Helps, program: &Path, arguments: &[String]) -> Result<(), String> {
    let mut verbs: Vec<String> = Vec::new();
    let mut flags: Vec<&str> = Vec::new();
    let mut words = arguments.iter().peekable();
    while let Some(word) = words.next() {
        let help = helps.of(program, &verbs);
        if word.starts_with('-') && word.len() > 1 {
            let flag = word.split('=').next().expect("a split has a first part");
            flags.push(flag);
            let line = definition(help, flag).unwrap_or_default();
            if word.contains('=') || !line.contains('<') {
                continue;
            }
            // A value that may be left out is there unless a flag or a verb comes.
            words.next_if(|next| !line.contains("[<") || !next.starts_with('-') && !has_verb(help, next));
        } else if help.contains("\nCommands:\n") {
            if !has_verb(help, word) {
                return Err(format!("there is no verb {word:?} after {verbs:?}"));
            }
            verbs.push(word.clone());
        }
    }
    let help = helps.of(program, &verbs);
    match flags
        .into_iter()
        .find(|flag| definition(help, flag).is_none() && !["--help", "-h", "--version", "-V"].contains(flag))
    {
        Some(flag) => Err(format!("{flag} is not in the help of {} {}", program.display(), verbs.join(" "))),
        None => Ok(()),
    }
}
