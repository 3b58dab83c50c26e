//! Requirements, live: servers, agents and what they report.

use pcfarm_bench::farm::{Farm, LONG, SOON, Server, sleeps};
use pcfarm_bench::program::Program;
use pcfarm_proto::ids::JobId;
use pcfarm_proto::v1;
use pcfarm_server::dispatch::requirement::{Facts, Requirements};
use pcfarm_sql::json::RawJson;
use serde_json::json;
use std::collections::HashMap;

async fn submit(farm: &Farm, require: &str) -> JobId {
    let text = format!(
        "select pcfarm.submit('j', 'picky', '{}', 1, '{{\"require\": {require}}}')",
        sleeps(40, 2).replace('\'', "''")
    );
    farm.query(&text, &[]).await[0].get(0)
}

/// An agent of that host name that runs, with its owner's labels.
fn labelled(farm: &Farm, name: &str, labels: &str, server: &Server) -> Program {
    let mut agent = farm.agent(name, &[server]).environment("PCFARM_LABELS", labels);
    agent.start();
    agent
}

async fn hosts(farm: &Farm, job: JobId) -> Vec<String> {
    let text = "select distinct w.hostname from pcfarm.checkout c join pcfarm.workstation w using (workstation_id)
        where c.job_id = $1 order by 1";
    farm.query(text, &[&job]).await.iter().map(|row| row.get(0)).collect()
}

async fn reasons(farm: &Farm, job: JobId) -> String {
    let text = "select coalesce((select array_to_string(reasons, '; ') from pcfarm.job_without_workstation where job_id = $1), '')";
    farm.query(text, &[&job]).await[0].get(0)
}

