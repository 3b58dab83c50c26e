//! The program against a server that answers from a script: what it sends, shows and ends with.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::Duration;

use crate::script::{self, Ended, Farm, Submitted};
use anyhow::{Context, Result};

type Test = Result<()>;

/// The last Submit, once its stream has come to an end at the server.
async fn last_submit(farm: &Farm) -> Result<(Submitted, Option<Ended>)> {
    tokio::time::timeout(Duration::from_secs(10), farm.state.submit_ended.notified()).await?;
    let submits = farm.state.submits.lock().expect("no test panics with it");
    submits.last().cloned().context("nothing was submitted")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_shown_fits_and_is_harmless() -> Test {
    let farm = Farm::start().await?;
    for line in [
        "status",
        "jobs",
        "jobs --all",
        "job show 1",
        "workstations",
        "problems 1 --state in_progress",
        "workstations all",
        "drain pc1",
        "drain all --yes --reason moving",
        "note fan all",
        "forget all --yes",
        "explain job 7",
        "explain workstation pc1",
        "events",
        "job hold 1",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let ran = farm.run(&words).await?;
        assert_eq!(ran.code, Some(0), "{line}: {ran:?}");
        for shown in ran.stdout.lines() {
            assert!(shown.chars().count() <= 100, "{line}: {shown}");
            assert!(!shown.chars().any(|c| c.is_control() || c == '\u{202e}'), "{line}: {shown:?}");
        }
        let mut json = words.clone();
        json.extend(["--output", "json"]);
        let ran = farm.run(&json).await?;
        let document: serde_json::Value = serde_json::from_str(&ran.stdout).context(line.to_owned())?;
        assert!(document.is_object(), "{line}");
    }
    let shown = farm.run(&["jobs"]).await?.stdout;
    assert!(shown.contains("1,234,567") && shown.contains("waits for"), "{shown}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn json_has_ids_as_strings_and_all_pages() -> Test {
    let farm = Farm::start().await?;
    let jobs: serde_json::Value = serde_json::from_str(&farm.run(&["jobs", "-o", "json"]).await?.stdout)?;
    assert_eq!(jobs["jobs"].as_array().map(Vec::len), Some(250));
    let first = &jobs["jobs"][0];
    assert_eq!(first["job_id"], "250");
    assert_eq!(first["problems"], 1_234_567);
    assert_eq!(first["created_at"], "2023-11-14T22:13:20.5Z");
    assert_eq!(first["ended_at"], serde_json::Value::Null);
    assert_eq!(first["lanes"][0]["next_insertion"], i64::MAX.to_string());
    let some = farm.run(&["problems", "1", "--limit", "110", "-o", "json"]).await?;
    let some: serde_json::Value = serde_json::from_str(&some.stdout)?;
    assert_eq!(some["problems"].as_array().map(Vec::len), Some(110));
    assert_eq!(some["problems"][0]["payload"]["x"], 1.1);
    let drained = farm.run(&["drain", "pc1", "-o", "json"]).await?;
    let drained: serde_json::Value = serde_json::from_str(&drained.stdout)?;
    assert_eq!(drained["workstations"][0]["state"], "draining");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_have_exit_codes_and_words() -> Test {
    let farm = Farm::start().await?;
    let cases = [
        ("job show 999", 4, "error: showing job 999: there is no job 999\n"),
        ("job cancel 403", 5, "error: cancelling job 403: job 403 is another user's\n"),
        ("job open 412", 1, "error: opening job 412: job 412 has ended (done)\n"),
        ("job create n --type unknown", 4, "error: creating job `n`: there is no job type 'unknown'\n"),
        ("drain nowhere", 4, "error: no workstation is called `nowhere`; `pcfarm workstations --all` lists them\n"),
        ("drain twin", 2, "error: several workstations are called `twin`: name one by its id, 2 or 3\n"),
        ("drain lab-*", 4, "error: no workstation's host name is like `lab-*`\n"),
        ("workstations 5-9", 4, "error: there is no workstation with an id from 5 to 9\n"),
        (
            "drain 1-3",
            2,
            "3 workstations: pc1, twin, twin\nerror: this would drain 3 workstations: pc1, twin, twin: if that is meant, say \
             --yes\n",
        ),
        ("forget pc1", 2, "error: this would forget 1 workstation: pc1, for good: if that is meant, say --yes\n"),
        ("top -o json", 2, "error: top is for people; `pcfarm status --output json` is for programs\n"),
    ];
    for (line, code, words) in cases {
        let ran = farm.run(&line.split(' ').collect::<Vec<_>>()).await?;
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(code), words), "{line}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn many_are_drained_by_one_call() -> Test {
    let farm = Farm::start().await?;
    let ran = farm.run(&["drain", "tw*,1", "2-3", "--deadline", "10m", "--reason", "moving", "--yes"]).await?;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.stderr, "3 workstations: pc1, twin, twin\n");
    assert_eq!(farm.run(&["drain", "pc1", "--now"]).await?.code, Some(0));
    assert_eq!(farm.run(&["undrain", "all"]).await?.code, Some(0));
    let drains = farm.state.drains.lock().expect("no test panics with it").clone();
    let told: Vec<_> = drains
        .iter()
        .map(|drain| (drain.workstation_ids.as_slice(), drain.undo, drain.deadline.map(|deadline| deadline.seconds)))
        .collect();
    let expected: [(&[i64], bool, Option<i64>); 3] =
        [(&[1, 2, 3], false, Some(600)), (&[1], false, Some(0)), (&[1, 2, 3, 4], true, None)];
    assert_eq!(told, expected);
    assert_eq!(drains[0].reason, "moving");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_ends_as_the_job_does() -> Test {
    let farm = Farm::start().await?;
    // Job 7's server restarts between two looks.
    let failed = farm.run(&["job", "wait", "7"]).await?;
    assert_eq!(failed.code, Some(7), "{failed:?}");
    assert!(failed.stdout.starts_with("job 7 (night-7) is failed: "), "{failed:?}");
    assert_eq!(farm.run(&["job", "wait", "8"]).await?.code, Some(0));
    let late = farm.run(&["job", "wait", "9", "--timeout", "0.3"]).await?;
    assert_eq!(late.code, Some(6), "{late:?}");
    assert!(late.stderr.contains("1,000 of 1,234,567 problems have ended"), "{late:?}");
    assert_eq!(farm.run(&["job", "wait", "999"]).await?.code, Some(4));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_created_empty() -> Test {
    let farm = Farm::start().await?;
    let line = [
        "job",
        "create",
        "night",
        "--type",
        "square",
        "--priority",
        "-3",
        "--option",
        "standing=true",
        "--idempotency-key",
        "k",
        "-o",
        "json",
    ];
    let ran = farm.run(&line).await?;
    let document: serde_json::Value = serde_json::from_str(&ran.stdout)?;
    assert_eq!(document, serde_json::json!({"job_id": "9", "problems": 0, "repeated": false}));
    let (submitted, ended) = last_submit(&farm).await?;
    assert_eq!(ended, Some(Ended::Wholly));
    assert!(!submitted.header.open && submitted.problems == 0);
    let options: serde_json::Value = serde_json::from_slice(&submitted.header.options)?;
    assert_eq!(options, serde_json::json!({"priority": -3, "standing": true, "idempotency_key": "k"}));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_loaded_in_messages() -> Test {
    let farm = Farm::start().await?;
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("problems.csv.gz");
    let mut file = flate2::write::GzEncoder::new(std::fs::File::create(&path)?, flate2::Compression::fast());
    writeln!(file, "id,route,x,note")?;
    for i in 0..20_000 {
        writeln!(file, "p{i},r{},{i},\"some words, and a comma\"", i / 100)?;
    }
    file.finish()?;
    let path = path.to_string_lossy();
    let line = ["job", "load", &path, "--name", "n", "--type", "square", "--key", "id", "--group", "route"];
    let ran = farm.run(&line).await?;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.starts_with("20,000 problems from ") && ran.stdout.contains(" in job 9"), "{ran:?}");
    assert!(ran.stderr.is_empty(), "no bar without a terminal: {ran:?}");
    let (submitted, ended) = last_submit(&farm).await?;
    assert_eq!((submitted.problems, ended), (20_000, Some(Ended::Wholly)));
    assert!(submitted.header.open && submitted.header.convoy == 0);
    assert!(submitted.messages > 3 && submitted.largest_message < 512 << 10, "{submitted:?}");
    let first = submitted.first.context("there are problems")?;
    assert_eq!((first.key.as_str(), first.group_key.as_str()), ("p0", "r0"));
    assert_eq!(&first.payload[..], br#"{"route":"r0","x":0,"note":"some words, and a comma"}"#);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_line_loads_nothing() -> Test {
    let farm = Farm::start().await?;
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("problems.ndjson");
    // Late enough that the server may have seen messages, or at once.
    for wrong_at in [50_000, 1] {
        let mut text = String::new();
        for i in 1..wrong_at {
            text.push_str(&format!("{{\"key\":\"{i}\",\"payload\":{{\"x\":{i}}}}}\n"));
        }
        std::fs::write(&path, text + "{\"key\":\"b\"}\n")?;
        let ran = farm.run(&["job", "load", &path.to_string_lossy(), "--job", "3"]).await?;
        assert_eq!(ran.code, Some(1), "{ran:?}");
        let expected = format!("error: nothing was loaded: {}:{wrong_at}: no `payload`", path.display());
        assert!(ran.stderr.starts_with(&expected), "{ran:?}");
        if wrong_at > 1 {
            let (_, ended) = last_submit(&farm).await?;
            assert_eq!(ended, Some(Ended::InTheMiddle));
        }
    }
    for (_, ended) in farm.state.submits.lock().expect("no test panics with it").iter() {
        assert_ne!(*ended, Some(Ended::Wholly));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_load_is_no_end() -> Test {
    let farm = Farm::start().await?;
    let mut load = farm.command(&["job", "load", "-", "--format", "ndjson", "--job", "3"]);
    let mut load = load.stdin(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut input = load.stdin.take().context("a pipe")?;
    tokio::task::spawn_blocking(move || -> Result<()> {
        for i in 0..20_000 {
            writeln!(input, "{{\"key\":\"{i}\",\"payload\":1}}")?;
        }
        load.kill()?;
        load.wait()?;
        Ok(())
    })
    .await??;
    let (_, ended) = last_submit(&farm).await?;
    assert_eq!(ended, Some(Ended::InTheMiddle));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_whose_time_is_over_is_no_end() -> Test {
    let farm = Farm::start().await?;
    // Nobody has typed anything yet, or a record is there and more may follow.
    for typed in ["", "key,x\na,1\n"] {
        let line = ["job", "load", "-", "--format", "csv", "--job", "3", "--timeout", "0.3"];
        let mut load = farm.command(&line);
        let mut load = load.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mut input = load.stdin.take().context("a pipe")?;
        input.write_all(typed.as_bytes())?;
        let ended = tokio::task::spawn_blocking(move || load.wait_with_output()).await??;
        drop(input);
        let ran = script::Ran::from(ended);
        assert_eq!(ran.code, Some(6), "{ran:?}");
        assert!(ran.stderr.starts_with("error: nothing was loaded: loading standard input: "), "{ran:?}");
    }
    assert_eq!(last_submit(&farm).await?.1, Some(Ended::InTheMiddle));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_may_answer_before_the_end() -> Test {
    let farm = Farm::start().await?;
    for (job_type, code, words) in [
        ("unknown", 4, "there is no job type 'unknown'"),
        ("repeated", 0, "job 5 had been loaded under this idempotency key before"),
    ] {
        // Standard input stays open: the program must not wait for its end.
        let line = ["job", "load", "-", "--format", "csv", "--name", "n", "--type", job_type];
        let mut load = farm.command(&line);
        let mut load = load.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mut input = load.stdin.take().context("a pipe")?;
        input.write_all(b"key,x\na,1\n")?;
        let ended = tokio::task::spawn_blocking(move || load.wait_with_output()).await??;
        drop(input);
        let ran = script::Ran::from(ended);
        assert_eq!(ran.code, Some(code), "{ran:?}");
        assert!(ran.stderr.contains(words) || ran.stdout.contains(words), "{ran:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn results_are_lines_one_document_or_a_file() -> Test {
    let farm = Farm::start().await?;
    let lines = farm.run(&["job", "results", "1"]).await?.stdout;
    assert_eq!(lines.lines().count(), 10_000);
    let second = r#"{"problem_id":"1","key":"k1","outcome":"done","message":"","result":{"x": 1.10}}"#;
    assert_eq!(lines.lines().nth(1), Some(second));
    let document = farm.run(&["job", "results", "1", "-o", "json"]).await?.stdout;
    let document: serde_json::Value = serde_json::from_str(&document)?;
    assert_eq!(document["outcomes"].as_array().map(Vec::len), Some(10_000));
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("out.csv");
    let out = path.to_string_lossy();
    let broken = farm.run(&["job", "results", "99", "-o", "csv", "--out", &out]).await?;
    assert_eq!((broken.code, std::fs::read_dir(directory.path())?.count()), (Some(1), 0), "{broken:?}");
    let ran = farm.run(&["job", "results", "1", "-o", "csv", "--out", &out]).await?;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(std::fs::read_to_string(&path)?.lines().count(), 10_001);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_who_leaves_is_no_error() -> Test {
    let farm = Farm::start().await?;
    for line in [vec!["job", "results", "1"], vec!["top", "--interval", "0.05"]] {
        let mut child = farm.command(&line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().context("a pipe")?;
        let ended = tokio::task::spawn_blocking(move || -> Result<_> {
            let mut first = String::new();
            BufReader::with_capacity(64, stdout).read_line(&mut first)?;
            Ok(child.wait_with_output()?)
        });
        let ran = script::Ran::from(ended.await??);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{line:?}");
    }
    Ok(())
}
