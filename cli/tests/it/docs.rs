//! The documentation never lies: every command that it shows exists, with every flag, and the SQL of the guide and of the
//! README runs, in order, on a fresh database.
//!
//! Blocks fenced as `sh` hold commands; in `console` blocks those are the lines after `$ `. A block that cannot run here is
//! fenced as `sql,ignore` and says why.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::helps::{Helps, beside, check_by_help};
use crate::left_out;
use pcfarm_sql::testing;

/// What the documentation's own controllers are called: agents of the SDK, which share their flags.
const AGENTS: &[&str] = &["options-agent"];

/// What is built here.
const PROGRAMS: &[&str] = &[
    "pcfarm",
    "pcfarm-server",
    "pcfarm-worker",
    "pcfarm-recycler",
    "airline",
    "airline-agent",
    "airline-night",
    "office-agent",
    "office-submit",
];

/// A fenced block.
struct Block {
    file: String,
    line: usize,
    fence: String,
    text: String,
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the CLI is a folder of the repository").to_owned()
}

/// README.md, docs/*.md and the examples' READMEs.
fn pages() -> Vec<PathBuf> {
    let root = repository();
    let mut pages: Vec<PathBuf> = fs::read_dir(root.join("docs"))
        .expect("docs/ is there")
        .map(|entry| entry.expect("docs/ can be read").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    let examples = ["airline", "office", "programs"].map(|example| format!("examples/{example}/README.md"));
    pages.extend(examples.iter().map(|page| root.join(page)).chain([root.join("README.md")]));
    pages.sort();
    pages
}

fn blocks(page: &Path) -> Vec<Block> {
    let text = fs::read_to_string(page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
    let file = page.strip_prefix(repository()).expect("a page of ours").display().to_string();
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in text.lines().enumerate() {
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(fence), None) => {
                open = Some(Block {
                    file: file.clone(),
                    line: number + 1,
                    fence: fence.trim().to_owned(),
                    text: String::new(),
                });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some(block)) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{file}: a block is not closed");
    blocks
}

/// A block's command lines, with continuations joined.
fn command_lines(block: &Block) -> Vec<String> {
    let text = block.text.replace("\\\n", " ");
    match block.fence.as_str() {
        "sh" => text.lines().map(str::to_owned).collect(),
        "console" => text.lines().filter_map(|line| line.strip_prefix("$ ")).map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}

/// A line's simple commands, each as words without quotes. `$(…)` stays within its word; redirections are left out.
fn commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut depth = 0;
    let mut characters = line.chars().peekable();
    while let Some(c) = characters.next() {
        let plain = quote.is_none() && depth == 0;
        match c {
            '\\' if quote != Some('\'') => word.get_or_insert_default().extend(characters.next()),
            '$' if quote != Some('\'') && characters.peek() == Some(&'(') => {
                characters.next();
                depth += 1;
                word.get_or_insert_default().push_str("$(");
            }
            ')' if depth > 0 => {
                depth -= 1;
                word.get_or_insert_default().push(')');
            }
            c if depth > 0 => word.get_or_insert_default().push(c),
            c if quote == Some(c) => quote = None,
            '\'' | '"' if plain => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            '#' if plain && word.is_none() => break,
            '|' | '&' | ';' | '<' | '>' if plain => {
                commands.last_mut().expect("never empty").extend(word.take());
                // What follows a redirection is a file: like a command that nobody knows.
                commands.push(Vec::new());
            }
            c if plain && c.is_whitespace() => commands.last_mut().expect("never empty").extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    commands.last_mut().expect("never empty").extend(word.take());
    commands.retain(|words| !words.is_empty());
    commands
}

fn check_script(name: &str, arguments: &[String]) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;
    let path = repository().join(name);
    let metadata = fs::metadata(&path).map_err(|error| format!("{name}: {error}"))?;
    if metadata.permissions().mode() & 0o111 == 0 {
        return Err(format!("{name} is not executable"));
    }
    let text = fs::read_to_string(&path).map_err(|error| format!("{name}: {error}"))?;
    let mut flags = arguments.iter().filter(|word| word.starts_with("--"));
    match flags.find(|flag| !text.contains(flag.as_str())) {
        Some(flag) => Err(format!("{name} does not name {flag}")),
        None => Ok(()),
    }
}

/// `cargo build` and `cargo run`: packages exist, and what `run` starts is checked like any program.
fn check_cargo(helps: &mut Helps, arguments: &[String]) -> Result<(), String> {
    let (own, passed) = match arguments.iter().position(|word| word == "--") {
        Some(at) => (&arguments[..at], &arguments[at + 1..]),
        None => (arguments, &[][..]),
    };
    let lock = fs::read_to_string(repository().join("Cargo.lock")).map_err(|error| error.to_string())?;
    let values_of = |flag: &'static str| own.windows(2).filter(move |pair| pair[0] == flag).map(|pair| &pair[1]);
    if let Some(package) = values_of("-p").find(|package| !lock.contains(&format!("name = \"{package}\"\n"))) {
        return Err(format!("there is no package {package}"));
    }
    match values_of("--bin").next() {
        Some(program) => check_program(helps, program, passed),
        None => Ok(()),
    }
}

/// A program of this workspace. Those of other packages may not have been built; `scripts/test` builds them all.
fn check_program(helps: &mut Helps, name: &str, arguments: &[String]) -> Result<(), String> {
    let name = if AGENTS.contains(&name) { "pcfarm-worker" } else { name };
    let path = if name == "pcfarm" { PathBuf::from(env!("CARGO_BIN_EXE_pcfarm")) } else { beside(name) };
    if !PROGRAMS.contains(&name) {
        return Err(format!("there is no program {name}"));
    }
    if !path.exists() {
        left_out::here(&format!("{name} has not been built, and its commands are not checked"));
        return Ok(());
    }
    check_by_help(helps, &path, arguments)
}

fn check(helps: &mut Helps, words: &[String]) -> Result<(), String> {
    let assigns = |word: &String| {
        let name = word.split('=').next().unwrap_or_default();
        word.contains('=') && !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let words = &words[words.iter().take_while(|word| assigns(word)).count()..];
    let Some((program, arguments)) = words.split_first() else { return Ok(()) };
    if let Some(at) = program.find("scripts/") {
        return check_script(&program[at..], arguments);
    }
    let name = program.rsplit('/').next().expect("a split has a part");
    match name {
        "cargo" => check_cargo(helps, arguments),
        "timeout" | "sudo" | "nohup" => {
            let at = arguments.iter().position(|word| word.starts_with("pcfarm")).unwrap_or(arguments.len());
            check(helps, &arguments[at..])
        }
        _ if ["pcfarm", "airline", "office"].iter().any(|own| name.starts_with(own)) || AGENTS.contains(&name) => {
            check_program(helps, name, arguments)
        }
        // The shell's own, PostgreSQL's, the system's.
        _ => Ok(()),
    }
}

#[test]
fn every_command_of_the_documentation_exists() {
    let mut helps = Helps::default();
    let mut checked = 0;
    let mut faults = Vec::new();
    for block in pages().iter().flat_map(|page| blocks(page)) {
        for line in command_lines(&block) {
            for words in commands(&line) {
                checked += 1;
                if let Err(fault) = check(&mut helps, &words) {
                    faults.push(format!("{}, block of line {}: {line}\n    {fault}", block.file, block.line));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(checked > 40, "only {checked} commands were found");
}

#[test]
fn a_wrong_command_is_found() {
    let mut helps = Helps::default();
    let cases = [
        ("pcfarm job load a.csv --name n --type t", true),
        ("PCFARM_SERVER=x pcfarm --timeout 3s jobs -o json | head", true),
        ("pcfarm job dance 1", false),
        ("pcfarm jobs --fast", false),
        ("pcfarm --timeout 3s dance", false),
        ("cd x && pcfarm-serve --listen y", false),
        ("scripts/demo --flights 2000", true),
        ("scripts/demo --fights 2000", false),
        ("scripts/dance", false),
        ("cargo run -p pcfarm-airline --bin airline -- --help", true),
        ("cargo build -p pcfarm-dance", false),
        ("psql -c 'select 1; pcfarm dance' # pcfarm dance", true),
        ("export A=\"$(pcfarm dance)\"", true),
    ];
    for (line, right) in cases {
        let outcome = commands(line).iter().try_for_each(|words| check(&mut helps, words));
        assert_eq!(outcome.is_ok(), right, "{line}: {outcome:?}");
    }
}

/// Runs a page's `sql` blocks in one session of psql, as a reader would.
async fn run_sql_of(page: &str) {
    let blocks = blocks(&repository().join(page));
    let blocks: Vec<&Block> = blocks.iter().filter(|block| block.fence == "sql").collect();
    assert!(!blocks.is_empty(), "{page} has no SQL");
    let mut script: String =
        blocks.iter().map(|block| format!("\\echo the block of line {}\n{}", block.line, block.text)).collect();
    // Roles belong to the whole server, which other runs may share.
    for role in ["desk_reader", "desk_writer", "desk_analyst"] {
        script = script.replace(role, &format!("{role}_{}", std::process::id()));
    }
    let database = testing::database().await;
    let mut psql = Command::new("psql")
        .args(["-X", "--quiet", "--no-password", "-v", "ON_ERROR_STOP=1", "-d", &database.url()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("psql comes with PostgreSQL's programs");
    let mut input = psql.stdin.take().expect("it is piped");
    let writing = std::thread::spawn(move || input.write_all(script.as_bytes()));
    let output = psql.wait_with_output().expect("psql ends");
    let told = String::from_utf8_lossy(&output.stdout);
    let last = told.lines().rfind(|line| line.starts_with("the block of line")).unwrap_or("no block");
    assert!(output.status.success(), "{page}, {last}: {}", String::from_utf8_lossy(&output.stderr));
    writing.join().expect("the writer does not panic").expect("psql reads all");
    assert_eq!(last, format!("the block of line {}", blocks[blocks.len() - 1].line), "{page}");
}

#[tokio::test]
async fn the_sql_of_the_guide_runs() {
    run_sql_of("docs/guide.md").await;
}

#[tokio::test]
async fn the_sql_of_the_readme_runs() {
    run_sql_of("README.md").await;
}

#[tokio::test]
async fn the_sql_of_the_page_on_schedules_runs() {
    run_sql_of("docs/schedules.md").await;
}

#[tokio::test]
async fn the_sql_of_the_page_on_alerts_runs() {
    run_sql_of("docs/alerts.md").await;
}
