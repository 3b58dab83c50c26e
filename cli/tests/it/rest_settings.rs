//! What administrators set over REST: job types, quotas, limits; and that no change of it is lost.

use crate::real::Farm;
use crate::real::http::{Client, PASSWORD, text};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

type Test = Result<()>;

const TYPE: &str = "/api/v1/job-types/solve";

#[tokio::test(flavor = "multi_thread")]
async fn a_job_type_is_defined_changed_and_removed() -> Test {
    let farm = Farm::start().await?.with_agent().await?;
    let client = Client::of(&farm);
    client.json("PUT", "/api/v1/resources/licence", json!({"tokens": 3})).await?.is(200)?;
    let definition = json!({"controller": "echo", "description": "of a solver", "default_priority": 2, "max_attempts": 5,
        "default_duration_seconds": 3600, "time_limit_seconds": 90.5, "retention_seconds": 86400, "resources": {"licence": 1}});
    let made = client.json("PUT", TYPE, definition.clone()).await?.is(201)?;
    ensure!(made.header("location") == Some(TYPE) && made.header("etag").is_some(), "{made:?}");
    let again = client.json("PUT", TYPE, definition).await?.is(200)?;
    ensure!(again.json()? == made.json()? && again.header("etag") == made.header("etag"), "the same again is the same");
    let shown = client.get(TYPE).await?.is(200)?.json()?;
    ensure!(shown["time_limit_seconds"] == 90.5 && shown["resources"] == json!({"licence": 1}), "{shown}");
    ensure!(shown["retry_delay_seconds"].is_null() && shown["retry_delay_limit_seconds"] == 3600.0, "{shown}");
    let listed = client.get("/api/v1/job-types?limit=2").await?.is(200)?.json()?;
    ensure!(listed["total"] == 4 && listed["items"][0]["name"] == "echo", "{listed}");
    let rest = format!("/api/v1/job-types?limit=2&cursor={}", text(&listed, "next")?);
    ensure!(client.get(&rest).await?.is(200)?.json()?["items"][1]["name"] == "solve");

    // What is not named stays; null is as of a new one.
    let change = json!({"max_attempts": 2, "default_duration_seconds": null, "labels": ["big"]});
    let changed = client.change("PATCH", TYPE, "*", change).await?.is(200)?.json()?;
    ensure!(changed["max_attempts"] == 2 && changed["default_duration_seconds"].is_null(), "{changed}");
    ensure!(changed["description"] == "of a solver" && changed["labels"] == json!(["big"]), "{changed}");
    let freed =
        client.change("PATCH", TYPE, "*", json!({"resources": {"licence": null}, "labels": []})).await?.is(200)?;
    ensure!(freed.json()?["resources"] == json!({}) && freed.json()?["labels"] == json!([]), "{}", freed.text());

    let change =
        client.change("PATCH", TYPE, "*", json!({"require": ["cores >= 1", "memory > 1 KiB"]})).await?.is(200)?;
    ensure!(change.json()?["require"] == json!(["cores >= 1", "memory > 1 KiB"]), "{}", change.text());

    // A job may require more, and other things later.
    let job =
        json!({"name": "x", "job_type": "solve", "require": ["gpus > 1000"], "problems": [{"key": "a", "payload": 1}]});
    let job = text(&client.json("POST", "/api/v1/jobs", job).await?.is(201)?.json()?, "job_id")?;
    let job = format!("/api/v1/jobs/{job}");
    let waiting = client.get(&job).await?.is(200)?.json()?;
    ensure!(waiting["require"] == json!(["gpus > 1000"]), "{waiting}");
    ensure!(waiting["without_workstation"][0].as_str().is_some_and(|why| why.contains("has gpus > 1000")), "{waiting}");
    let refused = client.change("PATCH", &job, "*", json!({"require": ["gpus > many"]})).await?.is(422)?.json()?;
    ensure!(text(&refused, "detail")?.contains("many is no whole number"), "{refused}");
    let freed = client.change("PATCH", &job, "*", json!({"require": []})).await?.is(200)?.json()?;
    ensure!(freed["require"] == json!([]) && freed["without_workstation"] == json!([]), "{freed}");
    ensure!(client.get(&format!("{job}/wait?timeout=30")).await?.is(200)?.json()?["state"] == "done");
    client.change("PATCH", TYPE, "*", json!({"require": null})).await?.is(200)?;

    // Servers use it at once.
    let job = json!({"name": "x", "job_type": "solve", "problems": [{"key": "a", "payload": 1}]});
    let job = text(&client.json("POST", "/api/v1/jobs", job).await?.is(201)?.json()?, "job_id")?;
    let ended = client.get(&format!("/api/v1/jobs/{job}/wait?timeout=30")).await?.is(200)?.json()?;
    ensure!(ended["state"] == "done" && ended["priority"] == 2, "{ended}");
    let refused = client.send("DELETE", TYPE, &[], None).await?.is(409)?.json()?;
    ensure!(text(&refused, "detail")?.contains(&format!("job type solve is in use: jobs {job}")), "{refused}");
    client.json("PUT", "/api/v1/job-types/unused", json!({"controller": "echo"})).await?.is(201)?;
    client.send("DELETE", "/api/v1/job-types/unused", &[], None).await?.is(204)?;
    client.send("DELETE", "/api/v1/job-types/unused", &[], None).await?.is(404)?;
    client.get("/api/v1/job-types/unused").await?.is(404)?;
    let events = client.get("/api/v1/events?what=job%20type").await?.is(200)?.json()?;
    let events: Vec<&str> =
        events["items"].as_array().context("items")?.iter().filter_map(|e| e["what"].as_str()).collect();
    ensure!(events.contains(&"job type removed") && events.contains(&"job type changed"), "{events:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_job_type_is_told_with_its_field() -> Test {
    let farm = Farm::start().await?;
    let client = Client::of(&farm);
    let cases = [
        (json!({}), "controller"),
        (json!({"controller": "no such name!"}), "controller"),
        (json!({"controller": "c", "controler": 1}), "controler"),
        (json!({"controller": "c", "max_attempts": 0}), "max_attempts"),
        (json!({"controller": "c", "max_attempts": "3"}), "max_attempts"),
        (json!({"controller": "c", "time_limit_seconds": 0}), "time_limit_seconds"),
        (json!({"controller": "c", "retention_seconds": -1}), "retention_seconds"),
        (json!({"controller": "c", "retention_seconds": 1e300}), "retention_seconds"),
        (json!({"controller": "c", "resources": {"nothing": 1}}), "resources"),
        (json!({"controller": "c", "resources": {"nothing": -1}}), "resources"),
        (json!({"controller": "c", "labels": [""]}), "labels"),
        (json!({"controller": "c", "require": ["memory >= 8"]}), "require"),
        (json!({"controller": "c", "require": "gpu"}), "require"),
        // Roles of the database are not a farm's administrator's to choose.
        (json!({"controller": "c", "read_role": "postgres"}), "read_role"),
        (json!({"controller": "c", "write_role": "postgres"}), "write_role"),
        (json!({"controller": "c", "write_back": "drop table x"}), "write_back"),
    ];
    for (body, field) in cases {
        let refused = client.json("PUT", TYPE, body.clone()).await?.is(422)?;
        ensure!(refused.field()? == field, "{body}: {}", refused.text());
    }
    ensure!(
        client.json("PUT", "/api/v1/job-types/no%20name", json!({"controller": "c"})).await?.is(422)?.field()?
            == "name"
    );
    client.change("PATCH", TYPE, "*", json!({"controller": "c"})).await?.is(404)?;
    client.json("PATCH", "/api/v1/job-types/echo", json!({"max_attempts": 1})).await?.is(428)?;
    client.change("PATCH", "/api/v1/job-types/echo", "*", json!({})).await?.is(422)?;
    let quota = |body: Value| client.json("PUT", "/api/v1/users/ana/quota", body);
    ensure!(quota(json!({"period": "week"})).await?.is(422)?.field()? == "period");
    ensure!(quota(json!({"period": "day", "problems": -1})).await?.is(422)?.field()? == "problems");
    ensure!(quota(json!({"period": "day", "cpu_seconds": -1})).await?.is(422)?.field()? == "cpu_seconds");
    Ok(())
}

/// Whatever is changed, what was read of it says which version the change is meant for.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_update_of_what_is_set_is_refused() -> Test {
    let farm = Farm::start().await?;
    let client = Client::of(&farm);
    let entry = json!({"job_type": "echo", "problems_per_hour": 100});
    let profile = text(&client.json("POST", "/api/v1/profiles", entry).await?.is(201)?.json()?, "profile_id")?;
    let profile = format!("/api/v1/profiles/{profile}");
    client.json("PUT", "/api/v1/resources/licence", json!({"tokens": 3})).await?.is(200)?;
    client.json("PATCH", "/api/v1/users/mia/limits", json!({"concurrency": 1})).await?.is(200)?;
    let of_type = "/api/v1/users/mia/job-types/echo/limits";
    let cases = [
        (
            "PATCH",
            "/api/v1/job-types/echo",
            "/api/v1/job-types/echo",
            [json!({"max_attempts": 7}), json!({"max_attempts": 8})],
        ),
        (
            "PUT",
            "/api/v1/job-types/nap",
            "/api/v1/job-types/nap",
            [json!({"controller": "sleep", "max_attempts": 7}), json!({"controller": "sleep"})],
        ),
        ("PUT", "/api/v1/resources/licence", "/api/v1/resources/licence", [json!({"tokens": 4}), json!({"tokens": 5})]),
        ("PATCH", &profile, &profile, [json!({"priority": 1}), json!({"priority": 2})]),
        (
            "PATCH",
            "/api/v1/users/mia/limits",
            "/api/v1/users/mia",
            [json!({"concurrency": 2}), json!({"concurrency": 3})],
        ),
        ("PATCH", of_type, "/api/v1/users/mia", [json!({"concurrency": 2}), json!({"concurrency": 3})]),
        ("PATCH", "/api/v1/limits", "/api/v1/limits", [json!({"concurrency": 2}), json!({"concurrency": 3})]),
        (
            "PUT",
            "/api/v1/users/mia/quota",
            "/api/v1/users/mia/quota",
            [json!({"period": "day", "problems": 1}), json!({"period": "month", "problems": 2})],
        ),
    ];
    for (method, path, read, [first, second]) in cases {
        let tag = client.tag(read).await?;
        let changed = client.change(method, path, &tag, first.clone()).await?.is(200)?;
        let now = client.tag(read).await?;
        ensure!(now != tag && changed.header("etag") == Some(now.as_str()), "{method} {path}: {changed:?} is {now}");
        let refused = client.change(method, path, &tag, second.clone()).await?.is(412)?;
        ensure!(text(&refused.json()?, "detail")?.contains("not of the version"), "{}", refused.text());
        ensure!(client.tag(read).await? == now, "{method} {path}: nothing was changed");
        client.change(method, path, &now, second).await?.is(200)?;
        client.change(method, path, "no tag", first).await?.is(400)?;
    }
    // Only if there is none yet.
    for (path, body) in
        [("/api/v1/job-types/new", json!({"controller": "echo"})), ("/api/v1/resources/new", json!({"tokens": 1}))]
    {
        for status in [if path.contains("types") { 201 } else { 200 }, 412] {
            let headers = [("content-type", "application/json"), ("if-none-match", "*")];
            client.send("PUT", path, &headers, Some(body.to_string().into())).await?.is(status)?;
        }
        let tag = client.tag(path).await?;
        client.send("DELETE", path, &[("if-match", "\"0123\"")], None).await?.is(412)?;
        client.send("DELETE", path, &[("if-match", &tag)], None).await?.is(204)?;
    }
    let tag = client.tag(&profile).await?;
    client.change("PATCH", &profile, "*", json!({"priority": 9})).await?.is(200)?;
    client.send("DELETE", &profile, &[("if-match", &tag)], None).await?.is(412)?;
    client.send("DELETE", &profile, &[], None).await?.is(204)?;
    // Two at the same time with the same version: one of them.
    let tag = client.tag("/api/v1/job-types/echo").await?;
    let change = |n: i32| client.change("PATCH", "/api/v1/job-types/echo", &tag, json!({"max_attempts": n}));
    let (one, two) = tokio::join!(change(20), change(21));
    let mut statuses = [one?.status, two?.status];
    statuses.sort_unstable();
    ensure!(statuses == [200, 412], "{statuses:?}");
    // Accounts come last: with them whoever shows nothing may do nothing.
    let root = json!({"user": "root", "role": "administrator", "password": PASSWORD});
    client.json("POST", "/api/v1/accounts", root).await?.is(201)?;
    let root = client.login("root").await?;
    let ana = json!({"user": "ana", "password": PASSWORD});
    root.json("POST", "/api/v1/accounts", ana).await?.is(201)?;
    let tag = root.tag("/api/v1/accounts/ana").await?;
    root.change("PATCH", "/api/v1/accounts/ana", &tag, json!({"role": "operator"})).await?.is(200)?;
    root.change("PATCH", "/api/v1/accounts/ana", &tag, json!({"disabled": true})).await?.is(412)?;
    ensure!(root.get("/api/v1/accounts/ana").await?.is(200)?.json()?["disabled_at"].is_null());
    root.get("/api/v1/accounts/nobody").await?.is(404)?;
    Ok(())
}

