//! Every route of REST, as its document has them: each is described, and no user sees or touches what is another's.

use std::time::{Duration, Instant};

use crate::real::Farm;
use crate::real::http::{Client, PASSWORD, text};
use anyhow::{Context, Result, ensure};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn the_document_describes_every_route() -> Result<()> {
    let farm = Farm::start().await?;
    let client = Client::of(&farm);
    let document = client.get("/api/v1/openapi.json").await?.is(200)?.json()?;
    let paths = document["paths"].as_object().context("paths")?;
    ensure!(paths.len() > 40, "{} paths", paths.len());
    for (path, item) in paths {
        let address = numbered(path);
        for (method, operation) in item.as_object().context("an item")? {
            if path.ends_with("/stream") {
                continue; // it does not end
            }
            let media =
                operation["requestBody"]["content"].as_object().and_then(|content| content.keys().next().cloned());
            let (method, media) = (method.to_ascii_uppercase(), media.unwrap_or_default());
            let body = (method != "GET").then(|| b"{}".to_vec());
            let headers = [("content-type", media.as_str())];
            let headers = if media.is_empty() || media == "*/*" { &[][..] } else { &headers[..] };
            let answer = client.send(&method, &address, headers, body).await?;
            let status = answer.status.to_string();
            let known = operation["responses"].as_object().context("responses")?;
            ensure!(known.contains_key(&status), "{method} {path}: {status} is not documented: {}", answer.text());
            ensure!(answer.status < 500 && answer.status != 405, "{method} {path}: {}", answer.text());
        }
    }
    let whole = document.to_string();
    for name in whole.split("#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()) {
        ensure!(document["components"]["schemas"][name].is_object(), "{name} is not described");
    }
    let page = client.get("/api/docs/").await?.is(200)?;
    ensure!(page.header("content-security-policy").is_some_and(|policy| policy.contains("default-src 'none'")));
    ensure!(!page.text().contains("https://"), "it needs no network: {}", page.text());
    client.get("/api/docs/swagger-ui-bundle.js").await?.is(200)?;
    Ok(())
}

/// Every operation of the document: method, path, and what its body is.
async fn operations(client: &Client) -> Result<Vec<(String, String, Option<String>)>> {
    let document = client.get("/api/v1/openapi.json").await?.is(200)?.json()?;
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().context("paths")? {
        for (method, operation) in item.as_object().context("an item")? {
            let content = operation["requestBody"]["content"].as_object();
            let media = content.and_then(|content| content.keys().next().cloned());
            all.push((method.to_ascii_uppercase(), path.clone(), media));
        }
    }
    Ok(all)
}

/// With 1 for each id that is left.
fn numbered(path: &str) -> String {
    let parts = path.split('/').map(|part| if part.starts_with('{') { "1" } else { part });
    parts.collect::<Vec<_>>().join("/")
}

const SECRET: &str = "nobody-elses-business";

