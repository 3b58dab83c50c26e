//! `pcfarm up`, as a new user runs it: a farm with a private database, from the first job to Ctrl-C.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context, Result, ensure};

struct Up(Child);

impl Drop for Up {
    fn drop(&mut self) {
        let _ = signal(&self.0, "-INT"); // it may have ended
        let _ = self.0.wait();
    }
}

fn signal(child: &Child, name: &str) -> Result<()> {
    ensure!(Command::new("kill").args([name, &child.id().to_string()]).status()?.success());
    Ok(())
}

fn pcfarm(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pcfarm"));
    for (name, _) in std::env::vars_os() {
        if ["PCFARM_", "PG", "DATABASE_URL"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

fn succeeds(mut command: Command) -> Result<String> {
    let Output { status, stdout, stderr } = command.output()?;
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout).into_owned(), String::from_utf8_lossy(&stderr));
    ensure!(status.success(), "{command:?}: {status}\n{stdout}{stderr}");
    Ok(stdout)
}

/// What it says until it says how to go on, and the address in it.
fn welcomed(up: &mut Up) -> Result<String> {
    let mut said = String::new();
    for line in BufReader::new(up.0.stdout.take().context("a pipe")?).lines() {
        said.push_str(&line?);
        said.push('\n');
        if said.contains("Ctrl-C stops it") {
            let url = said.split_whitespace().find(|word| word.starts_with("http://")).context("an address")?;
            return Ok(url.trim_end_matches(',').to_owned());
        }
    }
    anyhow::bail!("it ended: {said}")
}

/// Nothing of its database runs.
fn is_stopped(directory: &Path) -> Result<bool> {
    for process in std::fs::read_dir("/proc")? {
        let line = std::fs::read_to_string(process?.path().join("cmdline")).unwrap_or_default();
        if line.contains(&*directory.to_string_lossy()) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[test]
fn a_farm_from_the_first_job_to_the_last() -> Result<()> {
    let home = tempfile::tempdir()?;
    // The database's own account has to get through.
    std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o755))?;
    let directory = home.path().canonicalize()?.join("farm");
    let free = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    for start in ["the first", "again, with what was kept"] {
        let mut command = pcfarm(&["up", "--listen", &free, "--workers", "1", "--dir"]);
        let mut up = Up(command.arg(&directory).stdout(Stdio::piped()).spawn()?);
        let url = welcomed(&mut up).context(start)?;
        ensure!(url == format!("http://{free}"), "{url}");
        let socket = std::fs::read_to_string(directory.join("socket"))?;
        let database = format!("host={} user=pcfarm dbname=pcfarm", socket.trim());
        if start == "the first" {
            let mut psql = Command::new("psql");
            psql.args([&*database, "-c", "select pcfarm.create_job_type('first', 'echo')"]);
            succeeds(psql)?;
        }
        let problems = home.path().join("problems.csv");
        std::fs::write(&problems, "key,n\na,1\nb,2\n")?;
        let file = problems.to_string_lossy();
        let load = ["--server", &url, "job", "load", &file, "--name", "first", "--type", "first", "--output", "json"];
        let loaded: serde_json::Value = serde_json::from_str(&succeeds(pcfarm(&load))?)?;
        let job = loaded["job_id"].as_str().context("an id")?.to_owned();
        succeeds(pcfarm(&["--server", &url, "--timeout", "30s", "job", "wait", &job]))?;
        let results = succeeds(pcfarm(&["--server", &url, "job", "results", &job]))?;
        ensure!(results.lines().count() == 2, "{results}");
        let query = "select 'q' as key, '1'::jsonb as payload";
        let load = ["--server", &url, "job", "load", "--query", query, "--database-url", &database];
        let said = succeeds(pcfarm(&[&load[..], &["--name", "by query", "--type", "first"]].concat()))?;
        ensure!(said.contains("1 problem"), "{said}");
        let status = succeeds(pcfarm(&["--server", &url, "status"]))?;
        ensure!(status.contains("1 server") || status.contains(&free), "{status}");
        signal(&up.0, "-INT")?;
        ensure!(up.0.wait()?.success());
        ensure!(is_stopped(&directory)?, "something still runs");
    }
    Ok(())
}
