//! `pcfarm types` and `pcfarm users quota` with a real farm.

use crate::real::Farm;
use anyhow::{Context, Result, ensure};
use serde_json::json;

type Test = Result<()>;

#[tokio::test(flavor = "multi_thread")]
async fn job_types_are_made_changed_and_removed() -> Test {
    let farm = Farm::start().await?.with_agent().await?;
    farm.ends(0, "resources set licence 3").await?;
    let set = [
        "types",
        "set",
        "solve",
        "--controller",
        "echo",
        "--description",
        "of a solver",
        "--priority",
        "-2",
        "--duration",
        "8h",
        "--max-attempts",
        "5",
        "--time-limit",
        "90s",
        "--backoff",
        "2s",
        "--retry-delay-limit",
        "1m",
        "--retry-first",
        "--keep-results",
        "true",
        "--retention",
        "90d",
        "--resource",
        "licence=1",
        "--label",
        "big",
        "--label",
        "fast",
        "--require",
        "memory >= 1024 KiB",
        "--require",
        "cores>=1",
        "--version",
        "none",
    ];
    let made = farm.run_all(&set).await?;
    ensure!(made.code == Some(0) && made.stdout.contains("licence (1)"), "{made:?}");
    let twice = farm.run_all(&set).await?;
    ensure!(twice.code == Some(1) && twice.stderr.contains("not of the version"), "{twice:?}");
    let shown = farm.json("types show solve").await?;
    let expected = json!({"name": "solve", "controller": "echo", "description": "of a solver", "default_priority": -2,
        "default_duration_seconds": 28800.0, "max_attempts": 5, "time_limit_seconds": 90.0, "retry_delay_seconds": 2.0,
        "retry_delay_limit_seconds": 60.0, "retry_first": true, "keep_results": true, "retention_seconds": 7776000.0,
        "resources": {"licence": 1}, "labels": ["big", "fast"], "require": ["cores >= 1", "memory >= 1 MiB"], "read_role": null, "read_time_limit_seconds": 30.0,
        "reads": [], "write_role": null, "write_back": null, "suspended_since": null, "suspended_reason": null,
        "version": shown["version"]});
    ensure!(shown == expected, "{shown}");

    // What is not named stays.
    farm.ends(
        0,
        "types set solve --max-attempts 2 --duration none --label none --require cores>=2 --resource licence=0",
    )
    .await?;
    let changed = farm.json("types show solve").await?;
    ensure!(changed["max_attempts"] == 2 && changed["default_duration_seconds"].is_null(), "{changed}");
    ensure!(changed["labels"] == json!([]) && changed["resources"] == json!({}), "{changed}");
    ensure!(changed["require"] == json!(["cores >= 2"]), "{changed}");
    farm.ends(0, "types set solve --require none").await?;
    ensure!(farm.json("types show solve").await?["require"] == json!([]));
    let refused = farm.ends(2, "types set solve --require memory>=8").await?;
    ensure!(refused.contains("condition 'memory>=8': 8 is no size"), "{refused}");
    ensure!(changed["retention_seconds"] == 7776000.0 && changed["retry_first"] == true, "{changed}");
    let old = shown["version"].as_str().context("a version")?;
    farm.ends(1, &format!("types set solve --max-attempts 9 --version {old}")).await?;

    let listed = farm.ends(0, "types list").await?;
    ensure!(listed.contains("solve") && listed.contains("echo"), "{listed}");
    ensure!(listed.lines().all(|line| line.chars().count() <= 100), "{listed}");
    ensure!(farm.json("types list").await?["job_types"].as_array().map(Vec::len) == Some(4));
    farm.ends(0, "queue suspend --type solve --reason moving").await?;
    let told = farm.ends(0, "types show solve").await?;
    ensure!(told.contains("moving") && told.lines().all(|line| line.chars().count() <= 100), "{told}");
    farm.ends(0, "queue resume --type solve").await?;

    let file = farm.file("two.csv", "key,n\na,1\nb,2\n")?;
    let job = farm.json(&format!("job load {file} --name first --type solve")).await?["job_id"].clone();
    let job = job.as_str().context("an id")?;
    farm.ends(0, &format!("--timeout 30s job wait {job}")).await?;
    let refused = farm.ends(1, "types remove solve").await?;
    ensure!(refused.contains(&format!("in use: jobs {job}")) && refused.contains("retention"), "{refused}");
    farm.ends(0, "types set once --controller echo").await?;
    farm.ends(0, "types remove once").await?;
    farm.ends(4, "types show once").await?;
    farm.ends(4, "types delete once").await?;
    farm.ends(2, "types set once").await?;
    farm.ends(2, "types set once --controller echo --max-attempts 0").await?;
    farm.ends(2, "types set once --controller echo --resource nothing=1").await?;
    farm.ends(2, "types set once --controller echo --resource nothing").await?;
    farm.ends(2, "types set echo").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_nothing_could_run_says_so_and_runs_with_another_requirement() -> Test {
    let farm = Farm::start().await?.with_agent().await?;
    let file = farm.file("two.csv", "key,n\na,1\nb,2\n")?;
    let load = format!("job load {file} --name greedy --type echo --require memory>=100TiB --require cores>=1");
    let job = farm.json(&load).await?["job_id"].clone();
    let job = job.as_str().context("an id")?;
    let shown = farm.json(&format!("job show {job}")).await?;
    ensure!(shown["require"] == json!(["cores >= 1", "memory >= 100 TiB"]), "{shown}");
    let why = shown["without_workstation"][0].as_str().context("a reason")?;
    ensure!(why.starts_with("no workstation has memory >= 100 TiB: the most is "), "{why}");
    ensure!(farm.ends(0, &format!("job show {job}")).await?.contains("requires"));
    let explained = farm.ends(0, &format!("explain job {job}")).await?;
    ensure!(
        explained.contains(why) && explained.contains(&format!("pcfarm job require {job} CONDITION")),
        "{explained}"
    );
    ensure!(farm.ends(0, "jobs").await?.contains("memory >= 100 TiB"));
    let facts = farm.json("workstations").await?["workstations"][0].clone();
    ensure!(facts["system_name"] == std::env::consts::OS && facts["arch"] == std::env::consts::ARCH, "{facts}");
    let table = farm.ends(0, "workstations --facts").await?;
    ensure!(table.contains(std::env::consts::ARCH) && table.lines().all(|line| line.chars().count() <= 100), "{table}");

    let refused = farm.ends(2, &format!("job require {job} colour=red")).await?;
    ensure!(refused.contains("agents do not report colour"), "{refused}");
    farm.ends(2, &format!("job load {file} --job {job} --require gpu")).await?;
    let changed = farm.run_all(&["job", "require", job, &format!("arch = {}", std::env::consts::ARCH)]).await?;
    ensure!(changed.code == Some(0), "{changed:?}");
    farm.ends(0, &format!("--timeout 30s job wait {job}")).await?;
    let ended = farm.json(&format!("job show {job}")).await?;
    ensure!(ended["state"] == "done" && ended["without_workstation"] == json!([]), "{ended}");
    farm.ends(1, &format!("job require {job} none")).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn quotas_are_seen_and_changed() -> Test {
    let farm = Farm::start().await?;
    let owner: String = farm.sql.query_one("select session_user::text", &[]).await?.get(0);
    ensure!(farm.ends(0, "users quota").await?.contains("no quotas"));
    let line = format!("users quota ann {owner} --per day --problems 2");
    ensure!(farm.ends(0, &line).await?.contains("ann"));
    farm.ends(0, "users quota ann --per month --cpu-seconds 3600").await?;
    let found = farm.json("users quota ann").await?;
    let ann = &found["users"][0];
    let expected = json!([{"period": "day", "problems": 2, "cpu_seconds": null, "used": 0},
        {"period": "month", "problems": null, "cpu_seconds": 3600.0, "used": 0}]);
    ensure!(ann["user"] == "ann" && ann["quotas"] == expected, "{found}");
    let file = farm.file("two.csv", "key,n\na,1\nb,2\n")?;
    farm.ends(0, &format!("job load {file} --name first --type echo")).await?;
    let refused = farm.run(&format!("job load {file} --name second --type echo")).await?;
    ensure!(refused.code != Some(0) && refused.stderr.contains("the quota is 2"), "{refused:?}");
    let mine = farm.json(&format!("users quota {owner}")).await?["users"][0].clone();
    ensure!(mine["quotas"][0]["used"] == 2, "{mine}");
    let old = mine["version"].as_str().context("a version")?.to_owned();
    farm.ends(0, &format!("users quota {owner} --per day --problems none --version {old}")).await?;
    farm.ends(1, &format!("users quota {owner} --per day --problems 1 --version {old}")).await?;
    farm.ends(0, &format!("job load {file} --name second --type echo")).await?;
    let shown = farm.ends(0, "users quota").await?;
    ensure!(shown.contains("ann") && !shown.contains(&owner), "{shown}");
    farm.ends(2, "users quota ann --problems 3").await?;
    farm.ends(2, "users quota --per day --problems 3").await?;
    farm.ends(2, "users quota ann --per day").await?;
    farm.ends(2, "users quota ann --per day --problems -3").await?;
    Ok(())
}
