//! The program with a real farm: server, agent and database. Each test has its own, and makes much use of it.

use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use crate::real::{Farm, Ran, ended_within, terminate};
use anyhow::{Context, Result, ensure};
use pcfarm_proto::v1::job_service_client::JobServiceClient;
use pcfarm_proto::v1::submit_request::Part;
use pcfarm_proto::v1::{
    JobRequest, SubmitEnd, SubmitHeader, SubmitProblem, SubmitProblems, SubmitRequest, SubmitResponse,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

type Test = Result<()>;

fn gzip(text: &str) -> Result<Vec<u8>> {
    let mut file = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    file.write_all(text.as_bytes())?;
    Ok(file.finish()?)
}

/// Runs a load that reads this from standard input.
async fn load_from_stdin(farm: &Farm, line: &str, text: &'static str) -> Result<Ran> {
    let words: Vec<&str> = line.split(' ').collect();
    let mut load = farm.command(&words);
    let mut load = load.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut input = load.stdin.take().context("a pipe")?;
    let ran = tokio::task::spawn_blocking(move || -> Result<Ran> {
        input.write_all(text.as_bytes())?;
        drop(input);
        Ok(Ran::from(load.wait_with_output()?))
    });
    ran.await?
}

fn id(document: &Value) -> Result<String> {
    Ok(document["job_id"].as_str().context("an id")?.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_loaded_and_run() -> Test {
    let farm = Farm::start().await?.with_agent().await?;
    let csv = farm.file("flights.csv", "flight,route,seats\nf1,r1,10\nf2,r2,20\nf3,r1,\nf4,r2,x\n")?;
    let load = format!("job load {csv} --name flights --type echo --key flight --group route --convoy 2");
    let flights = farm.json(&load).await?;
    assert_eq!((&flights["problems"], &flights["repeated"]), (&json!(4), &json!(false)));
    let flights = id(&flights)?;
    assert!(farm.ends(0, &format!("job wait {flights}")).await?.contains("is done: every problem is done"));

    let results = farm.json(&format!("job results {flights}")).await?;
    let mut solved: Vec<(&Value, &Value)> = results["outcomes"]
        .as_array()
        .context("an array")?
        .iter()
        .map(|outcome| (&outcome["key"], &outcome["result"]))
        .collect();
    solved.sort_by_key(|(key, _)| key.to_string());
    let expected = [
        (json!("f1"), json!({"route": "r1", "seats": 10})),
        (json!("f2"), json!({"route": "r2", "seats": 20})),
        (json!("f3"), json!({"route": "r1", "seats": null})),
        (json!("f4"), json!({"route": "r2", "seats": "x"})),
    ];
    assert_eq!(solved, expected.each_ref().map(|(key, result)| (key, result)));
    assert_eq!(farm.ends(0, &format!("job results {flights}")).await?.lines().count(), 4);
    let out = farm.directory.path().join("out.csv");
    farm.ends(0, &format!("job results {flights} -o csv --out {}", out.display())).await?;
    assert_eq!(std::fs::read_to_string(out)?.lines().count(), 5);
    // Groups share a convoy: each checkout of a convoy has one route.
    let mixed = "select count(*) from (select from pcfarm.problem p group by p.job_id, p.batch_order \
         having count(distinct p.payload ->> 'route') > 1) mixed";
    assert_eq!(farm.number(mixed).await?, 0);

    let lines: String = (0..300).map(|i| format!("{{\"key\":{i},\"payload\":[{i}]}}\n")).collect();
    let packed = farm.file("numbers.ndjson.gz", gzip(&lines)?)?;
    let numbers = id(&farm.json(&format!("job load {packed} --name numbers --type echo --no-open")).await?)?;
    let more = format!("job load - --format csv --job {numbers} --open");
    assert_eq!(load_from_stdin(&farm, &more, "key,x\n300,1\n").await?.code, Some(0));
    farm.ends(0, &format!("job wait {numbers}")).await?;
    let shown = farm.json(&format!("job show {numbers}")).await?;
    assert_eq!((&shown["state"], &shown["done"], &shown["failed"]), (&json!("done"), &json!(301), &json!(0)));
    let one = farm.json(&format!("problems {numbers} --key 300")).await?;
    assert_eq!(one["problems"][0]["result"], json!({"x": 1}));
    assert_eq!(one["problems"].as_array().map(Vec::len), Some(1));

    let bad = farm.file("bad.ndjson", "{\"key\":\"a\",\"payload\":{\"message\":\"no fuel\"}}\n")?;
    let bad = id(&farm.json(&format!("job load {bad} --name bad --type fail")).await?)?;
    let waited = farm.run(&format!("job wait {bad}")).await?;
    assert_eq!(waited.code, Some(7), "{waited:?}");
    assert!(waited.stdout.contains("is failed: 1 problem failed of 1: see "), "{waited:?}");
    let failed = farm.ends(0, &format!("problems {bad} --state failed")).await?;
    assert!(failed.contains("no fuel"), "{failed}");
    farm.ends(0, &format!("job retry {bad}")).await?;
    farm.ends(7, &format!("job wait {bad}")).await?;
    let outcomes = farm.json(&format!("job results {bad}")).await?;
    assert_eq!(outcomes["outcomes"].as_array().map(Vec::len), Some(1));
    assert_eq!(
        (&outcomes["outcomes"][0]["outcome"], &outcomes["outcomes"][0]["result"]),
        (&json!("failed"), &json!(null))
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_runs_slots_that_are_started_and_stopped_live() -> Test {
    let farm = Farm::start().await?;
    let started = farm.json("slots start quick pc1").await?;
    assert_eq!(started["slots"][0]["workstation"], json!("pc1#quick"));
    assert!(farm.ends(0, "slots list").await?.contains("not connected"));
    // The slot has what is small, the agent itself the rest.
    farm.ends(0, "select pc1#quick --types echo").await?;
    farm.ends(0, "select pc1 --types nap").await?;
    let farm = farm.with_agent().await?;
    farm.until("select count(*) from pcfarm.workstation where hostname = 'pc1#quick'", 1).await?;
    let slots = farm.ends(0, "slots list").await?;
    assert!(slots.contains("#quick") && slots.contains("waiting") && slots.contains("echo"), "{slots}");
    let numbers: String = (0..20).map(|i| format!("{{\"key\":\"{i}\",\"payload\":{i}}}\n")).collect();
    let numbers = farm.file("numbers.ndjson", numbers)?;
    let echoes = id(&farm.json(&format!("job load {numbers} --name echoes --type echo --convoy 5")).await?)?;
    farm.ends(0, &format!("job wait {echoes}")).await?;
    let elsewhere = "select count(*) from pcfarm.checkout c join pcfarm.workstation w using (workstation_id)
         where w.hostname not like '%#quick' and c.ending = 'accepted'";
    assert_eq!(farm.number(elsewhere).await?, 0);
    farm.until("select coalesce(sum(done), 0)::bigint from pcfarm.statistic where job_type = 'echo'", 20).await?;
    let statistics = farm.json("statistics --type echo").await?;
    assert_eq!((&statistics["statistics"][0]["done"], &statistics["statistics"][0]["failed"]), (&json!(20), &json!(0)));
    assert_eq!(farm.json("statistics --user nobody").await?["statistics"], json!([]));
    let usage = farm.json("usage").await?;
    assert_eq!(usage["usage"][0]["done"], json!(20));
    assert!(usage["usage"][0]["cpu_seconds"].is_f64(), "{usage}");
    assert_eq!(farm.json("usage --user nobody --since 2026-01-01").await?["usage"], json!([]));
    // A slot that is stopped gives back what it holds, and nobody else may take it.
    let nap = farm.file("nap.ndjson", "{\"key\":\"1\",\"payload\":{\"ms\":20}}\n")?;
    let stopped = farm.json("slots stop quick pc1").await?;
    assert_eq!(stopped["slots"], json!([]));
    farm.until("select count(*) from pcfarm.workstation where hostname like '%#quick' and silent_since is not null", 1)
        .await?;
    let naps = id(&farm.json(&format!("job load {nap} --name naps --type nap")).await?)?;
    farm.ends(0, &format!("job wait {naps}")).await?;
    // It comes back as the same workstation, with its selection.
    farm.ends(0, "slots start quick pc1").await?;
    farm.until("select count(*) from pcfarm.workstation where hostname like '%#quick' and silent_since is null", 1)
        .await?;
    assert_eq!(farm.number("select count(*) from pcfarm.workstation").await?, 2);
    let missing = farm.ends(4, "slots stop quicker pc1").await?;
    assert!(missing.contains("there is no slot 'quicker' on pc1"), "{missing}");
    let wrong = farm.ends(2, "slots start a/b pc1").await?;
    assert!(wrong.contains("a slot cannot be called 'a/b'"), "{wrong}");
    let wrong = farm.ends(2, "slots start more pc1#quick").await?;
    assert!(wrong.contains("a slot has no slots of its own"), "{wrong}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn people_say_something_about_a_job() -> Test {
    let farm = Farm::start().await?;
    farm.ends(0, "job create import --type echo").await?;
    assert!(farm.ends(0, "job info 1").await?.contains("nothing is said"));
    let said = farm.json(r#"job info 1 --set {"rows":7,"from":{"a":1,"b":2}}"#).await?;
    assert_eq!(said["info"], json!({"rows": 7, "from": {"a": 1, "b": 2}}));
    let said = farm.json(r#"job info 1 --set {"rows":null,"from":{"b":3}}"#).await?;
    assert_eq!(said["info"], json!({"from": {"a": 1, "b": 3}}));
    assert!(farm.ends(0, "job show 1").await?.contains("info"));
    assert!(farm.ends(2, "job info 1 --set 7").await?.contains("a JSON object is wanted"));
    assert!(farm.ends(2, "job info 1 --set {").await?.contains("not JSON"));
    farm.ends(4, "job info 99 --set {}").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_held_released_and_cancelled() -> Test {
    let farm = Farm::start().await?.with_agent().await?;
    let naps: String = (0..200).map(|i| format!("{{\"key\":\"{i}\",\"payload\":{{\"ms\":50}}}}\n")).collect();
    let naps = farm.file("naps.ndjson", naps)?;
    let created = farm.ends(0, "job create naps --type nap --priority -3").await?;
    assert!(created.contains("job 1 is loading: fill it with `pcfarm job load FILE --job 1`"), "{created}");
    let empty = farm.json("job show 1").await?;
    assert_eq!((&empty["state"], &empty["problems"], &empty["priority"]), (&json!("loading"), &json!(0), &json!(-3)));
    farm.ends(0, &format!("job load {naps} --job 1 --convoy 2")).await?;
    farm.ends(0, "job open 1").await?;
    assert!(farm.ends(6, "job wait 1 --timeout 0.3").await?.contains(" of 200 problems have ended"));
    assert!(farm.ends(0, "job hold 1").await?.contains("is held: "));
    assert!(farm.ends(0, "explain job 1").await?.contains("`pcfarm job release 1`"));
    farm.until("select count(*) from pcfarm.checkout where ended_at is null", 0).await?;
    let held = farm.json("job show 1").await?;
    assert!(held["waiting"].as_i64() > Some(0), "{held}");
    assert!(farm.ends(0, "job release 1").await?.contains("is open: "));
    assert!(farm.ends(0, "job cancel 1").await?.contains("is cancelled: "));
    farm.ends(1, "job wait 1").await?;
    let gone = farm.ends(1, "job release 1").await?;
    assert!(gone.starts_with("error: releasing job 1: "), "{gone}");
    let cancelled = farm.json("problems 1 --state cancelled").await?;
    assert!(cancelled["problems"].as_array().is_some_and(|all| !all.is_empty()));

    for line in ["job show 99", "job wait 99", "job results 99", "problems 99", "job open 99", "drain 99"] {
        farm.ends(4, line).await?;
    }
    farm.ends(2, "job create x --type unheard").await?;
    farm.ends(2, "job create x --type echo --option no_such=1").await?;
    farm.ends(1, &format!("job load {naps} --job 1")).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_is_whole_or_nothing() -> Test {
    let farm = Farm::start().await?;
    let lines: String = (0..20_000).map(|i| format!("{{\"key\":\"{i}\",\"payload\":1}}\n")).collect();
    for (name, last) in [("wrong", "{\"key\":\"b\"}\n"), ("refused", "{\"key\":\"b\",\"payload\":\"\\ud800\"}\n")] {
        let path = farm.file(&format!("{name}.ndjson"), lines.clone() + last)?;
        let ran = farm.run(&format!("job load {path} --name {name} --type echo")).await?;
        assert!(matches!(ran.code, Some(1 | 2)) && ran.stderr.contains("nothing was loaded"), "{ran:?}");
    }
    farm.until_no_upload().await?;
    assert_eq!(farm.loaded().await?, (0, 0, 0));

    // Killed in the middle, and stopped by Ctrl-C.
    for signal in ["-KILL", "-INT"] {
        let line = ["job", "load", "-", "--format", "ndjson", "--name", "killed", "--type", "echo"];
        let mut load = farm.command(&line);
        let mut load = load.stdin(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut input = load.stdin.take().context("a pipe")?;
        input.write_all(lines.as_bytes())?;
        farm.until_uploading().await?;
        ensure!(std::process::Command::new("kill").args([signal, &load.id().to_string()]).status()?.success());
        ended_within(&mut load, Duration::from_secs(10)).await?;
        farm.until_no_upload().await?;
        assert_eq!(farm.loaded().await?, (0, 0, 0));
    }
    submits_without_their_end(&farm).await?;

    let path = farm.file("good.ndjson", &lines)?;
    let load = format!("job load {path} --name good --type echo --idempotency-key night-7");
    let first = farm.json(&load).await?;
    assert_eq!((&first["problems"], &first["repeated"]), (&json!(20_000), &json!(false)));
    let loaded = farm.loaded().await?;
    let again = farm.json(&load).await?;
    assert_eq!((&again["job_id"], &again["problems"], &again["repeated"]), (&first["job_id"], &json!(0), &json!(true)));
    assert!(farm.ends(0, &load).await?.contains("had been loaded under this idempotency key before"));
    assert_eq!(farm.loaded().await?, loaded);
    Ok(())
}

/// What other clients may do to a Submit: drop the call, end the stream, miscount.
async fn submits_without_their_end(farm: &Farm) -> Test {
    let header = SubmitHeader { name: "half".into(), job_type: "echo".into(), open: true, ..SubmitHeader::default() };
    let problem = SubmitProblem { key: "k".into(), payload: "1".into(), ..SubmitProblem::default() };
    let header = Part::Header(header);
    let problems = Part::Problems(SubmitProblems { problems: vec![problem] });
    let end = |problems| Part::End(SubmitEnd { problems });
    let mut client = JobServiceClient::connect(farm.url.clone()).await?;

    let (send, receive) = mpsc::channel(8);
    for part in [&header, &problems, &problems] {
        send.send(SubmitRequest { part: Some(part.clone()) }).await?;
    }
    tokio::select! {
        answered = client.submit(ReceiverStream::new(receive)) => anyhow::bail!("{answered:?}"),
        uploading = farm.until_uploading() => uploading?,
    }
    farm.until_no_upload().await?;
    assert_eq!(farm.loaded().await?, (0, 0, 0));
    for parts in [
        vec![header.clone(), problems.clone()],
        vec![header.clone(), problems.clone(), end(2)],
        vec![header.clone(), end(1)],
        vec![header.clone()],
        vec![end(0)],
        vec![],
    ] {
        let told = format!("{parts:?}");
        let messages = parts.into_iter().map(|part| SubmitRequest { part: Some(part) });
        let refused = client.submit(tokio_stream::iter(messages.collect::<Vec<_>>())).await;
        assert_eq!(refused.map_err(|status| status.code()).err(), Some(Code::InvalidArgument), "{told}");
    }
    assert_eq!(farm.loaded().await?, (0, 0, 0));
    Ok(())
}

/// What is complete with its first problems is submitted in one statement, anything else piece by piece: nobody can tell
/// which it was.
#[tokio::test(flavor = "multi_thread")]
async fn a_small_submit_answers_as_an_upload_does() -> Test {
    let farm = Farm::start().await?;
    let client = JobServiceClient::connect(farm.url.clone()).await?;
    let ended: i64 = farm.sql.query_one("select pcfarm.create_job('e', 'echo')", &[]).await?.get(0);
    farm.sql.execute("select pcfarm.cancel_job($1)", &[&ended]).await?;
    let standing = "select pcfarm.create_job('s', 'echo', '{\"standing\": true}')";
    let standing: i64 = farm.sql.query_one(standing, &[]).await?.get(0);
    let new = SubmitHeader { name: "n".into(), job_type: "echo".into(), open: true, ..SubmitHeader::default() };
    let with = |options: &'static str| SubmitHeader { options: options.into(), ..new.clone() };
    let to = |job_id| SubmitHeader { job_id, ..SubmitHeader::default() };
    let keyed = |key: &str, group: &str, payload: &str| SubmitProblem {
        key: key.into(),
        group_key: group.into(),
        details: None,
        payload: payload.to_owned().into(),
    };
    let good = [keyed("a", "", "1"), keyed("b", "", "{\"b\": 2}")];
    let with_second = |second: SubmitProblem| [good[0].clone(), second];
    let long = "k".repeat(1025);
    let numbers = format!("[{}]", vec!["1"; 200_000].join(","));
    let cases: Vec<(SubmitHeader, [SubmitProblem; 2], i64, &str)> = vec![
        (new.clone(), with_second(keyed("b", "", "{")), 2, "problem 2 (key \"b\") has a payload that cannot be stored"),
        (new.clone(), with_second(keyed("", "", "1")), 2, "problem 2 (key \"\") has no key"),
        (new.clone(), with_second(keyed(&long, "", "1")), 2, "has a key of 1025 bytes"),
        (new.clone(), with_second(keyed("b", "", &numbers)), 2, "problem 2 (key \"b\") was refused by the database"),
        (new.clone(), good.clone(), 3, "the end tells of 3 problems, but 2 came"),
        (SubmitHeader { convoy: 100_001, ..new.clone() }, good.clone(), 2, "a convoy of 100001 problems"),
        (SubmitHeader { job_type: "nobody".into(), ..new.clone() }, good.clone(), 2, "there is no job type 'nobody'"),
        (SubmitHeader { name: "n".repeat(201), ..new.clone() }, good.clone(), 2, "from 1 to 200 characters"),
        (with("{\"colour\": 1}"), good.clone(), 2, "no such option: 'colour'"),
        (with("{\"priority\": \"x\"}"), good.clone(), 2, "invalid input syntax for type integer"),
        (with("[]"), good.clone(), 2, "options must be a JSON object"),
        (to(ended), good.clone(), 2, "has ended (cancelled)"),
        (to(777), good.clone(), 2, "there is no job 777"),
        // What is wrong with the job is told before what is wrong with problems.
        (to(ended), with_second(keyed("b", "", "{")), 2, "has ended (cancelled)"),
    ];
    for (header, problems, told, expected) in cases {
        let small = submit(&client, &header, &[&problems], told).await.expect_err(expected);
        let pieces = submit(&client, &header, &[&problems[..1], &problems[1..]], told).await.expect_err(expected);
        assert!(small.message().contains(expected), "{expected}: {small:?}");
        assert_eq!((small.code(), small.message()), (pieces.code(), pieces.message()));
    }
    assert_eq!(farm.number("select count(*) from pcfarm.problem").await?, 0);
    assert_eq!(farm.number("select count(*) from pcfarm.job").await?, 2);

    let whole: [&[SubmitProblem]; 1] = [&good];
    let halves = [&good[..1], &good[1..]];
    for (options, pieces) in [("{\"idempotency_key\": \"x\"}", &whole[..]), ("{\"idempotency_key\": \"y\"}", &halves)] {
        let header = with(options);
        let first = submit(&client, &header, pieces, 2).await?;
        assert_eq!((first.problems, first.repeated), (2, false));
        // Whatever comes with it.
        for (again, told) in [(&whole[..], 2), (&halves, 2), (&whole, 3)] {
            let again = submit(&client, &header, again, told).await?;
            assert_eq!((again.job_id, again.problems, again.repeated), (first.job_id, 0, true));
        }
        let other = SubmitHeader { name: "other".into(), ..header };
        let conflicts = [submit(&client, &other, &whole, 2).await, submit(&client, &other, &halves, 2).await];
        let [small, pieces] = conflicts.map(|refused| refused.expect_err("a key for one job"));
        assert_eq!((small.code(), small.message()), (Code::AlreadyExists, pieces.message()));
    }
    let grouped = [keyed("a", "g", "1"), keyed("b", "h", "2"), keyed("c", "g", "3")];
    for problems in [&good[..], &grouped] {
        let mut rows = Vec::new();
        for header in [new.clone(), to(standing)] {
            for pieces in [vec![problems], vec![&problems[..1], &problems[1..]]] {
                let answer = submit(&client, &header, &pieces, problems.len() as i64).await?;
                assert!(header.job_id == 0 || answer.job_id == standing);
                rows.push(farm.newest_lane(answer.job_id).await?);
            }
        }
        assert!(rows.iter().all(|lane| *lane == rows[0]), "{rows:#?}");
    }
    Ok(())
}

async fn submit(
    client: &JobServiceClient<tonic::transport::Channel>,
    header: &SubmitHeader,
    pieces: &[&[SubmitProblem]],
    told: i64,
) -> Result<SubmitResponse, tonic::Status> {
    let problems = pieces.iter().map(|piece| Part::Problems(SubmitProblems { problems: piece.to_vec() }));
    let parts = std::iter::once(Part::Header(header.clone())).chain(problems);
    let parts = parts.chain([Part::End(SubmitEnd { problems: told })]);
    let messages: Vec<_> = parts.map(|part| SubmitRequest { part: Some(part) }).collect();
    Ok(client.clone().submit(tokio_stream::iter(messages)).await?.into_inner())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_loads_with_its_users_rights() -> Test {
    let farm = Farm::start().await?.with_agent().await?;
    let url = farm.database.url();
    let query = "select g::text as key, jsonb_build_object('n', g) as payload from generate_series(1, 250) g";
    let load = |url: &str, query: &str, key: &str| {
        let line = ["job", "load", "--name", "q", "--type", "echo", "--idempotency-key", key, "-o", "json"];
        let rest = ["--query", query, "--database-url", url];
        line.iter().chain(&rest).map(|word| (*word).to_owned()).collect::<Vec<String>>()
    };
    let run = async |line: Vec<String>| farm.run_all(&line.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let first: Value = serde_json::from_str(&run(load(&url, query, "k")).await?.stdout)?;
    assert_eq!((&first["problems"], &first["repeated"]), (&json!(250), &json!(false)));
    let again: Value = serde_json::from_str(&run(load(&url, query, "k")).await?.stdout)?;
    assert_eq!((&again["job_id"], &again["repeated"]), (&first["job_id"], &json!(true)));
    farm.ends(0, &format!("job wait {}", id(&first)?)).await?;

    let loaded = farm.loaded().await?;
    let guest = format!("{}_guest", farm.database.name);
    farm.sql.batch_execute(&format!("create role {guest}")).await?;
    let as_guest = run(load(&format!("{url}?options=-crole%3D{guest}"), query, "guest")).await?;
    let elsewhere = run(load(&url.replace(&farm.database.name, "no_such_database"), query, "elsewhere")).await?;
    let broken = run(load(&url, "select 1 as one", "broken")).await?;
    farm.sql.batch_execute(&format!("drop role {guest}")).await?;
    assert_eq!(as_guest.code, Some(5), "{as_guest:?}");
    assert_eq!(elsewhere.code, Some(4), "{elsewhere:?}");
    assert!(matches!(broken.code, Some(1 | 2)), "{broken:?}");
    assert_eq!(farm.loaded().await?, loaded);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_farm_is_looked_at_and_drained() -> Test {
    let mut farm = Farm::start().await?.with_agent().await?;
    let one = farm.json("workstations").await?["workstations"][0].clone();
    assert_eq!((&one["workstation_id"], &one["hostname"]), (&json!("1"), &json!("pc1")));
    assert_eq!((&one["state"], &one["cores"]), (&json!("waiting"), &json!(2)));
    let status = farm.json("status").await?;
    assert_eq!((&status["workstations_waiting"], &status["servers"][0]["live"]), (&json!(1), &json!(true)));

    let naps: String = (0..4000).map(|i| format!("{{\"key\":\"{i}\",\"payload\":{{\"ms\":20}}}}\n")).collect();
    let naps = farm.file("naps.ndjson", naps)?;
    let title = "A title that is longer than a line ".repeat(8);
    farm.run_all(&["job", "load", &naps, "--name", &"long".repeat(40), "--type", "nap", "--title", &title]).await?;
    farm.until("select least(1, count(*)) from pcfarm.checkout where ended_at is null", 1).await?;
    for line in [
        "status",
        "jobs",
        "jobs --all",
        "job show 1",
        "workstations",
        "workstations --all",
        "problems 1",
        "problems 1 --state in_progress",
        "explain job 1",
        "explain workstation pc1",
    ] {
        for shown in farm.ends(0, line).await?.lines() {
            assert!(line.starts_with("explain") || shown.chars().count() <= 100, "{line}: {shown}");
        }
        farm.json(line).await?;
    }
    let one = farm.json("workstations").await?["workstations"][0].clone();
    assert_eq!((&one["reason"], &one["idle_source"]), (&json!("crunches what it holds"), &json!("unattended")));
    assert!(farm.ends(0, "workstations").await?.contains("crunches "), "of which job");
    assert_eq!(farm.json("workstations pc*,1").await?["workstations"][0]["hostname"], json!("pc1"));
    farm.ends(4, "workstations lab-*").await?;

    assert!(farm.ends(0, "drain pc1").await?.contains("workstation 1 (pc1) is draining: drained by an administrator"));
    farm.until("select count(*) from pcfarm.checkout where ended_at is null", 0).await?;
    let since = farm.json("workstations").await?["workstations"][0]["since"].clone();
    let again = farm.json("drain 1 --reason fan").await?["workstations"][0].clone();
    assert_eq!(again["since"], since, "drained already");
    assert_eq!((&again["drained"]["by"], &again["drained"]["why"]), (&json!("an administrator"), &json!("fan")));
    assert_eq!(again["reason"], json!("drained by an administrator: fan"));
    assert!(farm.ends(0, "explain workstation 1").await?.contains("`pcfarm undrain 1`"));
    let undone = farm.ends(0, "drain pc1 --undo").await?;
    assert_eq!(undone, "workstation 1 (pc1) is waiting: no work for it\n");

    // Nobody but the test changes its row from here on.
    farm.kill_agents();
    // An undo of no drain changes nothing, and one of a drain only what the drain did.
    let suspend = "update pcfarm.workstation set state = 'suspended', reason = 'in use', drain = $1, since = 'epoch'";
    for drained in [false, true] {
        farm.sql.execute(suspend, &[&drained]).await?;
        let undone = farm.json("drain pc1 --undo").await?["workstations"][0].clone();
        // The connection is lost; the row keeps its state and its reason.
        assert_eq!(undone["state"], json!("lost"));
        assert!(undone["reason"].as_str().is_some_and(|reason| reason.ends_with("in use")), "{undone}");
        let kept = "state = 'suspended' and reason = 'in use' and since = 'epoch' and not drain";
        assert_eq!(farm.number(&format!("select count(*) from pcfarm.workstation where {kept}")).await?, 1, "{undone}");
    }
    farm.ends(4, "drain nowhere").await?;
    farm.ends(4, "explain workstation 77").await?;
    farm.ends(4, "explain job 77").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_that_is_over_is_over() -> Test {
    let farm = Farm::start().await?.with_agent().await?;
    farm.ends(0, "drain pc1").await?;
    farm.ends(0, "drain pc1 --undo").await?;
    let path = farm.file("p.csv", "key,x\na,1\n")?;
    let loaded = farm.json(&format!("job load {path} --name n --type echo")).await?;
    farm.ends(0, &format!("job wait {} --timeout 20", id(&loaded)?)).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_stops_in_the_middle_of_long_calls() -> Test {
    let mut farm = Farm::start().await?;
    let problems: String = (0..40).map(|i| format!("{{\"key\":\"{i}\",\"payload\":1}}\n")).collect();
    let path = farm.file("p.ndjson", problems)?;
    farm.ends(0, &format!("job load {path} --name open --type echo")).await?;
    let line = ["job", "load", "-", "--format", "csv", "--name", "cut", "--type", "echo"];
    let mut load = farm.command(&line);
    let mut load = load.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let mut input = load.stdin.take().context("a pipe")?;
    // More than is kept until it is known to be all.
    let rows: String = (0..50_000).map(|n| format!("key {n},{n}\n")).collect();
    input.write_all(format!("key,x\n{rows}").as_bytes())?;
    farm.until_uploading().await?;
    let mut client = JobServiceClient::connect(farm.url.clone()).await?;
    let waiting = client.wait_job(JobRequest { job_id: 1 });
    let stopping = async {
        // The wait is under way once its server has looked at the job.
        let looks = "select least(1, count(*)) from pg_stat_activity where datname = current_database() \
             and application_name = 'pcfarm-server' and query = $1";
        let look = include_str!("../../../sql/queries/job_state.sql");
        while farm.sql.query_one(looks, &[&look]).await?.try_get::<_, i64>(0)? == 0 {
            tokio::task::yield_now().await;
        }
        terminate(&farm.server.0)?;
        ended_within(&mut farm.server.0, Duration::from_secs(5)).await
    };
    let (waited, stopped) = tokio::join!(waiting, stopping);
    assert_eq!(stopped?, Some(0));
    assert_eq!(waited.map_err(|status| status.code()).err(), Some(Code::Unavailable));
    assert_eq!(ended_within(&mut load, Duration::from_secs(5)).await?, Some(3));
    assert_eq!(farm.loaded().await?.0, 1);
    farm.ends(3, "status").await?;
    Ok(())
}

/// Users, resources, profiles and what is suspended, all from the command line.
#[tokio::test]
async fn what_each_may_have_is_seen_and_changed() -> Test {
    let farm = Farm::start().await?.with_agent().await?;
    let owner: String = farm.sql.query_one("select session_user::text", &[]).await?.get(0);

    farm.ends(0, "queue suspend --reason moving").await?;
    let file = farm.file("two.csv", "key,n\na,1\nb,2\n")?;
    let loaded = farm.json(&format!("job load {file} --name first --type echo")).await?;
    let job = loaded["job_id"].as_str().context("an id")?.to_owned();
    let why = farm.ends(0, &format!("explain job {job}")).await?;
    ensure!(why.contains("the whole queue is suspended (moving): `pcfarm queue resume` goes on"), "{why}");
    farm.ends(0, "queue resume").await?;
    farm.ends(0, &format!("--timeout 30s job wait {job}")).await?;

    let shown = farm.ends(0, "users list").await?;
    ensure!(shown.contains("(default)") && shown.contains(&owner), "{shown}");
    farm.ends(0, &format!("users set {owner} --queue-limit 3 --concurrency 0 --allocation 2")).await?;
    let users = farm.json("users list").await?;
    let mine = users["users"].as_array().and_then(|users| users.iter().find(|user| user["name"] == *owner));
    let mine = mine.context("me")?;
    ensure!(mine["queue_limit"] == 3 && mine["concurrency"] == 0 && mine["allocation"] == 2, "{mine}");
    let loaded = farm.json(&format!("job load {file} --name second --type echo")).await?;
    let second = loaded["job_id"].as_str().context("an id")?.to_owned();
    let why = farm.ends(0, &format!("explain job {second}")).await?;
    ensure!(why.contains(&format!("user {owner} has 0 problems in progress of at most 0")), "{why}");
    let refused = farm.run(&format!("job load {file} --name third --type echo")).await?;
    ensure!(refused.code != Some(0) && refused.stderr.contains("the limit is 3"), "{refused:?}");
    farm.ends(0, &format!("users set {owner} --queue-limit default --concurrency default")).await?;
    farm.ends(0, &format!("--timeout 30s job wait {second}")).await?;
    farm.ends(2, "users set").await?;
    farm.ends(2, &format!("users set {owner} --concurrency few")).await?;
    farm.ends(0, &format!("users set {owner} --type nap --concurrency 4")).await?;
    ensure!(farm.ends(0, "users list").await?.contains("nap"));
    let unknown = farm.run(&format!("users set {owner} --type nothing --concurrency 4")).await?;
    ensure!(unknown.code == Some(2) && unknown.stderr.contains("nothing"), "{unknown:?}");

    farm.run_all(&["resources", "set", "licence", "12", "--description", "of the solver"]).await?;
    let resources = farm.json("resources list").await?;
    ensure!(resources["resources"][0]["tokens"] == 12, "{resources}");
    farm.ends(0, "resources delete licence").await?;
    ensure!(farm.ends(0, "resources list").await?.contains("no resources"));

    let by_day = "profiles add echo --days sat-wed --from 07:00 --zone Asia/Tehran --per-hour 5 --per-checkout 1";
    farm.ends(0, by_day).await?;
    let users_few = ["profiles", "add", "echo", "--when", "web_users<50", "--when", "web_users>=10", "--zone", "UTC"];
    let added = farm.run_all(&[&users_few[..], &["--priority", "-3"]].concat()).await?;
    ensure!(added.code == Some(0) && added.stdout.contains("web_users>=10"), "{added:?}");
    let twice = farm.run_all(&users_few).await?;
    ensure!(twice.code != Some(0) && twice.stderr.contains("equally specific and overlap"), "{twice:?}");
    let told = farm.ends(0, "profiles explain echo --at 2026-11-23T12:00:00Z").await?;
    ensure!(told.contains("Entry 1 holds") && told.contains("signal web_users is not known"), "{told}");
    farm.ends(0, "profiles signal web_users 12 --for 1h").await?;
    let told = farm.ends(0, "profiles explain echo").await?;
    ensure!(told.contains("Entry 2 holds for job type echo now: priority -3."), "{told}");
    ensure!(farm.json("profiles signals").await?["signals"][0]["known"] == true);
    farm.ends(0, "profiles signal web_users --forget").await?;
    farm.ends(0, "profiles change 1 --per-hour none --days mon").await?;
    let profiles = farm.json("profiles list echo").await?;
    let first = profiles["profiles"].as_array().and_then(|all| all.iter().find(|one| one["profile_id"] == "1"));
    let first = first.context("the first")?;
    ensure!(first["problems_per_hour"].is_null() && first["weekdays"] == json!(["mon"]), "{first}");
    ensure!(first["problems_per_checkout"] == 1 && first["from"] == "07:00", "what is not named stays: {first}");
    farm.ends(0, "profiles delete 1").await?;
    farm.ends(4, "profiles delete 1").await?;
    farm.ends(4, "profiles change 77 --per-hour 3").await?;
    farm.ends(2, "profiles explain nothing").await?;
    farm.ends(2, "profiles add echo --when web_users=3").await?;

    farm.ends(0, "select pc1 --require ann,ben --largest 100").await?;
    let told = farm.ends(0, "explain workstation pc1").await?;
    ensure!(told.contains("nobody's but ann, ben; bytes of a problem at most 100"), "{told}");
    let chosen = farm.ends(0, "select pc1 --require none --largest 0").await?;
    ensure!(chosen.contains("whatever it can run"), "{chosen}");
    farm.ends(2, "select pc1").await?;
    farm.ends(2, "select pc1 --types nothing").await?;

    let events = farm.json(&format!("events --job {job}")).await?;
    let what: Vec<&str> =
        events["events"].as_array().context("a list")?.iter().filter_map(|e| e["what"].as_str()).collect();
    ensure!(what == ["job created", "job opened", "job done"], "{what:?}");
    let told = farm.ends(0, "events --what selection").await?;
    ensure!(told.contains("selection removed") && told.contains("pc1"), "{told}");
    farm.ends(4, "events --workstation pc77").await?;

    let parked = farm.ends(0, &format!("queue park --user {owner}")).await?;
    ensure!(parked.contains("loads of 0 problems are parked"), "all jobs have ended: {parked}");
    farm.ends(2, "queue park").await?;
    for line in ["users list", "resources list", "profiles list", "profiles explain echo", "profiles signals"] {
        let shown = farm.ends(0, line).await?;
        ensure!(shown.lines().all(|line| line.chars().count() <= 100), "{line}: {shown}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn people_say_of_what_they_want_to_be_told() -> Test {
    let farm = Farm::start().await?;
    assert!(farm.ends(0, "alerts subscriptions").await?.contains("nobody is told of anything"));
    farm.ends(0, "job create night --type echo").await?;
    let hook = farm.ends(0, "alerts subscribe --webhook http://127.0.0.1:9/x --job 1 --on failed,late").await?;
    assert!(hook.contains("is told of job 1: failed, late") && hook.contains("not shown again: whsec_"), "{hook}");
    let secret = farm.file("secret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo=\n")?;
    let given =
        format!("alerts subscribe --webhook http://127.0.0.1:9/y --type echo --all-users --secret-file {secret}");
    assert!(farm.json(&given).await?["secret"].as_str().is_some_and(|secret| secret.ends_with("MfKQ9r8GKYo=")));
    let share = farm.json("alerts subscribe --notify night --on failures --failed-share 0.25").await?;
    assert_eq!((&share["subscription"]["failed_share"], &share["secret"]), (&json!(0.25), &Value::Null));
    let digest = "alerts subscribe --email ops@example.org --on digest --at 06:30 --zone Europe/Berlin";
    assert!(farm.ends(0, digest).await?.contains("the farm, daily at 06:30 Europe/Berlin: digest"));
    let told = farm.json("alerts subscriptions").await?;
    assert_eq!(told["subscriptions"].as_array().map(Vec::len), Some(4));
    let table = farm.ends(0, "alerts subscriptions").await?;
    assert!(table.contains("failures 0.25") && table.lines().all(|line| line.chars().count() <= 100), "{table}");

    farm.ends(0, "job cancel 1").await?;
    farm.until("select count(*) from pcfarm.alert where message <> ''", 2).await?;
    let waiting = farm.json("alerts list --undelivered --job 1").await?;
    let alerts = waiting["alerts"].as_array().context("an array")?;
    assert_eq!(alerts.len(), 2, "{waiting}");
    let table = farm.ends(0, "alerts list").await?;
    assert!(table.contains("job 1 cancelled") && table.contains("webhook_networks"), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    let alert = alerts[0]["alert_id"].as_str().context("an id")?;
    farm.ends(0, &format!("alerts retry {alert}")).await?;
    farm.ends(0, "alerts unsubscribe 1").await?;
    farm.ends(4, "alerts unsubscribe 1").await?;
    farm.ends(4, "alerts retry 99").await?;
    for (code, line) in [
        (2, "alerts subscribe --email nobody"),
        (2, "alerts subscribe --notify x --on dawn"),
        (2, "alerts subscribe --notify x --email a@b.c"),
        (2, "alerts subscribe --on failed"),
        (4, "alerts subscribe --notify x --job 99"),
        (1, "alerts subscribe --notify x --job 1"),
    ] {
        farm.ends(code, line).await?;
    }
    Ok(())
}

/// As somebody with a home and perhaps a token.
async fn as_somebody(farm: &Farm, home: &str, token: &str, line: &str) -> Result<Ran> {
    let mut command = farm.command(&line.split(' ').collect::<Vec<_>>());
    command.env("XDG_CONFIG_HOME", farm.directory.path().join(home));
    if !token.is_empty() {
        command.env("PCFARM_TOKEN", token);
    }
    Ok(Ran::from(tokio::task::spawn_blocking(move || command.output()).await??))
}

fn parsed(ran: &Ran) -> Result<Value> {
    ensure!(ran.code == Some(0), "{ran:?}");
    serde_json::from_str(&ran.stdout).with_context(|| format!("{ran:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn users_log_in_have_tokens_and_see_their_own() -> Test {
    use std::os::unix::fs::PermissionsExt;
    let farm = Farm::start().await?;
    farm.ends(0, "whoami").await?;
    let password = farm.file("root.word", "the word of root\n")?;
    farm.ends(0, &format!("users create root --role administrator --password-file {password}")).await?;
    let closed = farm.ends(5, "jobs").await?;
    ensure!(closed.contains("pcfarm login"), "{closed}");

    let login = as_somebody(&farm, "root", "", &format!("login root --password-file {password}")).await?;
    ensure!(login.code == Some(0) && !login.stdout.contains("pcft_"), "{login:?}");
    let kept = farm.directory.path().join("root/pcfarm/tokens.toml");
    assert_eq!(std::fs::metadata(&kept)?.permissions().mode() & 0o777, 0o600);
    let wrong = farm.file("wrong.word", "another word\n")?;
    let refused = as_somebody(&farm, "thief", "", &format!("login root --password-file {wrong}")).await?;
    ensure!(refused.code == Some(5), "{refused:?}");
    let who = parsed(&as_somebody(&farm, "root", "", "whoami -o json").await?)?;
    assert_eq!(who, json!({"user": "root", "kind": "token", "scopes": ["administer"]}));

    let mut tokens = Vec::new();
    for user in ["ana", "ben"] {
        let created = as_somebody(&farm, "root", "", &format!("users create {user} --no-password")).await?;
        ensure!(created.code == Some(0), "{created:?}");
        let line = format!("tokens create script --user {user} --scope submit --expires 90d -o json");
        tokens.push(parsed(&as_somebody(&farm, "root", "", &line).await?)?);
    }
    let secrets: Vec<&str> = tokens.iter().filter_map(|token| token["secret"].as_str()).collect();
    let [ana, ben] = secrets[..] else { anyhow::bail!("{tokens:?}") };
    let job = id(&parsed(&as_somebody(&farm, "ana", ana, "job create mine --type echo -o json").await?)?)?;
    let shown = parsed(&as_somebody(&farm, "ana", ana, &format!("job show {job} -o json")).await?)?;
    assert_eq!(shown["owner"], "ana");
    for (line, code) in [
        (format!("job show {job}"), 4),
        (format!("job cancel {job}"), 4),
        (format!("explain job {job}"), 4),
        ("users accounts".to_owned(), 5),
        ("tokens create more --scope administer".to_owned(), 2),
        ("queue suspend".to_owned(), 5),
        ("join-token create".to_owned(), 5),
    ] {
        let ran = as_somebody(&farm, "ben", ben, &line).await?;
        ensure!(ran.code == Some(code), "{line}: {ran:?}");
    }
    let of_ben = as_somebody(&farm, "ben", ben, "jobs --all").await?;
    ensure!(of_ben.code == Some(0) && !of_ben.stdout.contains("mine"), "{of_ben:?}");
    let of_root = as_somebody(&farm, "root", "", "jobs --all").await?;
    ensure!(of_root.stdout.contains("mine"), "{of_root:?}");

    let listed = parsed(&as_somebody(&farm, "root", "", "tokens list --user ana -o json").await?)?;
    let token_id = listed["tokens"][0]["token_id"].as_str().context("an id")?;
    ensure!(!listed.to_string().contains("pcft_"), "{listed}");
    as_somebody(&farm, "root", "", &format!("tokens revoke {token_id}")).await?;
    let revoked = as_somebody(&farm, "ana", ana, "whoami").await?;
    ensure!(revoked.code == Some(5), "{revoked:?}");

    // A token that was made elsewhere is kept from standard input, and nothing of it stays after a logout.
    let mut keep = farm.command(&["login", "--token", "ben"]);
    keep.env("XDG_CONFIG_HOME", farm.directory.path().join("ben"));
    let mut keep = keep.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    keep.stdin.take().context("a pipe")?.write_all(ben.as_bytes())?;
    let kept = Ran::from(tokio::task::spawn_blocking(move || keep.wait_with_output()).await??);
    ensure!(kept.code == Some(0), "{kept:?}");
    assert_eq!(as_somebody(&farm, "ben", "", "jobs").await?.code, Some(0));
    assert_eq!(as_somebody(&farm, "ben", "", "logout").await?.code, Some(0));
    assert_eq!(as_somebody(&farm, "ben", "", "jobs").await?.code, Some(5));
    assert_eq!(as_somebody(&farm, "ben", ben, "whoami").await?.code, Some(5), "it is revoked");

    // What an open farm never had: an authority to join.
    let no_authority = as_somebody(&farm, "root", "", "join-token create").await?;
    ensure!(no_authority.code == Some(1) && no_authority.stderr.contains("pcfarm-server init"), "{no_authority:?}");
    Ok(())
}
