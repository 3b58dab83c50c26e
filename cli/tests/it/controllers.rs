//! The page on controllers that are programs, done by a reader: its program, its settings, its SQL, on a real farm.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::real::{Farm, Running, program};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// The first fenced block of this kind that begins so.
fn block<'a>(page: &'a str, fence: &str, begins: &str) -> Result<&'a str> {
    let mut blocks = page.split("\n```").filter_map(|block| block.strip_prefix(fence)?.strip_prefix('\n'));
    blocks.find(|block| block.starts_with(begins)).with_context(|| format!("the page has no {fence} {begins}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_controller_of_the_page_works() -> Result<()> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/controllers.md");
    let page = fs::read_to_string(page)?;
    let mut farm = Farm::start().await?;
    // The program runs as nobody if this runs as root.
    let directory = farm.directory.path().to_owned();
    fs::set_permissions(&directory, Permissions::from_mode(0o755))?;
    let script = farm.file("square.py", block(&page, "python", "#!/usr/bin/env python3")?)?;
    fs::set_permissions(&script, Permissions::from_mode(0o644))?;
    let settings = block(&page, "toml", "[[program]]\nname = \"square\"")?.replace("/opt/square.py", &script);
    let settings = format!("work_dir = {:?}\n{settings}", directory.join("work"));
    let config = farm.file("worker.toml", &settings)?;
    let worker = |command: &[&str]| -> Result<Command> {
        let mut worker = program("pcfarm-worker")?;
        worker
            .args(command)
            .args(["--server", &farm.url, "--config", &config, "--state-dir"])
            .arg(directory.join("state"));
        Ok(worker)
    };
    // As the page has it: only where nothing would hide the agent's key.
    let doctor = worker(&["doctor"])?.output()?;
    if String::from_utf8_lossy(&doctor.stdout).contains("say trusted = true") {
        fs::write(&config, settings + "\ntrusted = true\n")?;
    }
    let mut agent = worker(&["--cores", "2"])?;
    let log = fs::File::create(directory.join("agent.log"))?;
    let _agent = Running(agent.stdout(Stdio::null()).stderr(log).spawn()?);

    farm.sql.batch_execute(block(&page, "sql", "select pcfarm.create_job_type('square'")?).await?;
    let waited = farm.run("job wait 1 --timeout 60s").await?;
    let log = || fs::read_to_string(directory.join("agent.log"));
    ensure!(waited.code == Some(0), "{waited:?}, {}", log()?);
    let results = farm.json("job results 1").await?;
    let outcomes = results["outcomes"].as_array().context("outcomes")?;
    ensure!(outcomes.len() == 1000, "{} outcomes", outcomes.len());
    for outcome in outcomes {
        let n: i64 = outcome["key"].as_str().context("a key")?.parse()?;
        ensure!(outcome["result"] == json!({"square": n * n}), "{outcome}");
    }

    // What goes wrong is told with its reason, and where it came from.
    let bad = farm.file("bad.ndjson", "{\"key\": \"bad\", \"payload\": {\"m\": 1}}\n")?;
    let loaded = farm.json(&format!("job load {bad} --name bad --type square")).await?;
    let job: &Value = &loaded["job_id"];
    let job = job.as_str().context("an id")?;
    farm.ends(7, &format!("job wait {job} --timeout 60s")).await?;
    let failed = farm.ends(0, &format!("problems {job} --state failed")).await?;
    ensure!(failed.contains("KeyError('n')"), "{failed}");
    farm.kill_agents();
    Ok(())
}