/// Of three agents one has the label, over two servers; jobs without requirements go to all of them.
#[tokio::test]
async fn a_job_goes_to_the_agent_that_has_what_it_requires() {
    let farm = Farm::new().await;
    farm.job_type("picky", "digest", json!({"require": ["cores >= 1", "system = linux"]})).await;
    let (one, two) = (farm.serving("one", &[]).await, farm.serving("two", &[]).await);
    let mut agents = Vec::new();
    for (name, labels, server) in [("plain", "room=1", &one), ("able", "room=2,fast", &two), ("slow", "room=2", &two)] {
        agents.push(labelled(&farm, name, labels, server));
    }
    farm.until(SOON, "select count(*) = 3 from pcfarm.workstation where state = 'waiting'").await;
    let reported =
        "select count(*) from pcfarm.workstation_facts where memory_bytes > 0 and system_name = 'linux' and arch <> ''";
    assert_eq!(farm.number(reported).await, 3);
    let picky = submit(&farm, r#"["label = fast", "label != room=1"]"#).await;
    assert_eq!(farm.ended(picky, LONG).await, "done");
    assert_eq!(hosts(&farm, picky).await, ["able"]);

    // An administrator's label counts at once, and no longer when it is taken away: then the job waits, and says so.
    farm.run(r#"select pcfarm.set_selection('{slow}', '{"labels": ["lent"]}')"#).await;
    let lent = submit(&farm, r#"["label = lent"]"#).await;
    assert_eq!(farm.ended(lent, LONG).await, "done");
    assert_eq!(hosts(&farm, lent).await, ["slow"]);
    farm.run(r#"select pcfarm.set_selection('{slow}', '{"labels": null}')"#).await;
    let waits = submit(&farm, r#"["label = lent"]"#).await;
    assert_eq!(reasons(&farm, waits).await, "no workstation has label = lent: there is fast, room=1, room=2");
    // Others overtake it.
    let other = submit(&farm, "[]").await;
    assert_eq!(farm.ended(other, LONG).await, "done");
    assert!(hosts(&farm, waits).await.is_empty());
    // With another requirement it runs.
    farm.run(&format!(r#"select pcfarm.update_job({waits}, '', '{{"require": ["label = room=1"]}}')"#)).await;
    assert_eq!(farm.ended(waits, LONG).await, "done");
    assert_eq!(hosts(&farm, waits).await, ["plain"]);
    farm.check(&[]).await;
}

/// An agent that comes back with another label is another one to requirements, to whichever server it comes.
#[tokio::test]
async fn a_job_that_nobody_can_run_says_so_and_runs_when_somebody_comes_who_can() {
    let farm = Farm::new().await;
    farm.job_type("picky", "digest", json!({})).await;
    let early = submit(&farm, r#"["label = fast"]"#).await;
    let expected = "the farm knows no workstation yet: start an agent that runs controller digest";
    assert_eq!(reasons(&farm, early).await, expected);
    let (one, two) = (farm.serving("one", &[]).await, farm.serving("two", &[]).await);
    let mut agent = labelled(&farm, "pc", "old", &one);
    farm.until(SOON, "select count(*) = 1 from pcfarm.workstation where state = 'waiting'").await;
    assert_eq!(reasons(&farm, early).await, "no workstation has label = fast: there is old");
    let told =
        format!("select count(*) = 1 from pcfarm.event where what = 'job without workstation' and job_id = {early}");
    farm.until(LONG, &told).await;
    let old = submit(&farm, r#"["label = old"]"#).await;
    assert_eq!(farm.ended(old, LONG).await, "done");
    assert!(hosts(&farm, early).await.is_empty());
    agent.kill();
    let _agent = labelled(&farm, "pc", "fast", &two);
    assert_eq!(farm.ended(early, LONG).await, "done");
    assert_eq!(reasons(&farm, early).await, "");
    // It was told once; and the label that is gone is gone.
    assert_eq!(farm.number(&told.replace("= 1 from", "from")).await, 1);
    let old = submit(&farm, r#"["label = old"]"#).await;
    assert_eq!(reasons(&farm, old).await, "no workstation has label = old: there is fast");
    farm.check(&[]).await;
}

/// What the database says of all workstations, to those who ask why a job waits, and what a server decides for one are the same.
#[tokio::test]
async fn servers_and_the_database_judge_alike() {
    let farm = Farm::new().await;
    let server = farm.serving("one", &[]).await;
    let program = |name: &str, version: &str| v1::Program { name: name.to_owned(), version: version.to_owned() };
    let gpu = |vendor: &str| v1::Gpu { vendor: vendor.to_owned(), name: "of some name".to_owned() };
    let bare = v1::Hello { cores: 1, ..v1::Hello::default() };
    let hellos = [
        bare.clone(),
        v1::Hello {
            cores: 8,
            memory_bytes: 8 << 30,
            system_name: "linux".to_owned(),
            arch: "x86_64".to_owned(),
            gpus: vec![gpu("nvidia"), gpu("amd")],
            programs: vec![program("solver", "2.8.5"), program("wasm", "")],
            labels: vec!["lab-a".to_owned(), "disk=ssd".to_owned()],
            ..bare.clone()
        },
        v1::Hello {
            cores: 16,
            memory_bytes: (8 << 30) - 1,
            system_name: "macos".to_owned(),
            arch: "aarch64".to_owned(),
            gpus: vec![gpu("intel")],
            programs: vec![program("solver", "2.10"), program("solver", "")],
            labels: vec!["old".to_owned()],
            ..bare
        },
    ];
    let mut conditions: Vec<String> = [
        "gpu",
        "program = solver >= 2.8",
        "program = solver >= 2.9.0",
        "program = solver >= 2.10.0",
        "program = wasm >= 0",
    ]
    .map(str::to_owned)
    .into();
    for (fact, values) in [("cores", ["1", "8", "9"]), ("memory", ["8 GiB", "0 B", "8 GB"]), ("gpus", ["0", "1", "2"])]
    {
        let all =
            values.iter().flat_map(|value| ["=", "!=", "<", "<=", ">", ">="].map(|is| format!("{fact} {is} {value}")));
        conditions.extend(all);
    }
    for (fact, values) in [
        ("system", ["linux", "macos"]),
        ("arch", ["x86_64", "arm64"]),
        ("gpu", ["nvidia", "intel"]),
        ("program", ["solver", "wasm"]),
        ("label", ["disk=ssd", "old"]),
    ] {
        conditions.extend(values.iter().flat_map(|value| ["=", "!="].map(|is| format!("{fact} {is} {value}"))));
    }
    let mut herd = Vec::new();
    for (n, hello) in hellos.iter().enumerate() {
        herd.push(introduced(&server, n, hello).await);
    }
    let rows = farm
        .query(
            "select c.given, pcfarm.requirement(to_jsonb(array[c.given]))::text, w.hostname,
                 pcfarm.meets(pcfarm.requirement(to_jsonb(array[c.given])), w)
             from unnest($1::text[]) c(given) cross join pcfarm.workstation_facts w",
            &[&conditions],
        )
        .await;
    assert_eq!(rows.len(), conditions.len() * hellos.len());
    let mut holding = 0;
    for row in rows {
        let (given, kept, hostname, met): (String, String, String, bool) =
            (row.get(0), row.get(1), row.get(2), row.get(3));
        let hello = &hellos[hostname.parse::<usize>().expect("a number")];
        let mut requirements = Requirements::default();
        let id = requirements.note(&RawJson(kept.into()));
        let judged = requirements.met(&Facts::of(hello), &mut HashMap::new()).contains(&id);
        assert_eq!(judged, met, "{given} of {hello:?}");
        holding += usize::from(met);
    }
    assert!(holding > 40, "some hold, some do not: {holding}");
}

/// A workstation's row and its sessions follow what its agent says; nonsense ends the session.
#[tokio::test]
async fn equipment_that_changes_is_recorded_and_checked() {
    let farm = Farm::new().await;
    let server = farm.serving("one", &[]).await;
    let identity = "00000000-0000-0000-0000-000000000001".to_owned();
    let hello = v1::Hello {
        protocol_version: pcfarm_proto::PROTOCOL_VERSION,
        identity: identity.clone(),
        instance: identity,
        hostname: "pc1".to_owned(),
        cores: 1,
        ..v1::Hello::default()
    };
    let mut client =
        v1::agent_service_client::AgentServiceClient::connect(server.url()).await.expect("the server listens");
    let (say, said) = tokio::sync::mpsc::channel(4);
    let send = async |message| {
        say.send(v1::AgentMessage { message: Some(message) }).await.expect("the server reads");
    };
    send(v1::agent_message::Message::Hello(hello)).await;
    let stream = tokio_stream::wrappers::ReceiverStream::new(said);
    let mut answers = client.work(stream).await.expect("it is let in").into_inner();
    let welcome = answers.message().await.expect("it is let in").expect("welcome").message;
    let Some(v1::server_message::Message::Welcome(welcome)) = welcome else { panic!("{welcome:?}") };
    assert!(welcome.takes_equipment);
    let gpu = |vendor: &str| v1::Gpu { vendor: vendor.to_owned(), name: "A100".to_owned() };
    let programs = vec![v1::Program { name: "minizinc".to_owned(), version: "2.8.5".to_owned() }];
    let equipment = v1::Equipment { gpus: vec![gpu("nvidia")], programs };
    send(v1::agent_message::Message::Equipment(equipment)).await;
    let kept = "select gpus = '{nvidia A100}' and programs = '{minizinc 2.8.5}' from pcfarm.workstation";
    farm.until(SOON, kept).await;
    let wrong = v1::Equipment { gpus: vec![gpu("two words")], programs: Vec::new() };
    send(v1::agent_message::Message::Equipment(wrong)).await;
    let ended = loop {
        match answers.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it ends without a reason"),
            Err(status) => break status,
        }
    };
    assert_eq!(ended.code(), tonic::Code::InvalidArgument, "{ended}");
}

/// What an agent was started with may have been a label once.
#[tokio::test]
async fn an_agent_with_wrong_labels_is_welcome_without_them() {
    let farm = Farm::new().await;
    let server = farm.serving("one", &[]).await;
    let labels = ["lab-a", "two words", "room=", "disk=ssd", "with\0nul"].map(str::to_owned).into();
    let hello = v1::Hello { cores: 1, labels, ..v1::Hello::default() };
    let _agent = introduced(&server, 0, &hello).await;
    let kept: Vec<String> = farm.query("select labels from pcfarm.workstation", &[]).await[0].get(0);
    assert_eq!(kept, ["lab-a", "disk=ssd"]);
}

/// A connection that says this of its workstation, whose host name is a number.
async fn introduced(server: &Server, number: usize, hello: &v1::Hello) -> impl Sized {
    let identity = format!("00000000-0000-0000-0000-00000000000{number}");
    let hello = v1::Hello {
        protocol_version: pcfarm_proto::PROTOCOL_VERSION,
        identity: identity.clone(),
        instance: identity,
        hostname: number.to_string(),
        ..hello.clone()
    };
    let mut client =
        v1::agent_service_client::AgentServiceClient::connect(server.url()).await.expect("the server listens");
    let message = v1::AgentMessage { message: Some(v1::agent_message::Message::Hello(hello)) };
    let said = tokio_stream::StreamExt::chain(tokio_stream::once(message), tokio_stream::pending());
    let mut answers = client.work(said).await.expect("it is let in").into_inner();
    let welcome = answers.message().await.expect("it is let in").expect("welcome");
    (client, welcome, answers)
}
