//! What is said of a workstation's connection when it is made.

use crate::queue::{Queue, backend, queue};
use pcfarm_proto::ids::ServerId;
use pcfarm_sql::presence::{self, Connection, Introduction, Signs};
use uuid::Uuid;

fn introduction(instance: u128) -> Introduction {
    Introduction {
        identity: Uuid::from_u128(1),
        instance: Uuid::from_u128(instance),
        hostname: "pc".to_owned(),
        cores: 8,
        memory_bytes: 1,
        system: "Linux".to_owned(),
        system_name: "linux".to_owned(),
        arch: "x86_64".to_owned(),
        gpus: vec!["nvidia RTX".to_owned()],
        programs: vec!["minizinc 2.8.5".to_owned()],
        agent_version: "0".to_owned(),
        labels: vec!["gpu".to_owned()],
        controllers: vec!["c".to_owned()],
        state: "waiting",
        signs: Signs {
            idle_source: "evdev".to_owned(),
            power: "mains".to_owned(),
            yields: None,
            settings: None,
            notes: Vec::new(),
        },
        waking: None,
        machine: None,
        machines_before: Vec::new(),
    }
}

async fn connect_all(client: &deadpool_postgres::ClientWrapper, all: &[Introduction], server: i64) -> Vec<Connection> {
    let all: Vec<&Introduction> = all.iter().collect();
    let connected = presence::connect(client, &all, ServerId(server)).await.expect("connected");
    connected.into_iter().map(|one| one.expect("accepted")).collect()
}

async fn connect(queue: &Queue, instance: u128) -> Connection {
    connect_one(&*queue.server().await, instance).await
}

async fn connect_one(client: &deadpool_postgres::ClientWrapper, instance: u128) -> Connection {
    presence::connect(client, &[&introduction(instance)], ServerId(1))
        .await
        .expect("connected")
        .remove(0)
        .expect("accepted")
}

/// The connections of all workstations end, as they do when agents crash.
async fn lose_connections(queue: &Queue) {
    queue.run("update pcfarm.workstation set silent_since = clock_timestamp(), disconnected = true").await;
}

#[tokio::test]
async fn a_connection_is_told_who_spoke_before() {
    let queue = queue().await;
    let mut session = 0;
    for (case, instance, dead, same_instance) in [
        ("fresh", 10, false, false),
        ("the same again", 10, false, true),
        ("another", 20, false, false),
        ("the same after it was declared dead", 20, true, true),
        ("and again", 20, false, true),
        ("another after it was declared dead", 30, true, false),
    ] {
        if dead {
            queue.run("update pcfarm.workstation set state = 'dead'").await;
        }
        lose_connections(&queue).await;
        let connected = connect(&queue, instance).await;
        assert_eq!((connected.same_instance, connected.was_dead), (same_instance, dead), "{case}");
        assert!(connected.session > session, "{case}");
        session = connected.session;
    }
    let rows = "select count(*) from pcfarm.workstation where hostname = 'pc' and state = 'waiting'";
    assert_eq!(queue.number(rows).await, 1);
}

#[tokio::test]
async fn of_two_connections_at_once_the_later_one_has_the_newer_session() {
    let queue = queue().await;
    connect(&queue, 10).await;
    lose_connections(&queue).await;
    let (one, two) = (queue.server().await, queue.server().await);
    let waits = backend(&two).await;
    one.batch_execute("begin; select from pcfarm.workstation where hostname = 'pc' for update").await.expect("begun");
    let (second, first) = tokio::join!(connect_one(&two, 20), async {
        queue.until_blocked(waits).await;
        let first = connect_one(&one, 20).await;
        one.batch_execute("commit").await.expect("committed");
        first
    });
    assert!(!first.same_instance && second.same_instance, "{first:?} {second:?}");
    assert!(second.session > first.session, "{first:?} {second:?}");
}

#[tokio::test]
async fn many_are_registered_at_once_each_as_if_alone() {
    let queue = queue().await;
    let client = queue.server().await;
    let who = |identity: u128, instance: u128, controllers: &[&str]| Introduction {
        identity: Uuid::from_u128(identity),
        hostname: format!("pc-{identity}"),
        controllers: controllers.iter().map(|&c| c.to_owned()).collect(),
        ..introduction(instance)
    };
    let first = [who(3, 1, &["b", "a"]), who(1, 1, &[]), who(2, 1, &["c"])];
    let before = connect_all(&client, &first, 1).await;
    assert!(before.iter().all(|c| !c.same_instance && !c.was_dead && !c.drain));
    queue.run("update pcfarm.workstation set state = 'dead' where hostname = 'pc-1'").await;
    queue.run("update pcfarm.workstation set drain = true, state = 'draining' where hostname = 'pc-2'").await;
    lose_connections(&queue).await;
    let second = [who(1, 1, &["x"]), who(4, 1, &["y", "z"]), who(2, 2, &[]), who(3, 1, &["a"])];
    let after = connect_all(&client, &second, 2).await;
    let told: Vec<_> = after.iter().map(|c| (c.same_instance, c.was_dead, c.drain)).collect();
    assert_eq!(told, [(true, true, false), (false, false, false), (false, false, true), (true, false, false)]);
    assert_eq!(after[3].workstation_id, before[0].workstation_id);
    assert_eq!(after[0].workstation_id, before[1].workstation_id);
    let newest = before.iter().map(|c| c.session).max();
    assert!(after.iter().all(|c| Some(c.session) > newest));
    let rows =
        "select string_agg(concat_ws(' ', hostname, state, server_id, controllers::text), ', ' order by hostname)
        from pcfarm.workstation where hostname like 'pc-%'";
    let expected = "pc-1 waiting 2 {x}, pc-2 draining 2 {}, pc-3 waiting 2 {a}, pc-4 waiting 2 {y,z}";
    assert_eq!(queue.text(rows).await, expected);
}
