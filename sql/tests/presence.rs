//! What is said of a workstation's connection when it is made.
#![cfg(feature = "testing")]

mod queue;

use pcfarm_proto::ids::ServerId;
use pcfarm_sql::presence::{self, Connection, Introduction};
use queue::{Queue, backend, queue};
use uuid::Uuid;

fn introduction(instance: u128) -> Introduction {
    Introduction {
        identity: Uuid::from_u128(1),
        instance: Uuid::from_u128(instance),
        hostname: "pc".to_owned(),
        cores: 8,
        memory_bytes: 1,
        system: "Linux".to_owned(),
        agent_version: "0".to_owned(),
        controllers: vec!["c".to_owned()],
        state: "waiting",
    }
}

async fn connect(queue: &Queue, instance: u128) -> Connection {
    let connected = presence::connect(&*queue.server().await, &introduction(instance), ServerId(1)).await;
    connected.expect("connected")
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
    let (one, two) = (queue.server().await, queue.server().await);
    let waits = backend(&two).await;
    one.batch_execute("begin; select from pcfarm.workstation where hostname = 'pc' for update").await.expect("begun");
    let who = introduction(20);
    let (second, first) = tokio::join!(presence::connect(&two, &who, ServerId(1)), async {
        queue.until_blocked(waits).await;
        let first = presence::connect(&one, &who, ServerId(1)).await.expect("connected");
        one.batch_execute("commit").await.expect("committed");
        first
    });
    let second = second.expect("connected");
    assert!(!first.same_instance && second.same_instance, "{first:?} {second:?}");
    assert!(second.session > first.session, "{first:?} {second:?}");
}
