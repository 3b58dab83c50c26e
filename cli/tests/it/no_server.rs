//! The program without a farm: wrong usage, nobody there, completions.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::Result;

fn pcfarm(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pcfarm"));
    command.args(arguments.split_whitespace()).stdin(Stdio::null()).env("HOME", "/nowhere");
    for (name, _) in std::env::vars_os() {
        let name_text = name.to_string_lossy();
        if name_text.starts_with("PCFARM_") || name_text.starts_with("XDG_") || name_text.starts_with("PG") {
            command.env_remove(&name);
        }
    }
    command
}

fn code_and_error(output: &Output) -> (i32, String) {
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// An address where nobody listens: it was free a moment ago.
fn nobody() -> Result<String> {
    Ok(format!("http://{}", TcpListener::bind("127.0.0.1:0")?.local_addr()?))
}

#[test]
fn wrong_usage_is_two() -> Result<()> {
    let lines = [
        "",
        "dance",
        "job show night",
        "jobs --output csv",
        "jobs --server ftp://farm",
        "jobs --timeout soon",
        "jobs --config /no/such/file.toml",
        "job load a.txt --job 1 --server 127.0.0.1:1",
        "job results 1 --output table",
        "problems 1 --state lost",
        "up --listen here",
    ];
    for line in lines {
        let (code, error) = code_and_error(&pcfarm(line).output()?);
        // What is only wrong once a server is needed must not hide behind its absence, except for a load's file.
        let accepted: &[i32] = if line.contains("job load") { &[2, 3] } else { &[2] };
        assert!(accepted.contains(&code) && !error.is_empty(), "{line}: {code} {error}");
    }
    Ok(())
}

#[test]
fn nobody_there_is_three_with_advice() -> Result<()> {
    let server = nobody()?;
    for line in ["status", "jobs", "job show 7", "drain 3", "explain workstation pc1", "job results 7", "top"] {
        let (code, error) = code_and_error(&pcfarm(line).args(["--server", &server]).output()?);
        let expected = format!(
            "error: no PC Farm server answers at {server}: connection refused. \
             Start one with `pcfarm up` or name another with --server\n"
        );
        assert_eq!((code, error), (3, expected), "{line}");
    }
    Ok(())
}

#[test]
fn the_variable_is_above_the_file_and_the_flag_above_both() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("pcfarm.toml");
    let [filed, set, flagged] = [nobody()?, nobody()?, nobody()?];
    std::fs::write(&file, format!("server = \"{filed}\"\n"))?;
    let error = |command: &mut Command| -> Result<String> { Ok(code_and_error(&command.output()?).1) };
    let configured = || {
        let mut command = pcfarm("status");
        command.env("PCFARM_CONFIG", &file);
        command
    };
    assert!(error(&mut configured())?.contains(&filed));
    assert!(error(configured().env("PCFARM_SERVER", &set))?.contains(&set));
    let both = error(configured().env("PCFARM_SERVER", &set).args(["--server", &flagged]))?;
    assert!(both.contains(&flagged), "{both}");
    Ok(())
}

#[test]
fn a_server_that_says_nothing_is_not_waited_for_longer_than_asked() -> Result<()> {
    let silent = TcpListener::bind("127.0.0.1:0")?;
    let server = format!("http://{}", silent.local_addr()?);
    let (code, error) = code_and_error(&pcfarm("status --timeout 0.3").args(["--server", &server]).output()?);
    assert_eq!(code, 6, "{error}");
    assert!(error.contains("within 300 ms") && error.contains("--timeout"), "{error}");
    Ok(())
}

#[test]
fn a_wrong_database_is_wrong_usage_and_an_absent_one_is_not_reachable() -> Result<()> {
    let load = "job load --name n --type t --query select --database-url";
    let (code, error) = code_and_error(&pcfarm(load).arg("postgres://%zz").output()?);
    assert_eq!(code, 2, "{error}");
    let gone = nobody()?.replace("http", "postgres");
    let (code, error) = code_and_error(&pcfarm(load).arg(format!("{gone}/x")).output()?);
    assert_eq!(code, 3, "{error}");
    assert!(error.contains("--database-url"), "{error}");
    Ok(())
}

