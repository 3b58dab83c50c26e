//! `pcfarm schedules` with a real farm: what is created comes, what is changed stays, and nothing is lost in between.

use crate::real::{Farm, Ran};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

type Test = Result<()>;

async fn farm() -> Result<Farm> {
    let farm = Farm::start().await?.with_agent().await?;
    farm.sql
        .batch_execute(
            "select pcfarm.create_job('standing', 'echo', '{\"standing\": true, \"unique_key\": \"desk\"}');
             select pcfarm.open_job(job_id) from pcfarm.job",
        )
        .await?;
    Ok(farm)
}

async fn ran(farm: &Farm, arguments: &[&str]) -> Result<Ran> {
    farm.run_all(&[&["schedules"], arguments].concat()).await
}

async fn done(farm: &Farm, arguments: &[&str]) -> Result<String> {
    let ran = ran(farm, arguments).await?;
    ensure!(ran.code == Some(0), "{arguments:?}: {ran:?}");
    let widest = ran.stdout.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    ensure!(widest <= 100 || arguments[0] == "export", "{widest} columns: {}", ran.stdout);
    Ok(ran.stdout)
}

async fn refused(farm: &Farm, code: i32, arguments: &[&str]) -> Result<String> {
    let ran = ran(farm, arguments).await?;
    ensure!(ran.code == Some(code), "{arguments:?}: {code} expected of {ran:?}");
    Ok(ran.stderr)
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_are_created_come_and_are_changed() -> Test {
    let farm = farm().await?;
    let create = [
        "create",
        "beat",
        "every 1 second",
        "--job-key",
        "desk",
        "--payload",
        r#"{"exact": 1.10}"#,
        "--catch-up",
        "all",
    ];
    assert!(done(&farm, &create).await?.contains("comes next at"));
    farm.until("select least(count(*), 2) from pcfarm.result", 2).await?;
    let history = farm.json("schedules history beat").await?;
    let last = history["triggers"].as_array().context("an array")?.last().context("one")?.clone();
    assert_eq!((&last["sequence"], &last["outcome"]), (&json!(1), &json!("done")), "{history}");
    assert!(done(&farm, &["history", "beat"]).await?.contains("OUTCOME"));
    let solution = farm.sql.query_one("select solution::text from pcfarm.result limit 1", &[]).await?;
    assert!(solution.try_get::<_, String>(0)?.contains(r#"{"exact": 1.10}"#));

    let shown = farm.json("schedules show beat").await?;
    assert_eq!((&shown["state"], &shown["job_key"], &shown["version"]), (&json!("active"), &json!("desk"), &json!(1)));
    assert!(done(&farm, &["show", "beat"]).await?.contains("every 1 second"));
    let listed = done(&farm, &["list"]).await?;
    assert!(listed.contains("beat") && listed.contains("TRIGGERS"), "{listed}");

    done(&farm, &["update", "beat", "--recurrence", "0 3 * * mon-fri", "--zone", "Europe/Berlin", "--version", "1"])
        .await?;
    let lost = refused(&farm, 1, &["update", "beat", "--description", "x", "--version", "1"]).await?;
    assert!(lost.contains("has been changed meanwhile"), "{lost}");
    let shown = farm.json("schedules show beat").await?;
    assert_eq!(
        (&shown["version"], &shown["time_zone"], &shown["payload"]["exact"]),
        (&json!(2), &json!("Europe/Berlin"), &json!(1.1))
    );
    let next = farm.json("schedules next beat --count 3").await?;
    assert_eq!(next["times"].as_array().map(Vec::len), Some(3), "{next}");

    done(&farm, &["disable", "beat"]).await?;
    assert_eq!(farm.json("schedules list --state disabled").await?["schedules"][0]["name"], json!("beat"));
    let before = farm.number("select sequence from pcfarm.schedule_next").await?;
    done(&farm, &["trigger", "beat"]).await?;
    farm.until("select sequence from pcfarm.schedule_next", before + 1).await?;
    assert!(done(&farm, &["history", "beat", "--limit", "1"]).await?.contains("by hand"));
    done(&farm, &["enable", "beat"]).await?;
    done(&farm, &["update", "beat", "--rename", "pulse"]).await?;
    refused(&farm, 4, &["show", "beat"]).await?;
    done(&farm, &["delete", "pulse"]).await?;
    refused(&farm, 4, &["trigger", "pulse"]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_is_told() -> Test {
    let farm = farm().await?;
    let cases: [(&[&str], &str); 8] = [
        (&["create", "a", "0 0 30 2 *", "--job-key", "desk"], "there is no such date"),
        (&["create", "a", "61 * * * *", "--job-key", "desk"], "no cron expression"),
        (&["create", "a", "once 2020-01-01T00:00", "--job-key", "desk"], "in the past"),
        (&["create", "a", "@daily", "--job-key", "desk", "--zone", "Mars/Olympus"], "no time zone"),
        (&["create", "a", "every 1s", "--job-key", "desk", "--jitter", "2s"], "jitter"),
        (&["create", "a", "@daily", "--job-key", "nobody's"], "has no job of unique key"),
        (&["create", "a", "@daily", "--job-key", "desk", "--payload", "{"], "payload"),
        (&["create", "a", "@daily"], "nothing that it does"),
    ];
    for (arguments, expected) in cases {
        let told = refused(&farm, 2, arguments).await?;
        assert!(told.contains(expected), "{arguments:?}: {told}");
    }
    done(&farm, &["create", "a", "@daily", "--job-key", "desk"]).await?;
    let twice = ran(&farm, &["create", "a", "@daily", "--job-key", "desk"]).await?;
    assert!(twice.code != Some(0) && twice.stderr.contains("has a schedule 'a' already"), "{twice:?}");
    refused(&farm, 2, &["update", "a", "--recurrence", "0 0 31 2 *"]).await?;
    assert_eq!(farm.json("schedules show a").await?["recurrence"], json!("@daily"));
    let times = done(&farm, &["next", "--recurrence", "30 2 * * *", "--zone", "UTC", "-n", "2"]).await?;
    assert_eq!(times.lines().count(), 3, "{times}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn definitions_move_between_farms() -> Test {
    let (from, to) = tokio::join!(farm(), farm());
    let (from, to) = (from?, to?);
    done(&from, &["create", "a", "@daily", "--job-key", "desk", "--payload", "12345678901234567890.10"]).await?;
    done(
        &from,
        &["create", "b", "every 2 weeks", "--job-key", "desk", "--starts", "2035-01-01T00:00:00Z", "--disabled"],
    )
    .await?;
    let exported = done(&from, &["export"]).await?;
    assert!(exported.contains("12345678901234567890.10"), "{exported}");
    let one: Value = serde_json::from_str(&done(&from, &["export", "b"]).await?)?;
    let names = |document: &Value| {
        let all = document["schedules"].as_array().map(Vec::as_slice).unwrap_or_default();
        all.iter().filter_map(|one| one["name"].as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    assert_eq!((names(&one), names(&serde_json::from_str(&exported)?).len()), (vec!["b".to_owned()], 2));
    assert!(refused(&from, 4, &["export", "a", "nothing"]).await?.contains("there is no schedule \"nothing\""));
    let file = to.file("schedules.json", &exported)?;
    let action = |applied: &Value, name: &str| applied["schedules"][name].as_str().map(str::to_owned);
    let dry = to.json(&format!("schedules apply {file} --dry-run")).await?;
    assert_eq!(
        (action(&dry, "a").as_deref(), to.number("select count(*) from pcfarm.schedule").await?),
        (Some("created"), 0)
    );
    let applied = to.json(&format!("schedules apply {file}")).await?;
    assert_eq!(action(&applied, "b").as_deref(), Some("created"));
    assert_eq!(done(&to, &["export"]).await?, exported);
    done(&to, &["create", "c", "@hourly", "--job-key", "desk"]).await?;
    done(&to, &["update", "a", "--zone", "Asia/Tokyo"]).await?;
    let applied = to.json(&format!("schedules apply {file} --prune")).await?;
    let actions = ["a", "b", "c"].map(|name| action(&applied, name));
    assert_eq!(
        actions.each_ref().map(|action| action.as_deref()),
        [Some("updated"), Some("unchanged"), Some("deleted")]
    );
    // All of it or nothing.
    let broken = exported.replace("every 2 weeks", "every fortnight").replace("@daily", "@hourly");
    let broken = to.file("broken.json", broken)?;
    let told = refused(&to, 2, &["apply", &broken]).await?;
    assert!(told.contains("schedule \"b\": ") && told.contains("no interval"), "{told}");
    assert_eq!(to.json("schedules show a").await?["recurrence"], json!("@daily"));
    Ok(())
}
