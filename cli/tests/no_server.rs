//! The program without a farm: wrong usage, nobody there, completions.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::Result;

fn pcfarm(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pcfarm"));
    command
        .args(arguments.split_whitespace())
        .stdin(Stdio::null())
        .env("HOME", "/nowhere");
    for (name, _) in std::env::vars_os() {
        let name_text = name.to_string_lossy();
        if name_text.starts_with("PCFARM_")
            || name_text.starts_with("XDG_")
            || name_text.starts_with("PG")
        {
            command.env_remove(&name);
        }
    }
    command
}

fn code_and_error(output: &Output) -> (i32, String) {
    (
        output.status.code().unwrap_or(-1),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

/// An address where nobody listens: it was free a moment ago.
fn nobody() -> Result<String> {
    Ok(format!(
        "http://{}",
        TcpListener::bind("127.0.0.1:0")?.local_addr()?
    ))
}

#[test]
fn wrong_usage_is_two() -> Result<()> {
    let lines = [
        "",
        "dance",
        "job show night",
        "jobs --output csv",
        "jobs --server https://farm",
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
        let accepted: &[i32] = if line.contains("job load") {
            &[2, 3]
        } else {
            &[2]
        };
        assert!(
            accepted.contains(&code) && !error.is_empty(),
            "{line}: {code} {error}"
        );
    }
    Ok(())
}

#[test]
fn nobody_there_is_three_with_advice() -> Result<()> {
    let server = nobody()?;
    for line in [
        "status",
        "jobs",
        "job show 7",
        "drain 3",
        "explain workstation pc1",
        "job results 7",
        "top",
    ] {
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
    let error =
        |command: &mut Command| -> Result<String> { Ok(code_and_error(&command.output()?).1) };
    let configured = || {
        let mut command = pcfarm("status");
        command.env("PCFARM_CONFIG", &file);
        command
    };
    assert!(error(&mut configured())?.contains(&filed));
    assert!(error(configured().env("PCFARM_SERVER", &set))?.contains(&set));
    let both = error(
        configured()
            .env("PCFARM_SERVER", &set)
            .args(["--server", &flagged]),
    )?;
    assert!(both.contains(&flagged), "{both}");
    Ok(())
}

#[test]
fn a_server_that_says_nothing_is_not_waited_for_longer_than_asked() -> Result<()> {
    let silent = TcpListener::bind("127.0.0.1:0")?;
    let server = format!("http://{}", silent.local_addr()?);
    let (code, error) = code_and_error(
        &pcfarm("status --timeout 0.3")
            .args(["--server", &server])
            .output()?,
    );
    assert_eq!(code, 6, "{error}");
    assert!(
        error.contains("within 300 ms") && error.contains("--timeout"),
        "{error}"
    );
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
        assert!(
            String::from_utf8(output.stdout)?.contains("workstations"),
            "{shell}"
        );
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
        command
            .args(["up", "--listen", listen, "--dir"])
            .arg(directory.path().join("farm"));
        Ok(code_and_error(&command.env("PATH", "/nowhere").output()?))
    };
    let (code, error) = up(&taken.local_addr()?.to_string())?;
    assert!(code == 1 && error.contains("--listen"), "{code} {error}");
    let (code, error) = up("127.0.0.1:0")?;
    assert!(
        code == 4 && error.contains("pcfarm-server is neither"),
        "{code} {error}"
    );
    Ok(())
}