/// One thing of each kind, by the names that routes have for it.
struct Anas(Vec<(&'static str, String)>);

impl Anas {
    async fn made_by(ana: &Client) -> Result<Anas> {
        let problems = json!([{"key": SECRET, "payload": SECRET}]);
        let job =
            json!({"name": SECRET, "job_type": "echo", "title": SECRET, "problems": problems, "info": {"x": SECRET}});
        let job = text(&ana.json("POST", "/api/v1/jobs", job).await?.is(201)?.json()?, "job_id")?;
        let path = format!("/api/v1/submissions?name={SECRET}&job_type=echo&key={SECRET}");
        let submission = text(&ana.post(&path, "application/xml", SECRET).await?.is(201)?.json()?, "submission_id")?;
        let told = json!({"events": ["ended"], "notify": "anas_channel", "job_id": job});
        let told = ana.json("POST", "/api/v1/subscriptions", told).await?.is(201)?.json()?;
        let subscription = text(&told["subscription"], "subscription_id")?;
        let standing = json!({"name": SECRET, "job_type": "echo", "standing": true, "open": true});
        let standing = text(&ana.json("POST", "/api/v1/jobs", standing).await?.is(201)?.json()?, "job_id")?;
        let schedule = json!({"name": SECRET, "recurrence": "every 7 days", "job_id": standing, "payload": SECRET});
        let schedule = text(&ana.json("POST", "/api/v1/schedules", schedule).await?.is(201)?.json()?, "schedule_id")?;
        let file = text(&ana.post("/api/v1/files", "text/plain", SECRET).await?.is(201)?.json()?, "sha256")?;
        Ok(Anas(vec![
            ("{job_id}", job),
            ("{submission_id}", submission),
            ("{subscription_id}", subscription),
            ("{schedule_id}", schedule),
            ("{sha256}", file),
        ]))
    }

    fn of(&self, name: &str) -> &str {
        self.0.iter().find(|(of, _)| *of == name).map_or("", |(_, id)| id)
    }

    /// The route's address, with what is hers where there is something; and whether there is.
    fn address(&self, path: &str) -> (String, bool) {
        let named = self.0.iter().fold(path.to_owned(), |path, (name, id)| path.replace(name, id));
        let is_anas = named != path;
        let named = named
            .replace("{name}", "ana")
            .replace("{hostname}", "pc1")
            .replace("{job_type}", "echo")
            .replace("{identity}", "11111111-1111-4111-8111-111111111111");
        (numbered(&named), is_anas)
    }

    /// Nobody gets through any route to what is hers: not without a token, and not as another user.
    async fn are_seen_by_neither(&self, nobody: &Client, mia: &Client) -> Result<()> {
        for (method, path, media) in operations(nobody).await? {
            if path.ends_with("/stream") {
                continue; // it does not end
            }
            let (address, is_anas) = self.address(&path);
            let headers = [("content-type", media.as_deref().unwrap_or("application/json")), ("if-match", "*")];
            let body = (method != "GET").then(|| br#"{"title": "mine now"}"#.to_vec());
            let opens = matches!(path.as_str(), "/api/v1/login" | "/api/v1/register" | "/api/v1/whoami");
            let refused = nobody.send(&method, &address, &headers, body.clone()).await?;
            ensure!(
                opens || refused.status == 401,
                "{method} {path} without a token: {} {}",
                refused.status,
                refused.text()
            );
            let answer = mia.send(&method, &address, &headers, body).await?;
            let told = format!("{method} {path}: {} {}", answer.status, answer.text());
            ensure!(answer.status < 500 && !answer.text().contains(SECRET), "{told}");
            ensure!(!is_anas || (400..500).contains(&answer.status), "{told}");
        }
        Ok(())
    }

    /// Nor by what names them elsewhere.
    async fn are_named_by_nobody_else(&self, mia: &Client) -> Result<()> {
        let job = self.of("{job_id}");
        for path in [
            format!("/api/v1/events?job_id={job}"),
            format!("/api/v1/alerts?job_id={job}"),
            "/api/v1/usage?owner=ana".to_owned(),
        ] {
            let found = mia.get(&path).await?;
            ensure!(found.status >= 400 || found.json()?["items"] == json!([]), "{path}: {}", found.text());
        }
        let into = mia.post(&format!("/api/v1/submissions?job_id={job}"), "text/csv", "key\na\n").await?;
        ensure!((400..500).contains(&into.status), "{into:?}");
        let stolen = json!({"name": "x", "recurrence": "every 7 days", "job_id": job});
        ensure!((400..500).contains(&mia.json("POST", "/api/v1/schedules", stolen).await?.status));
        let after = json!({"name": "x", "job_type": "echo", "after": [job]});
        ensure!((400..500).contains(&mia.json("POST", "/api/v1/jobs", after).await?.status));
        Ok(())
    }
}

/// Two users, and every route: what is the other's is not there, whoever asks how.
#[tokio::test(flavor = "multi_thread")]
async fn two_users_see_and_touch_nothing_of_each_other() -> Result<()> {
    let farm = Farm::start().await?;
    let nobody = Client::of(&farm);
    let account = |user: &str, role: &str| json!({"user": user, "role": role, "password": PASSWORD});
    nobody.json("POST", "/api/v1/accounts", account("root", "administrator")).await?.is(201)?;
    // From here on whoever shows nothing may do nothing.
    nobody.get("/api/v1/jobs").await?.is(401)?;
    let root = nobody.login("root").await?;
    for (user, role) in [("ana", "user"), ("mia", "user"), ("olga", "operator")] {
        root.json("POST", "/api/v1/accounts", account(user, role)).await?.is(201)?;
    }
    let (ana, mia, olga) = (nobody.login("ana").await?, nobody.login("mia").await?, nobody.login("olga").await?);
    let anas = Anas::made_by(&ana).await?;
    let job = format!("/api/v1/jobs/{}", anas.of("{job_id}"));
    farm.until("select count(*) from pcfarm.submission where state = 'queued'", 1).await?;
    let before = ana.get(&job).await?.is(200)?.json()?;
    ensure!(before["owner"] == "ana" && before["title"] == SECRET, "{before}");
    ensure!(ana.get("/api/v1/submissions").await?.is(200)?.text().contains(anas.of("{submission_id}")));

    anas.are_seen_by_neither(&nobody, &mia).await?;
    anas.are_named_by_nobody_else(&mia).await?;
    // SQL in a template is for those who may run it.
    let query = json!({"job_type": "echo", "loads": [{"query": "select 1"}]});
    let query = json!({"name": "x", "recurrence": "every 7 days", "template": query});
    mia.json("POST", "/api/v1/schedules", query).await?.is(403)?;
    // A key is its user's.
    for client in [&ana, &mia] {
        let headers = [("content-type", "application/json"), ("idempotency-key", "the-same")];
        let body = json!({"name": "keyed", "job_type": "echo"}).to_string();
        let made = client.send("POST", "/api/v1/jobs", &headers, Some(body.into())).await?.is(201)?;
        ensure!(made.header("idempotent-replayed").is_none());
    }
    let after = ana.get(&job).await?.is(200)?.json()?;
    ensure!(before == after, "{before}\n{after}");
    ana.get(&format!("/api/v1/submissions/{}/original", anas.of("{submission_id}"))).await?.is(200)?;
    ensure!(ana.get(&format!("/api/v1/files/{}", anas.of("{sha256}"))).await?.is(200)?.text() == SECRET);
    // Operators see all, and are not administrators.
    ensure!(olga.get(&job).await?.is(200)?.json()?["title"] == SECRET);
    olga.json("PATCH", "/api/v1/limits", json!({"concurrency": 1})).await?.is(403)?;
    mia.json("PUT", "/api/v1/queue/suspension", json!({})).await?.is(403)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_token_is_none_within_a_second() -> Result<()> {
    let farm = Farm::start().await?;
    let nobody = Client::of(&farm);
    let root = json!({"user": "root", "role": "administrator", "password": PASSWORD});
    nobody.json("POST", "/api/v1/accounts", root).await?.is(201)?;
    let root = nobody.login("root").await?;
    let token = json!({"name": "script", "scopes": ["submit"]});
    let token = root.json("POST", "/api/v1/tokens", token).await?.is(201)?.json()?;
    let script = root.with_token(text(&token, "secret")?);
    ensure!(script.get("/api/v1/whoami").await?.is(200)?.json()?["user"] == "root");
    let id = text(&token["token"], "token_id")?;
    root.send("DELETE", &format!("/api/v1/tokens/{id}"), &[], None).await?.is(200)?;
    let deadline = Instant::now() + Duration::from_secs(2);
    while script.get("/api/v1/whoami").await?.status != 401 {
        ensure!(Instant::now() < deadline, "the token still holds");
    }
    Ok(())
}