/// Job types are everybody's to see and an administrator's to set; whose rights their SQL has, an operator's to see. A quota
/// is its user's own to see.
#[tokio::test(flavor = "multi_thread")]
async fn roles_hold_for_job_types_and_quotas() -> Test {
    let farm = Farm::start().await?;
    let nobody = Client::of(&farm);
    farm.sql
        .batch_execute(
            "do $$ begin create role pcfarm_rest_reader login; exception when duplicate_object or unique_violation then null; end $$;
             select pcfarm.create_job_type('told', 'echo', '{\"read_role\": \"pcfarm_rest_reader\"}');
             select pcfarm.set_related_read('told', 'prices', 'select null::text as key, 42 as price')",
        )
        .await?;
    let account = |user: &str, role: &str| json!({"user": user, "role": role, "password": PASSWORD});
    nobody.json("POST", "/api/v1/accounts", account("root", "administrator")).await?.is(201)?;
    let root = nobody.login("root").await?;
    for (user, role) in [("ana", "user"), ("mia", "user"), ("olga", "operator")] {
        root.json("POST", "/api/v1/accounts", account(user, role)).await?.is(201)?;
    }
    let (ana, mia, olga) = (nobody.login("ana").await?, nobody.login("mia").await?, nobody.login("olga").await?);
    let told = "/api/v1/job-types/told";
    nobody.get(told).await?.is(401)?;
    let seen = ana.get(told).await?.is(200)?.json()?;
    ensure!(seen["read_role"].is_null() && seen["reads"] == json!([]) && seen["controller"] == "echo", "{seen}");
    for client in [&olga, &root] {
        let seen = client.get(told).await?.is(200)?.json()?;
        ensure!(seen["read_role"] == "pcfarm_rest_reader" && seen["reads"][0]["name"] == "prices", "{seen}");
    }
    for client in [&ana, &olga] {
        client.json("PUT", told, json!({"controller": "sleep"})).await?.is(403)?;
        client.change("PATCH", told, "*", json!({"controller": "sleep"})).await?.is(403)?;
        client.send("DELETE", told, &[], None).await?.is(403)?;
        client.json("PUT", "/api/v1/users/ana/quota", json!({"period": "day"})).await?.is(403)?;
    }
    // An administrator defines it anew, and its rights stay.
    let anew = root.json("PUT", told, json!({"controller": "sleep"})).await?.is(200)?.json()?;
    ensure!(anew["controller"] == "sleep" && anew["read_role"] == "pcfarm_rest_reader", "{anew}");
    ensure!(anew["reads"].as_array().is_some_and(|reads| reads.len() == 1), "{anew}");
    root.json("PUT", "/api/v1/users/ana/quota", json!({"period": "day", "problems": 5})).await?.is(200)?;
    for (client, status) in [(&ana, 200), (&olga, 200), (&mia, 404)] {
        let quota = client.get("/api/v1/users/ana/quota").await?.is(status)?;
        ensure!(status != 200 || quota.json()?["items"][0]["problems"] == 5, "{}", quota.text());
    }
    ensure!(mia.get("/api/v1/users/mia/quota").await?.is(200)?.json()?["items"] == json!([]));
    // Who set it can be asked for.
    let events = root.get("/api/v1/events?what=quota").await?.is(200)?.json()?;
    ensure!(events["items"][0]["who"] == "root" && events["items"][0]["subject"] == "ana", "{events}");
    ensure!(!mia.get("/api/v1/events?what=quota").await?.is(200)?.text().contains("ana"));
    Ok(())
}