#[test]
fn completions_and_help_need_no_server() -> Result<()> {
    for shell in ["bash", "zsh", "fish"] {
        let output = pcfarm("completions").arg(shell).output()?;
        assert!(output.status.success());
        assert!(String::from_utf8(output.stdout)?.contains("workstations"), "{shell}");
    }
    let help = pcfarm("job load --help").output()?;
    let text = String::from_utf8(help.stdout)?;
    assert!(text.contains("so 007 and +1 are text"), "{text}");
    Ok(())
}

#[test]
fn up_needs_its_programs_and_a_free_address() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let up = |listen: &str| -> Result<(i32, String)> {
        // A copy of the program has nothing beside it.
        let alone = directory.path().join("pcfarm");
        if !Path::new(&alone).exists() {
            std::fs::copy(env!("CARGO_BIN_EXE_pcfarm"), &alone)?;
        }
        let mut command = Command::new(&alone);
        command.args(["up", "--listen", listen, "--dir"]).arg(directory.path().join("farm"));
        Ok(code_and_error(&command.env("PATH", "/nowhere").output()?))
    };
    let (code, error) = up(&taken.local_addr()?.to_string())?;
    assert!(code == 1 && error.contains("--listen"), "{code} {error}");
    let (code, error) = up("127.0.0.1:0")?;
    assert!(code == 4 && error.contains("pcfarm-server is neither"), "{code} {error}");
    Ok(())
}

/// A directory with the program and a `pcfarm-server` that is this shell script.
fn with_programs(server: &str) -> Result<tempfile::TempDir> {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir()?;
    std::fs::copy(env!("CARGO_BIN_EXE_pcfarm"), directory.path().join("pcfarm"))?;
    for (name, script) in [("pcfarm-server", server), ("pcfarm-worker", "sleep 1000")] {
        let path = directory.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n"))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    }
    Ok(directory)
}

fn up(directory: &Path) -> Command {
    let mut command = Command::new(directory.join("pcfarm"));
    command.args(["up", "--listen", "127.0.0.1:0", "--dir"]).arg(directory.join("farm"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn up_tells_why_its_server_ended() -> Result<()> {
    let directory = with_programs("echo \"options: $*\"; echo 'no initdb here' >&2; exit 3")?;
    let (code, error) = code_and_error(&up(directory.path()).output()?);
    assert_eq!(code, 3, "{error}");
    let farm = directory.path().join("farm").canonicalize()?;
    let options = format!("options: --embedded {} --listen 127.0.0.1:0\nno initdb here\n", farm.display());
    assert!(error.contains("the server ended (exit status: 3)") && error.ends_with(&options), "{error}");
    Ok(())
}

#[test]
fn up_leaves_nothing_running() -> Result<()> {
    use std::io::{BufRead, BufReader};
    // It says that it was asked to stop; its child would go on if it were not.
    let server = "trap 'echo stopped; kill $child; exit 0' TERM; echo $$ > \"$2/pid\"; sleep 1000 & child=$!; wait";
    let directory = with_programs(server)?;
    let mut running = up(directory.path()).spawn()?;
    let mut first = String::new();
    let stderr = running.stderr.take().expect("it is a pipe");
    let mut stderr = BufReader::new(stderr);
    stderr.read_line(&mut first)?;
    assert!(first.starts_with("starting a farm in "), "{first}");
    let pid = directory.path().join("farm/pid");
    let server = loop {
        match std::fs::read_to_string(&pid) {
            Ok(text) if text.ends_with('\n') => break text.trim().to_owned(),
            _ => std::thread::yield_now(),
        }
    };
    let signal = |signal: &str, pid: &str| Command::new("kill").args([signal, pid]).stderr(Stdio::null()).status();
    assert!(signal("-INT", &running.id().to_string())?.success());
    assert_eq!(running.wait()?.code(), Some(0));
    assert!(!signal("-0", &server)?.success(), "the server is gone");
    let log = std::fs::read_to_string(directory.path().join("farm/server.log"))?;
    assert!(log.contains("stopped"), "{log}");
    Ok(())
}
