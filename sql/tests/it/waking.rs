//! Waking workstations: who is woken, by whom, how often, and what is said of it.

use std::collections::BTreeSet;

use crate::queue::{Queue, queue};
use pcfarm_proto::ids::WorkstationId;
use pcfarm_sql::fleet;

/// All three workstations sleep; the owners of the first two let them be woken.
async fn sleeping() -> Queue {
    let queue = queue().await;
    queue
        .run("update pcfarm.workstation set state = 'dead', reason = 'not heard of';
            update pcfarm.workstation set wake_card = '52:54:00:00:00:0' || workstation_id, wake_broadcast = '192.0.2.255'
            where workstation_id <= 2")
        .await;
    queue
}

async fn claimed(queue: &Queue) -> Vec<(i64, String, i32)> {
    let claimed = fleet::claim_wakes(&*queue.server().await).await.expect("claimed");
    claimed.into_iter().map(|wake| (wake.workstation_id.0, wake.address, wake.attempt)).collect()
}

/// What is on record of waking, in order.
async fn told(queue: &Queue) -> String {
    queue
        .text(
            "select string_agg(what || ' ' || subject || ' by ' || (details ->> 'by'), '; ' order by event_id)
            from pcfarm.event where what ~ 'wake|woken'",
        )
        .await
}

async fn wake(queue: &Queue, ids: &[i64]) -> Result<(), String> {
    let ids: Vec<WorkstationId> = ids.iter().map(|id| WorkstationId(*id)).collect();
    let said = fleet::wake(&*queue.server().await, &ids).await;
    said.map_err(|error| error.as_db_error().expect("said").message().to_owned())
}

#[tokio::test]
async fn each_try_is_one_servers_and_there_are_so_many() {
    let queue = sleeping().await;
    assert_eq!(claimed(&queue).await, []);
    assert_eq!(wake(&queue, &[1, 2]).await, Ok(()));
    // Somebody else wants the same.
    assert_eq!(wake(&queue, &[2]).await, Ok(()));
    let (one, two) = tokio::join!(claimed(&queue), claimed(&queue));
    let all: BTreeSet<_> = one.iter().chain(&two).cloned().collect();
    let expected = [1, 2].map(|id| (id, "192.0.2.255".to_owned(), 1));
    assert_eq!((one.len() + two.len(), all), (2, BTreeSet::from(expected)));
    assert_eq!(claimed(&queue).await, [], "it is given some time");
    for attempt in 2..=10 {
        queue.run("update pcfarm.wake set next_try_at = now()").await;
        assert_eq!(claimed(&queue).await.iter().map(|wake| wake.2).collect::<Vec<_>>(), [attempt, attempt]);
    }
    // One comes back, the other does not.
    queue.run("update pcfarm.workstation set state = 'waiting' where workstation_id = 1").await;
    assert_eq!(claimed(&queue).await, []);
    queue.run("update pcfarm.wake set next_try_at = now()").await;
    assert_eq!(claimed(&queue).await, []);
    assert_eq!(queue.number("select count(*) from pcfarm.wake").await, 0);
    let by = "by an administrator";
    let expected = format!(
        "workstation wake pc1 {by}; workstation wake pc2 {by}; workstation woken pc1 {by}; workstation not woken pc2 {by}"
    );
    assert_eq!(told(&queue).await, expected);
}

#[tokio::test]
async fn only_those_that_sleep_are_woken_and_only_if_their_owners_allow_it() {
    let queue = sleeping().await;
    let refused = wake(&queue, &[1, 3]).await.expect_err("one has not said how");
    assert!(refused.starts_with("pc3 cannot be woken"), "{refused}");
    assert_eq!(wake(&queue, &[1, 77]).await, Err("there is no workstation 77".to_owned()));
    assert_eq!(queue.number("select count(*) from pcfarm.wake").await, 0, "all or none");
    queue.run("update pcfarm.workstation set state = 'waiting' where workstation_id = 1").await;
    assert_eq!(wake(&queue, &[1]).await, Ok(()), "there is nothing to do");
    assert_eq!(claimed(&queue).await, []);
    // One that has said that it sleeps need not have been missed yet; and where to send is an administrator's to say.
    queue.run("update pcfarm.workstation set asleep = true where workstation_id = 1").await;
    queue.run(r#"select pcfarm.set_presence('{pc1}', '{"wake_address": "relay.example.org:7"}')"#).await;
    assert_eq!(wake(&queue, &[1]).await, Ok(()));
    assert_eq!(claimed(&queue).await, [(1, "relay.example.org:7".to_owned(), 1)]);
    // Its owner has changed his mind.
    queue.run("update pcfarm.workstation set wake_card = null; update pcfarm.wake set next_try_at = now()").await;
    assert_eq!(claimed(&queue).await, []);
}

#[tokio::test]
async fn who_has_work_at_night_is_woken_once() {
    let queue = sleeping().await;
    let look = || async { fleet::wake_for_work(&*queue.server().await).await.expect("looked") };
    queue.job(1, 1).await;
    assert_eq!(look().await, 0, "nobody wants that");
    queue.run(r#"select pcfarm.set_presence('{pc1,pc2,pc3}', '{"wake_hours": ["mon-sun"]}')"#).await;
    queue.run("select pcfarm.suspend_job_type('t', 'licences')").await;
    assert_eq!(look().await, 0, "that does not run now");
    queue.run("select pcfarm.resume_job_type('t')").await;
    assert_eq!(look().await, 1, "for one convoy one is enough");
    assert_eq!(look().await, 1, "for others that could take it, too, it is another look");
    assert_eq!(look().await, 0, "each once an hour");
    assert_eq!(claimed(&queue).await.len(), 2);
    queue.run("delete from pcfarm.wake; update pcfarm.workstation set woken_at = woken_at - interval '2 hours'").await;
    queue.run(r#"select pcfarm.set_presence('{pc1}', '{"wake_hours": null}')"#).await;
    queue.run("update pcfarm.workstation set controllers = '{other}' where workstation_id = 2").await;
    assert_eq!(look().await, 0, "one is not to be woken then, and the other could not run it");
}

/// Minutes of a week that a window covers, counted from Monday, by the day on which it begins.
fn covered(days: std::ops::RangeInclusive<usize>, from: usize, minutes: usize) -> BTreeSet<usize> {
    days.flat_map(|day| (0..minutes).map(move |minute| (day * 1440 + from + minute) % 10_080)).collect()
}

/// The agents' rule, minute by minute: a range beyond midnight belongs to the day on which it begins, and hours follow the clock on the
/// wall through its changes.
async fn every_minute_of_a_week(queue: &Queue) {
    let nights = covered(0..=4, 18 * 60, 13 * 60);
    let weekend = covered(5..=6, 0, 1440);
    let all_nights = covered(0..=6, 18 * 60 + 30, 690);
    for (hours, expected) in [
        (r#"["mon-fri 18:00-07:00"]"#, nights.clone()),
        (r#"["mon-fri 18:00-07:00", "sat,sun"]"#, nights.union(&weekend).copied().collect()),
        // As it is documented.
        (r#"["18:30-06:00", "sat,sun"]"#, all_nights.union(&weekend).copied().collect()),
        (r#"["sat 9:00-9:00"]"#, covered(5..=5, 540, 1440)),
        (r#"["sun 22:00-24:00", "0:00-0:00"]"#, covered(0..=6, 0, 1440)),
    ] {
        // In the second week clocks are put forward on Sunday, in the third back.
        for (monday, change) in [("2026-11-23", 0), ("2026-03-23", -60), ("2026-10-19", 60)] {
            let rows = queue
                .client
                .query(
                    "select ((extract(isodow from w) - 1) * 1440 + extract(hour from w) * 60 + extract(minute from w))::int4,
                        pcfarm.in_hours($1::text::jsonb, w)
                    from generate_series($2::text::timestamp at time zone 'Europe/Berlin',
                        ($2::text::timestamp + interval '7 days') at time zone 'Europe/Berlin' - interval '1 minute', '1 minute') m
                    cross join lateral (select m at time zone 'Europe/Berlin' as w) l",
                    &[&hours, &monday],
                )
                .await
                .expect("minutes");
            assert_eq!(rows.len() as i64, 10_080 + change, "{monday}");
            for row in rows {
                let (minute, holds): (i32, bool) = (row.get(0), row.get(1));
                assert_eq!(holds, expected.contains(&(minute as usize)), "{hours} at minute {minute} of {monday}");
            }
        }
    }
}

#[tokio::test]
async fn hours_are_those_of_a_week() {
    let queue = queue().await;
    // 23 November 2026 is a Monday.
    for (hours, moment, holds) in [
        ("mon-fri 18:00-07:00", "2026-11-23 18:00", true),
        ("mon-fri 18:00-07:00", "2026-11-23 06:59", false),
        ("mon-fri 18:00-07:00", "2026-11-24 06:59", true),
        ("mon-fri 18:00-07:00", "2026-11-24 07:00", false),
        ("mon-fri 18:00-07:00", "2026-11-28 06:00", true),
        ("mon-fri 18:00-07:00", "2026-11-28 19:00", false),
        ("sat,sun", "2026-11-28 00:00", true),
        ("sat,sun", "2026-11-30 00:00", false),
        ("fri-mon", "2026-11-23 12:00", true),
        ("fri-mon", "2026-11-24 12:00", false),
        ("22:00-24:00", "2026-11-25 23:59", true),
        ("22:00-24:00", "2026-11-25 00:00", false),
        ("Sat 9:30-10:00", "2026-11-28 09:45", true),
    ] {
        let text = format!(
            "select pcfarm.are_hours(h) and pcfarm.in_hours(h, '{moment}') from (select '[\"{hours}\"]'::jsonb h) h"
        );
        let found = queue.text(&format!("select ({text})::text")).await;
        assert_eq!(found, holds.to_string(), "{hours} at {moment}");
    }
    every_minute_of_a_week(&queue).await;
    for wrong in [r#""sat""#, r#"["always"]"#, r#"["25:00-26:00"]"#, "[7]", r#"["mon-fri 18:00"]"#] {
        assert_eq!(queue.text(&format!("select pcfarm.are_hours('{wrong}')::text")).await, "false", "{wrong}");
    }
    let refused = queue.refused(r#"select pcfarm.set_presence('{pc1}', '{"wake_time_zone": "Europe/Nowhere"}')"#).await;
    assert!(refused.1.contains("Europe/Berlin"), "{refused:?}");
    queue.run(r#"select pcfarm.set_presence('{pc1}', '{"wake_time_zone": "Europe/Berlin", "wake_address": "192.0.2.255:9"}')"#).await;
    let refused = queue.refused(r#"select pcfarm.set_presence('{pc1}', '{"wake_address": "no address"}')"#).await;
    assert!(refused.1.contains("192.0.2.255"), "{refused:?}");
}
