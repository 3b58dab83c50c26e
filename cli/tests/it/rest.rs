//! REST, with the real server, real agents and real HTTP.

use std::time::{Duration, Instant};

use crate::left_out;
use crate::real::Farm;
use crate::real::http::{Client, text};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// For anything that takes a moment, on a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_made_run_and_read() -> Result<()> {
    let farm = Farm::start().await?.with_agent().await?;
    let client = Client::of(&farm);
    let problems = json!([{"key": "a", "payload": {"x": 1}}, {"key": "b", "payload": [2]}]);
    let job = json!({"name": "night", "job_type": "echo", "title": "a title", "problems": problems});
    let made = client.json("POST", "/api/v1/jobs", job).await?.is(201)?;
    let id = text(&made.json()?, "job_id")?;
    ensure!(made.header("location") == Some(format!("/api/v1/jobs/{id}").as_str()));
    let ended = client.get(&format!("/api/v1/jobs/{id}/wait?timeout=30")).await?.is(200)?.json()?;
    ensure!(ended["state"] == "done" && ended["done"] == 2 && ended["title"] == "a title", "{ended}");
    let results = client.get(&format!("/api/v1/jobs/{id}/results")).await?.is(200)?;
    ensure!(results.header("content-type") == Some("application/x-ndjson"));
    let lines: Vec<Value> = results.text().lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    ensure!(lines.len() == 2 && lines[0]["key"] == "a" && lines[0]["outcome"] == "done", "{lines:?}");
    let table = client.get(&format!("/api/v1/jobs/{id}/results?format=csv")).await?.is(200)?.text();
    ensure!(table.starts_with("problem_id,key,outcome,message,result\n") && table.lines().count() == 3, "{table}");
    let page = client.get(&format!("/api/v1/jobs/{id}/problems?limit=1")).await?.is(200)?.json()?;
    ensure!(page["items"].as_array().context("items")?.len() == 1 && page["next"].is_string());
    let next = format!("/api/v1/jobs/{id}/problems?limit=1&cursor={}", text(&page, "next")?);
    ensure!(client.get(&next).await?.is(200)?.json()?["items"][0]["key"] == "b");
    let usage = client.get("/api/v1/usage").await?.is(200)?.json()?;
    ensure!(usage["items"].is_array());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_loaded_whole_or_not_at_all() -> Result<()> {
    let farm = Farm::start().await?;
    let client = Client::of(&farm);
    let made = client.json("POST", "/api/v1/jobs", json!({"name": "files", "job_type": "echo"})).await?.is(201)?;
    let path = format!("/api/v1/jobs/{}/problems", text(&made.json()?, "job_id")?);
    let lines: String = (0..5_000).map(|i| format!("{{\"key\": \"k{i}\", \"payload\": {i}}}\n")).collect();
    let loaded = client.post(&path, "application/x-ndjson", lines.clone()).await?.is(201)?.json()?;
    ensure!(loaded["problems"] == 5_000, "{loaded}");
    let loaded = client.post(&path, "text/csv; charset=utf-8", "key,a\nx,1\ny,2\n").await?.is(201)?.json()?;
    ensure!(loaded["problems"] == 2);
    let array = json!([{"key": "z", "payload": null}]).to_string();
    ensure!(client.post(&path, "application/json", array).await?.is(201)?.json()?["problems"] == 1);
    let by_key = client.post(&format!("{path}?key=id"), "text/csv", "id,a\nx,1\n").await?.is(201)?;
    ensure!(by_key.json()?["problems"] == 1);
    let before = farm.loaded().await?;
    let torn = format!("{lines}{{\"key\": \"last\"}}\n");
    let refused = client.post(&path, "application/x-ndjson", torn).await?.is(422)?.json()?;
    ensure!(text(&refused, "detail")?.starts_with("line 5001: no `payload`"), "{refused}");
    client.post(&path, "text/csv", "a\n1\n").await?.is(422)?;
    client.post(&path, "application/xml", "<a/>").await?.is(415)?;
    client.post(&format!("{path}?convoy=0"), "text/csv", "key\na\n").await?.is(400)?;
    client.post("/api/v1/jobs/999999/problems", "text/csv", "key\na\n").await?.is(404)?;
    ensure!(farm.loaded().await? == before, "nothing of what was refused is there");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_refused_with_its_field() -> Result<()> {
    let farm = Farm::start().await?;
    let client = Client::of(&farm);
    let bodies = [
        (json!({"name": "x", "job_type": "echo", "nmae": 1}), 422, "nmae"),
        (json!({"name": "x"}), 422, "job_type"),
        (json!({"name": "", "job_type": "echo"}), 422, "name"),
        (json!({"name": "x\u{0}", "job_type": "echo"}), 422, "name"),
        (json!({"name": "x", "job_type": "echo", "priority": 1_u64 << 40}), 422, "priority"),
        (json!({"name": "x", "job_type": "echo", "deadline": "tomorrow"}), 422, "deadline"),
        (json!({"name": "x", "job_type": "echo", "convoy": 0}), 422, "convoy"),
        (json!({"name": "x", "job_type": "echo", "after": ["x"]}), 422, "after[0]"),
        (
            json!({"name": "x", "job_type": "echo", "problems": [{"key": "a", "payload": 1, "weight": 0}]}),
            422,
            "problems.0.weight",
        ),
    ];
    for (body, status, field) in bodies {
        let refused = client.json("POST", "/api/v1/jobs", body.clone()).await?.is(status)?;
        ensure!(refused.field()? == field, "{body}: {}", refused.text());
    }
    let none = client.json("POST", "/api/v1/jobs", json!({"name": "x", "job_type": "no such"})).await?;
    ensure!((400..500).contains(&none.status), "{none:?}");
    for (path, field) in [
        ("/api/v1/jobs?limit=0", "limit"),
        ("/api/v1/jobs?limit=99999999999999999999", "limit"),
        ("/api/v1/jobs?cursor=x", "cursor"),
        ("/api/v1/jobs?al=true", "al"),
        ("/api/v1/jobs?all=%00", "all"),
        ("/api/v1/events?job_id=-1", "job_id"),
        ("/api/v1/statistics?since=yesterday", "since"),
        ("/api/v1/usage?since=2026-02-30", "since"),
    ] {
        let refused = client.get(path).await?.is(400)?;
        ensure!(refused.field()? == field, "{path}: {}", refused.text());
    }
    client.post("/api/v1/jobs", "application/json", "{").await?.is(400)?;
    client.post("/api/v1/jobs", "application/json", b"\"\xff\"".to_vec()).await?.is(400)?;
    client.post("/api/v1/jobs", "text/plain", "{}").await?.is(415)?;
    client.post("/api/v1/jobs", "application/json", vec![b' '; 3 << 20]).await?.is(413)?;
    client.get("/api/v1/nothing").await?.is(404)?;
    client.get("/api/v1/jobs/99999999999999999999").await?.is(404)?;
    client.get("/api/v1/jobs/7").await?.is(404)?;
    let refused = client.send("DELETE", "/api/v1/jobs", &[], None).await?.is(405)?;
    ensure!(
        refused.header("allow").is_some_and(|allow| allow.contains("GET") && allow.contains("POST")),
        "{refused:?}"
    );
    let options = client.send("OPTIONS", "/api/v1/jobs", &[], None).await?.is(204)?;
    ensure!(options.header("allow").is_some());
    let head = client.send("HEAD", "/api/v1/jobs", &[], None).await?.is(200)?;
    ensure!(head.body.is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_update_is_refused() -> Result<()> {
    let farm = Farm::start().await?;
    let client = Client::of(&farm);
    let made = client.json("POST", "/api/v1/jobs", json!({"name": "x", "job_type": "echo"})).await?.is(201)?.json()?;
    let path = format!("/api/v1/jobs/{}", text(&made, "job_id")?);
    let tag = client.get(&path).await?.is(200)?.header("etag").context("an ETag")?.to_owned();
    let change = |tag: String, body: Value| {
        let (client, path) = (client.clone(), path.clone());
        async move {
            let headers = [("content-type", "application/json"), ("if-match", tag.as_str())];
            client.send("PATCH", &path, &headers, Some(body.to_string().into())).await
        }
    };
    client.json("PATCH", &path, json!({"priority": 1})).await?.is(428)?;
    let changed = change(tag.clone(), json!({"priority": 7, "info": {"a": 1}})).await?.is(200)?;
    ensure!(changed.json()?["priority"] == 7 && changed.json()?["info"]["a"] == 1, "{}", changed.text());
    change(tag, json!({"priority": 8})).await?.is(412)?;
    let other = changed.header("etag").context("an ETag")?.to_owned();
    // Two at the same time with the same version: one of them.
    let (one, two) =
        tokio::join!(change(other.clone(), json!({"title": "one"})), change(other, json!({"title": "two"})));
    let mut statuses = [one?.status, two?.status];
    statuses.sort_unstable();
    ensure!(statuses == [200, 412], "{statuses:?}");
    change("*".to_owned(), json!({"deadline": "2030-01-01T00:00:00Z"})).await?.is(200)?;
    let none = change("*".to_owned(), json!({"deadline": null})).await?.is(200)?.json()?;
    ensure!(none["deadline"].is_null());
    change("*".to_owned(), json!({})).await?.is(422)?;
    change("nonsense".to_owned(), json!({"title": "x"})).await?.is(400)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_creation_with_a_key_is_done_once() -> Result<()> {
    let farm = Farm::start().await?;
    let client = Client::of(&farm);
    let create = |key: &'static str, name: &'static str| {
        let client = client.clone();
        async move {
            let body = json!({"name": name, "job_type": "echo", "problems": [{"key": "a", "payload": 1}]}).to_string();
            let headers = [("content-type", "application/json"), ("idempotency-key", key)];
            client.send("POST", "/api/v1/jobs", &headers, Some(body.into())).await
        }
    };
    let attempts = futures(20, || create("same", "x")).await?;
    let ids: Vec<String> = attempts
        .iter()
        .filter(|answer| answer.status == 201)
        .map(|answer| text(&answer.json()?, "job_id"))
        .collect::<Result<_>>()?;
    ensure!(!ids.is_empty() && ids.iter().all(|id| *id == ids[0]), "{attempts:?}");
    ensure!(attempts.iter().all(|answer| answer.status == 201 || answer.status == 409), "{attempts:?}");
    ensure!(farm.number("select count(*) from pcfarm.job").await? == 1);
    let again = create("same", "x").await?.is(201)?;
    ensure!(again.header("idempotent-replayed") == Some("true") && text(&again.json()?, "job_id")? == ids[0]);
    let other = create("same", "y").await?.is(422)?;
    ensure!(other.field()? == "Idempotency-Key");
    create("another", "y").await?.is(201)?;
    ensure!(farm.number("select count(*) from pcfarm.job").await? == 2);
    create("not a key", "y").await?.is(400)?;
    // Its answer is forgotten after a day; the job has the key still, and what it stands for.
    farm.sql.batch_execute("delete from pcfarm.request").await?;
    let again = create("same", "x").await?.is(201)?.json()?;
    ensure!(text(&again, "job_id")? == ids[0] && again["repeated"] == true && again["problems"] == 0, "{again}");
    farm.sql.batch_execute("delete from pcfarm.request").await?;
    let problems = json!([{"key": "a", "payload": 1}, {"key": "b", "payload": 2}]);
    let body = json!({"name": "x", "job_type": "echo", "problems": problems}).to_string();
    let headers = [("content-type", "application/json"), ("idempotency-key", "same")];
    client.send("POST", "/api/v1/jobs", &headers, Some(body.into())).await?.is(409)?;
    ensure!(farm.number("select count(*) from pcfarm.problem").await? == 2);
    Ok(())
}

/// So many at the same time.
async fn futures<F, T>(count: usize, make: impl Fn() -> F) -> Result<Vec<T>>
where
    F: Future<Output = Result<T>> + Send + 'static,
    T: Send + 'static,
{
    let mut tasks = tokio::task::JoinSet::new();
    (0..count).for_each(|_| drop(tasks.spawn(make())));
    tasks.join_all().await.into_iter().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_resource_is_there() -> Result<()> {
    let farm = Farm::start().await?.with_agent().await?;
    let client = Client::of(&farm);
    // Resources.
    client
        .json("PUT", "/api/v1/resources/licence", json!({"tokens": 3, "description": "of a solver"}))
        .await?
        .is(200)?;
    ensure!(client.get("/api/v1/resources").await?.is(200)?.json()?["items"][0]["tokens"] == 3);
    client.send("DELETE", "/api/v1/resources/licence", &[], None).await?.is(204)?;
    client.get("/api/v1/resources/licence").await?.is(404)?;
    // Users and limits.
    let limited = client.json("PATCH", "/api/v1/users/mia/limits", json!({"concurrency": 5})).await?.is(200)?.json()?;
    ensure!(limited["limits"]["concurrency"] == 5, "{limited}");
    let freed =
        client.json("PATCH", "/api/v1/users/mia/limits", json!({"concurrency": null})).await?.is(200)?.json()?;
    ensure!(freed["limits"]["concurrency"].is_null(), "{freed}");
    ensure!(client.get("/api/v1/users").await?.is(200)?.json()?["total"].is_number());
    client.get("/api/v1/users/nobody-of-this-name").await?.is(404)?;
    client.get("/api/v1/limits").await?.is(200)?;
    // Profiles and signals.
    let entry = json!({"job_type": "echo", "weekdays": "mon-fri", "problems_per_hour": 100});
    let made = client.json("POST", "/api/v1/profiles", entry).await?.is(201)?.json()?;
    let path = format!("/api/v1/profiles/{}", text(&made, "profile_id")?);
    ensure!(made["weekdays"].as_array().is_some_and(|days| days.len() == 5), "{made}");
    let changed =
        client.json("PATCH", &path, json!({"problems_per_hour": null, "priority": 2})).await?.is(200)?.json()?;
    ensure!(changed["problems_per_hour"].is_null() && changed["priority"] == 2, "{changed}");
    client.send("DELETE", &path, &[], None).await?.is(204)?;
    client.get(&path).await?.is(404)?;
    client.json("PUT", "/api/v1/signals/load", json!({"value": 0.5})).await?.is(200)?;
    ensure!(client.get("/api/v1/signals").await?.is(200)?.json()?["items"][0]["value"] == 0.5);
    // Workstations.
    let found = client.get("/api/v1/workstations").await?.is(200)?.json()?["items"][0].clone();
    ensure!(found["hostname"] == "pc1", "{found}");
    let path = format!("/api/v1/workstations/{}", text(&found, "workstation_id")?);
    let drained = client.send("PUT", &format!("{path}/drain"), &[], Some(Vec::new())).await?.is(200)?.json()?;
    ensure!(drained["state"] == "draining", "{drained}");
    let drained = &drained["drained"];
    ensure!(drained["by"] == "an administrator" && drained["deadline"].is_null(), "{drained}");
    client.send("DELETE", &format!("{path}/drain"), &[], None).await?.is(200)?;
    let with = format!("{path}/drain?reason=fan&deadline_seconds=600");
    let drained = client.send("PUT", &with, &[], None).await?.is(200)?.json()?;
    ensure!(drained["drained"]["why"] == "fan" && drained["drained"]["deadline"].is_string(), "{drained}");
    let ids = json!([found["workstation_id"]]);
    let all = |more: Value| {
        let mut body = json!({"workstation_ids": ids});
        body.as_object_mut().into_iter().for_each(|body| body.extend(more.as_object().cloned().unwrap_or_default()));
        body
    };
    let path_of = |verb: &str| format!("/api/v1/workstations/{verb}");
    let undrained = client.json("POST", &path_of("undrain"), all(json!({}))).await?.is(200)?.json()?;
    ensure!(undrained["items"][0]["drained"].is_null(), "{undrained}");
    let drained = client.json("POST", &path_of("drain"), all(json!({"reason": "moving"}))).await?.is(200)?.json()?;
    ensure!(drained["items"][0]["drained"]["why"] == "moving", "{drained}");
    client.json("POST", &path_of("undrain"), all(json!({}))).await?.is(200)?;
    let noted = client.json("POST", &path_of("note"), all(json!({"note": "in the cellar"}))).await?.is(200)?.json()?;
    ensure!(noted["items"][0]["note"] == "in the cellar", "{noted}");
    client.json("POST", &path_of("note"), json!({"workstation_ids": ["77"], "note": ""})).await?.is(404)?;
    client.json("POST", &path_of("note"), json!({"workstation_ids": [], "note": ""})).await?.is(422)?;
    client.json("POST", &path_of("forget"), all(json!({}))).await?.is(409)?;
    client.json("POST", &path_of("forget"), json!({"workstation_ids": ["77"]})).await?.is(404)?;
    ensure!(client.get(&format!("{path}/explain")).await?.is(200)?.json()?["reasons"].is_array());
    let selection = "/api/v1/hosts/pc1/selection";
    let none = client.get(selection).await?.is(200)?;
    ensure!(none.json()?["labels"] == json!([]) && none.header("etag") == Some("\"none\""), "{none:?}");
    let big = Some(json!({"labels": ["big"]}).to_string().into_bytes());
    let new = [("If-Match", "\"none\""), ("Content-Type", "application/json")];
    let said = client.send("PATCH", selection, &new, big.clone()).await?.is(200)?;
    ensure!(said.json()?["labels"] == json!(["big"]) && said.header("etag") != Some("\"none\""), "{said:?}");
    client.send("PATCH", selection, &new, big).await?.is(412)?;
    ensure!(client.get(selection).await?.is(200)?.header("etag") == said.header("etag"));
    let presence = "/api/v1/hosts/pc1/presence";
    let none = client.get(presence).await?.is(200)?;
    ensure!(none.json()? == json!({"hostname": "pc1"}) && none.header("etag") == Some("\"none\""), "{none:?}");
    let wish = |wish: Value| Some(wish.to_string().into_bytes());
    let careful = wish(json!({"start_after": 1800, "on_battery": false}));
    let said = client.send("PATCH", presence, &new, careful.clone()).await?.is(200)?;
    ensure!(said.json()? == json!({"hostname": "pc1", "start_after": 1800, "on_battery": false}), "{said:?}");
    client.send("PATCH", presence, &new, careful).await?.is(412)?;
    ensure!(client.get(presence).await?.is(200)?.header("etag") == said.header("etag"));
    let version = [("If-Match", said.header("etag").unwrap_or_default()), ("Content-Type", "application/json")];
    client.send("PATCH", presence, &version, wish(json!({"start_after": "soon"}))).await?.is(422)?;
    let less = client.send("PATCH", presence, &version, wish(json!({"on_battery": null}))).await?.is(200)?;
    ensure!(
        less.json()? == json!({"hostname": "pc1", "start_after": 1800}) && less.header("etag") != said.header("etag")
    );
    client.json("PATCH", presence, json!({"start_after": null})).await?.is(200)?;
    client.get("/api/v1/slots").await?.is(200)?;
    // Queue control.
    client.json("PUT", "/api/v1/queue/suspension", json!({"reason": "maintenance"})).await?.is(204)?;
    client.send("DELETE", "/api/v1/queue/suspension", &[], None).await?.is(204)?;
    client.json("PUT", "/api/v1/job-types/echo/suspension", json!({})).await?.is(204)?;
    client.send("DELETE", "/api/v1/job-types/echo/suspension", &[], None).await?.is(204)?;
    // Alerts.
    let new = json!({"events": ["ended"], "notify": "farm_ended", "job_type": "echo"});
    let made = client.json("POST", "/api/v1/subscriptions", new).await?.is(201)?.json()?;
    let id = text(&made["subscription"], "subscription_id")?;
    client.get("/api/v1/alerts").await?.is(200)?;
    client.send("DELETE", &format!("/api/v1/subscriptions/{id}"), &[], None).await?.is(204)?;
    // The farm.
    ensure!(client.get("/api/v1/status").await?.is(200)?.json()?["servers"].is_array());
    client.get("/api/v1/statistics").await?.is(200)?;
    let events = client.get("/api/v1/events?what=resource").await?.is(200)?.json()?;
    ensure!(events["items"].as_array().is_some_and(|events| !events.is_empty()), "{events}");
    let next = format!("/api/v1/events?cursor={}", text(&events, "next")?);
    client.get(&next).await?.is(200)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_change_their_state_on_request() -> Result<()> {
    let farm = Farm::start().await?;
    let client = Client::of(&farm);
    let new = json!({"name": "x", "job_type": "echo", "problems": [{"key": "a", "payload": 1}], "open": false});
    let made = client.json("POST", "/api/v1/jobs", new).await?.is(201)?.json()?;
    let path = format!("/api/v1/jobs/{}", text(&made, "job_id")?);
    client.act(&format!("{path}/hold")).await?.is(409)?;
    for (action, state) in [("open", "open"), ("hold", "held"), ("release", "open"), ("cancel", "cancelled")] {
        let job = client.act(&format!("{path}/{action}")).await?.is(200)?.json()?;
        ensure!(job["state"] == state, "{action}: {job}");
    }
    ensure!(client.get("/api/v1/jobs").await?.is(200)?.json()?["items"] == json!([]));
    ensure!(client.get("/api/v1/jobs?all=true").await?.is(200)?.json()?["items"][0]["state"] == "cancelled");
    client.get(&format!("{path}/explain")).await?.is(200)?;
    client.act("/api/v1/jobs/777777/cancel").await?.is(404)?;
    client.get(&format!("{path}/wait?timeout=301")).await?.is(400)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submission_is_stored_loaded_and_fetched_again() -> Result<()> {
    let farm = Farm::start().await?.with_agent().await?;
    let client = Client::of(&farm);
    let xml = "<deposit><title>On farms</title></deposit>";
    let path = "/api/v1/submissions?name=deposit&job_type=echo";
    let headers = [("content-type", "application/xml"), ("prefer", "wait=30"), ("idempotency-key", "d1")];
    let made = client.send("POST", path, &headers, Some(xml.into())).await?.is(201)?;
    ensure!(made.header("preference-applied") == Some("wait=30"));
    let submission = made.json()?;
    ensure!(submission["state"] == "queued" && submission["job_state"] == "done", "{submission}");
    ensure!(submission["results"][0]["outcome"] == "done" && submission["problems"] == 1, "{submission}");
    let problems = format!("/api/v1/jobs/{}/problems", text(&submission, "job_id")?);
    let payload = client.get(&problems).await?.is(200)?.json()?["items"][0]["payload"].clone();
    ensure!(payload["text"] == xml && payload["content_type"] == "application/xml", "{payload}");
    ensure!(payload["sha256"] == submission["sha256"]);
    let id = text(&submission, "submission_id")?;
    let original = client.get(&format!("/api/v1/submissions/{id}/original")).await?.is(200)?;
    ensure!(original.text() == xml && original.header("content-type") == Some("application/octet-stream"));
    // The same again is the same, and another under its key is refused.
    let again = client.send("POST", path, &headers, Some(xml.into())).await?.is(201)?;
    ensure!(again.header("idempotent-replayed") == Some("true") && text(&again.json()?, "submission_id")? == id);
    client.send("POST", path, &headers, Some(b"other".to_vec())).await?.is(422)?;
    // Binary, and a file of problems; nothing of it can be a formula for whoever opens it.
    let bytes = vec![0xff, 0x00, 0x01];
    let binary = client.send("POST", path, &[("prefer", "wait=30")], Some(bytes)).await?.is(201)?.json()?;
    ensure!(binary["job_state"] == "done", "{binary}");
    let file = "key,a\nx,1\ny,2\n";
    let csv =
        client.send("POST", path, &[("content-type", "text/csv"), ("prefer", "wait=30")], Some(file.into())).await?;
    ensure!(csv.is(201)?.json()?["problems"] == 2);
    // What can never be loaded says why.
    let wrong = client
        .send("POST", path, &[("content-type", "text/csv"), ("prefer", "wait=30")], Some("a\n1\n".into()))
        .await?;
    let wrong = wrong.is(201)?.json()?;
    ensure!(wrong["state"] == "refused" && text(&wrong, "message")?.contains("no column `key`"), "{wrong}");
    let listed = client.get("/api/v1/submissions?state=refused").await?.is(200)?.json()?;
    ensure!(listed["items"].as_array().is_some_and(|items| items.len() == 1));
    client.post("/api/v1/submissions?name=x", "text/csv", "key\na\n").await?.is(400)?;
    client.post("/api/v1/submissions?name=x&job_type=none", "text/csv", "key\na\n").await?.is(422)?;
    let large = vec![b'x'; 2 << 20];
    client.post(path, "application/xml", large).await?.is(413)?;
    ensure!(farm.number("select count(*) from pcfarm.submission where state = 'receiving'").await? == 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_put_listed_got_and_let_go_of() -> Result<()> {
    let farm = Farm::start().await?;
    let client = Client::of(&farm);
    let content: Vec<u8> = (0..2_500_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let headers = [("content-type", "application/octet-stream"), ("idempotency-key", "f1")];
    let put = client.send("POST", "/api/v1/files?name=model.bin", &headers, Some(content.clone())).await?.is(201)?;
    let file = put.json()?;
    let hash = text(&file, "sha256")?;
    ensure!(file["bytes"] == 2_500_000 && file["name"] == "model.bin", "{file}");
    let path = format!("/api/v1/files/{hash}");
    ensure!(put.header("location") == Some(path.as_str()));
    client.send("POST", "/api/v1/files", &headers, Some(content.clone())).await?.is(200)?;
    let got = client.get(&path).await?.is(200)?;
    ensure!(got.body == content && got.header("etag") == Some(format!("\"{hash}\"").as_str()));
    // Empty, with its hash known before; and with another's.
    let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    client.post(&format!("/api/v1/files?sha256={empty}"), "text/plain", "").await?.is(201)?;
    ensure!(client.get(&format!("/api/v1/files/{empty}")).await?.is(200)?.body.is_empty());
    client.post(&format!("/api/v1/files?sha256={empty}"), "text/plain", "x").await?.is(422)?;
    ensure!(client.post("/api/v1/files?sha256=0badc0de", "text/plain", "x").await?.is(400)?.field()? == "sha256");
    // Page by page, the newest first.
    let mut names = Vec::new();
    let mut next = "/api/v1/files?limit=1".to_owned();
    while names.len() < 3 {
        let page = client.get(&next).await?.is(200)?.json()?;
        let Some(item) = page["items"].get(0) else { break };
        names.push(text(item, "sha256")?);
        next = format!("/api/v1/files?limit=1&cursor={}", text(&page, "next")?);
    }
    ensure!(names == [empty, &hash], "{names:?}");
    // A job may need it.
    let job = json!({"name": "needs", "job_type": "echo", "files": {"model.bin": hash}});
    client.json("POST", "/api/v1/jobs", job).await?.is(201)?;
    ensure!(farm.number("select count(*) from pcfarm.job_file").await? == 1);
    client.send("DELETE", &path, &[], None).await?.is(204)?;
    for missing in [path.as_str(), "/api/v1/files/0badc0de"] {
        client.get(missing).await?.is(404)?;
        client.send("DELETE", missing, &[], None).await?.is(404)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_stored_is_loaded_by_the_next_server() -> Result<()> {
    let mut farm = Farm::start().await?;
    let client = Client::of(&farm);
    client.json("PUT", "/api/v1/queue/intake", json!({"paused": true, "reason": "tonight"})).await?.is(200)?;
    let path = "/api/v1/submissions?name=later&job_type=echo";
    let stored = client.post(path, "text/csv", "key,a\nx,1\n").await?.is(201)?.json()?;
    ensure!(stored["state"] == "stored" && stored["sha256"].is_string(), "{stored}");
    ensure!(farm.number("select count(*) from pcfarm.job").await? == 0);
    // Killed between storing and loading: another one finds it.
    farm.server.0.kill()?;
    farm.server.0.wait()?;
    farm.start_server_again().await?;
    let client = Client::of(&farm);
    client.json("PUT", "/api/v1/queue/intake", json!({"paused": false})).await?.is(200)?;
    farm.until("select count(*) from pcfarm.submission where state = 'queued'", 1).await?;
    ensure!(farm.number("select count(*) from pcfarm.problem").await? == 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_may_store_only_so_much() -> Result<()> {
    let farm = Farm::start().await?;
    let client = Client::of(&farm);
    farm.sql.batch_execute("update pcfarm.intake set most_stored = 2, paused_since = now()").await?;
    let path = "/api/v1/submissions?name=x&job_type=echo";
    client.post(path, "text/csv", "key\na\n").await?.is(201)?;
    client.post(path, "text/csv", "key\nb\n").await?.is(201)?;
    let refused = client.post(path, "text/csv", "key\nc\n").await?.is(429)?;
    ensure!(refused.header("retry-after").is_some());
    // Loading into a job goes by the queue limit, and is told the same way.
    client.json("PATCH", "/api/v1/limits", json!({"queue_limit": 3})).await?.is(200)?;
    let problems: Vec<Value> = (0..4).map(|i| json!({"key": i.to_string(), "payload": 1})).collect();
    client
        .json("POST", "/api/v1/jobs", json!({"name": "x", "job_type": "echo", "problems": problems}))
        .await?
        .is(429)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_says_how_it_is() -> Result<()> {
    let farm = Farm::start().await?.with_agent().await?;
    let client = Client::of(&farm);
    client.get("/healthz").await?.is(200)?;
    let deadline = Instant::now() + PATIENCE;
    while client.get("/readyz").await?.status != 200 {
        ensure!(Instant::now() < deadline, "it is never ready");
    }
    let job = json!({"name": "x", "job_type": "echo", "problems": [{"key": "a", "payload": 1}]});
    let made = client.json("POST", "/api/v1/jobs", job).await?.is(201)?.json()?;
    client.get(&format!("/api/v1/jobs/{}/wait", text(&made, "job_id")?)).await?.is(200)?;
    let metrics = client.get("/metrics").await?.is(200)?.text();
    for name in [
        "pcfarm_problems_waiting 0",
        "pcfarm_workstations{state=\"waiting\"} 1",
        "pcfarm_checkouts_total 1",
        "pcfarm_results_total 1",
        "pcfarm_database_seconds_bucket{statement=\"accept\"",
        "pcfarm_http_requests_total{method=\"POST\",route=\"/api/v1/jobs\",status=\"201\"} 1",
        "pcfarm_database_up 1",
    ] {
        ensure!(metrics.contains(name), "{name} is missing:\n{metrics}");
    }
    ensure!(!metrics.contains("pc1"), "no host names");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_upload_needs_little_memory() -> Result<()> {
    upload_of(20 << 20, 60 << 20).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: uploads 200 MB in a minute"]
async fn a_very_long_upload_needs_little_memory() -> Result<()> {
    upload_of(200 << 20, 100 << 20).await
}

async fn upload_of(bytes: usize, growth: u64) -> Result<()> {
    let farm = Farm::start().await?;
    let client = Client::of(&farm);
    let made = client.json("POST", "/api/v1/jobs", json!({"name": "x", "job_type": "echo"})).await?.is(201)?.json()?;
    let path = format!("/api/v1/jobs/{}/problems", text(&made, "job_id")?);
    let line = format!("{{\"key\": \"k\", \"payload\": \"{}\"}}\n", "x".repeat(10_000));
    let count = bytes / line.len();
    let before = farm.server.peak()?;
    let loaded = client.post(&path, "application/x-ndjson", line.repeat(count)).await?.is(201)?.json()?;
    ensure!(loaded["problems"] == count, "{loaded}");
    let grown = farm.server.peak()?.saturating_sub(before);
    ensure!(grown < growth, "{bytes} bytes took {grown} of memory");
    Ok(())
}

/// docs/rest.md runs as it is written, block after block.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_about_rest_runs() -> Result<()> {
    let farm = Farm::start().await?.with_agent().await?;
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/rest.md"))?;
    let mut ran = 0;
    for (fence, interpreter) in [("```sh\n", "bash"), ("```python\n", "python3")] {
        let has = |check: &[&str]| {
            std::process::Command::new(check[0]).args(&check[1..]).output().is_ok_and(|o| o.status.success())
        };
        let there = match interpreter {
            "bash" => has(&["curl", "--version"]) && has(&["bash", "--version"]),
            _ => has(&["python3", "-c", "import requests"]),
        };
        if !there {
            left_out::for_want_of(if interpreter == "bash" { "curl" } else { "python3 with requests" });
            continue;
        }
        for block in page.split(fence).skip(1).filter_map(|rest| rest.split("```").next()) {
            let (block, base, directory) = (block.to_owned(), farm.rest.clone(), farm.directory.path().to_owned());
            let flags: &[&str] = if interpreter == "bash" { &["-euo", "pipefail", "-c"] } else { &["-c"] };
            let mut command = std::process::Command::new(interpreter);
            command.args(flags).arg(&block).env("FARM", base).env("no_proxy", "*").current_dir(directory);
            let output = tokio::task::spawn_blocking(move || command.output()).await??;
            ensure!(
                output.status.success(),
                "{block}\n{}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
            ran += 1;
        }
    }
    eprintln!("{ran} blocks ran");
    Ok(())
}

/// The dashboard asks for nothing that is not measured.
#[tokio::test(flavor = "multi_thread")]
async fn the_dashboard_asks_for_what_is_measured() -> Result<()> {
    let farm = Farm::start().await?.with_agent().await?;
    let client = Client::of(&farm);
    let job = json!({"name": "x", "job_type": "echo", "problems": [{"key": "a", "payload": 1}]});
    let made = client.json("POST", "/api/v1/jobs", job).await?.is(201)?.json()?;
    client.get(&format!("/api/v1/jobs/{}/wait", text(&made, "job_id")?)).await?.is(200)?;
    let metrics = client.get("/metrics").await?.is(200)?.text();
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../deploy/grafana/pcfarm.json"
    ))?)?;
    for target in
        dashboard["panels"].as_array().context("panels")?.iter().flat_map(|panel| panel["targets"].as_array()).flatten()
    {
        let asked = target["expr"].as_str().context("an expression")?;
        for name in
            asked.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).filter(|word| word.starts_with("pcfarm_"))
        {
            ensure!(metrics.contains(name), "{name} is not measured");
        }
    }
    Ok(())
}

/// What a scheduler's programs ask: define, change any part, disable, look at one, list them in pages, see what came.
#[tokio::test(flavor = "multi_thread")]
async fn schedules_are_defined_changed_and_looked_at() -> Result<()> {
    let farm = Farm::start().await?;
    let client = Client::of(&farm);
    let job = json!({"name": "mail", "job_type": "echo", "standing": true, "open": true});
    let job = text(&client.json("POST", "/api/v1/jobs", job).await?.is(201)?.json()?, "job_id")?;
    let new = json!({"name": "nightly", "recurrence": "0 22 * * mon-fri", "time_zone": "Europe/Berlin", "job_id": job,
        "payload": {"to": "all"}, "description": "at night"});
    let made = client.json("POST", "/api/v1/schedules", new.clone()).await?.is(201)?;
    let tag = made.header("etag").context("an ETag")?.to_owned();
    let schedule = made.json()?;
    ensure!(schedule["state"] == "active" && schedule["next_due_at"].is_string(), "{schedule}");
    ensure!(schedule["payload"] == json!({"to": "all"}) && schedule["job_id"] == json!(job), "{schedule}");
    client.json("POST", "/api/v1/schedules", new).await?.is(409)?;
    let path = format!("/api/v1/schedules/{}", text(&schedule, "schedule_id")?);
    let change = |tag: String, body: Value| {
        let (client, path) = (client.clone(), path.clone());
        async move {
            let headers = [("content-type", "application/json"), ("if-match", tag.as_str())];
            client.send("PATCH", &path, &headers, Some(body.to_string().into())).await
        }
    };
    let changed = change(tag.clone(), json!({"recurrence": "@daily", "payload": null})).await?.is(200)?.json()?;
    ensure!(changed["recurrence"] == "@daily" && changed["description"] == "at night", "{changed}");
    change(tag, json!({"recurrence": "@hourly"})).await?.is(412)?;
    change("*".to_owned(), json!({"recurrence": "61 * * * *"})).await?.is(422)?;
    change("*".to_owned(), json!({"catch_up": "never"})).await?.is(422)?;
    ensure!(client.act(&format!("{path}/disable")).await?.is(200)?.json()?["state"] == "disabled");
    ensure!(client.act(&format!("{path}/enable")).await?.is(200)?.json()?["state"] == "active");
    let next = client.get(&format!("{path}/next?count=3")).await?.is(200)?.json()?;
    ensure!(next["times"].as_array().is_some_and(|times| times.len() == 3), "{next}");
    ensure!(client.act(&format!("{path}/trigger")).await?.is(200)?.json()?["sequence"] == 1);
    let triggers = client.get(&format!("{path}/triggers")).await?.is(200)?.json()?;
    ensure!(triggers["items"][0]["sequence"] == 1 && triggers["items"][0]["job_id"] == json!(job), "{triggers}");
    ensure!(client.get(&path).await?.is(200)?.json()?["triggers"] == 1);
    for name in ["a", "b"] {
        let new = json!({"name": name, "recurrence": "every 15 minutes", "job_id": job});
        client.json("POST", "/api/v1/schedules", new).await?.is(201)?;
    }
    let page = client.get("/api/v1/schedules?limit=2").await?.is(200)?.json()?;
    let rest = format!("/api/v1/schedules?limit=2&cursor={}", text(&page, "next")?);
    ensure!(client.get(&rest).await?.is(200)?.json()?["items"].as_array().is_some_and(|items| items.len() == 1));
    client.send("DELETE", &path, &[], None).await?.is(204)?;
    client.get(&path).await?.is(404)?;
    Ok(())
}
