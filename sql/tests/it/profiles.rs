//! Profiles: which entry holds when, and that no hour has more than its limit.

use crate::queue::{self, Queue, queue};
use pcfarm_proto::ids::{BatchOrder, CheckoutId, WorkstationId};
use pcfarm_sql::checkout::{self, HandOut};
use pcfarm_sql::lanes::OpenLane;
use pcfarm_sql::{profiles, sharing};

async fn entry(queue: &Queue, options: &str) -> i64 {
    queue.number(&format!("select pcfarm.set_profile('t', '{options}')")).await
}

/// The entry that holds at a moment; 0: none.
async fn at(queue: &Queue, moment: &str) -> i64 {
    queue.number(&format!("select coalesce((select profile_id from pcfarm.profile_at('t', '{moment}')), 0)")).await
}

/// Checkouts of a problem each, with these weights, from where a lane is.
async fn made(queue: &Queue, lane: &OpenLane, weights: &[i64]) -> Vec<Option<CheckoutId>> {
    let from = queue.number("select coalesce(max(to_order), 0) from pcfarm.checkout").await;
    let hand_outs: Vec<HandOut> = weights
        .iter()
        .zip(from..)
        .map(|(weight, order)| HandOut {
            job_id: lane.job_id,
            lane_id: lane.lane_id,
            job_type: lane.job_type.clone(),
            from: BatchOrder(order),
            to: BatchOrder(order + 1),
            problems: 1,
            weight: *weight,
            workstation_id: WorkstationId(1),
            token: 5,
            seconds: None,
        })
        .collect();
    checkout::check_out_within_limits(&*queue.server().await, &hand_outs, true).await.expect("told")
}

fn count(made: &[Option<CheckoutId>]) -> usize {
    made.iter().flatten().count()
}

/// Minutes in which each entry holds, in the week that begins on this Monday of Berlin; 0: none.
async fn minutes_by_entry(queue: &Queue, monday: &str) -> std::collections::BTreeMap<i64, i64> {
    let rows = queue
        .client
        .query(
            "select coalesce(p.profile_id, 0), count(*)
            from generate_series($1::text::timestamp at time zone 'Europe/Berlin',
                ($1::text::timestamp + interval '7 days') at time zone 'Europe/Berlin' - interval '1 minute', '1 minute') m
            left join lateral (select profile_id from pcfarm.profile_at('t', m)) p on true
            group by 1",
            &[&monday],
        )
        .await
        .expect("minutes");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

#[tokio::test]
async fn a_window_beyond_midnight_belongs_to_its_first_day_through_changes_of_clocks() {
    let queue = queue().await;
    let zone = "\"time_zone\": \"Europe/Berlin\", \"problems_per_hour\": 5";
    let nights =
        entry(&queue, &format!("{{\"weekdays\": \"mon-fri\", \"from\": \"18:00\", \"to\": \"07:00\", {zone}}}")).await;
    let weekend = entry(&queue, &format!("{{\"weekdays\": \"sat,sun\", {zone}}}")).await;
    // The night of Friday ends on Saturday, whose own entry covers less of the week; Monday's morning is in no entry.
    assert_eq!(at(&queue, "2026-11-28 06:59 Europe/Berlin").await, weekend);
    assert_eq!(at(&queue, "2026-11-24 06:59 Europe/Berlin").await, nights);
    assert_eq!(at(&queue, "2026-11-23 06:59 Europe/Berlin").await, 0);
    for (monday, change) in [("2026-11-23", 0), ("2026-03-23", -60), ("2026-10-19", 60)] {
        let minutes = minutes_by_entry(&queue, monday).await;
        let expected = [(nights, 4 * 13 * 60 + 6 * 60), (weekend, 2 * 1440 + change), (0, 5 * 11 * 60 + 7 * 60)];
        assert_eq!(minutes, expected.into(), "{monday}");
    }
}

#[tokio::test]
async fn entries_hold_on_their_days_and_hours_by_the_clocks_of_their_zone() {
    let queue = queue().await;
    // The published mailing.
    let day =
        "\"weekdays\": \"sat-wed\", \"from\": \"07:00\", \"time_zone\": \"Asia/Tehran\", \"problems_per_hour\": 5";
    let by_day = entry(&queue, &format!("{{{day}}}")).await;
    let night = "\"weekdays\": [\"sat\", \"sun-wed\"], \"to\": \"07:00\", \"time_zone\": \"Asia/Tehran\"";
    let by_night = entry(&queue, &format!("{{{night}, \"problems_per_hour\": 1000}}")).await;
    let weekend = entry(&queue, "{\"weekdays\": \"thu,fri\", \"time_zone\": \"Asia/Tehran\"}").await;
    for (moment, expected) in [
        ("2026-11-21 07:00 +03:30", by_day), // a Saturday
        ("2026-11-21 06:59:59 +03:30", by_night),
        ("2026-11-25 23:59:59 +03:30", by_day),
        ("2026-11-26 00:00 +03:30", weekend),
        ("2026-11-27 12:00 +03:30", weekend),
        ("2026-11-28 00:00 +03:30", by_night),
        ("2026-11-27 20:30 +00:00", by_night), // where the day begins sooner
    ] {
        assert_eq!(at(&queue, moment).await, expected, "{moment}");
    }
    let gap = queue
        .number(
            "select pcfarm.set_profile('t', '{\"to\": \"06:00\"}', (select min(profile_id) + 1 from pcfarm.profile))",
        )
        .await;
    assert_eq!(gap, by_night);
    assert_eq!(at(&queue, "2026-11-21 06:30 +03:30").await, 0, "nothing limits it");
    queue.run(&format!("select pcfarm.delete_profile({by_day})")).await;
    assert_eq!(at(&queue, "2026-11-21 12:00 +03:30").await, 0);
}

#[tokio::test]
async fn a_window_may_cross_midnight_and_the_week() {
    let queue = queue().await;
    let late = entry(
        &queue,
        "{\"weekdays\": \"sun\", \"from\": \"22:00\", \"to\": \"06:00\", \"time_zone\": \"Europe/Berlin\"}",
    )
    .await;
    for (moment, expected) in [
        ("2026-11-22 21:59 +01", 0), // a Sunday
        ("2026-11-22 22:00 +01", late),
        ("2026-11-23 05:59 +01", late),
        ("2026-11-23 06:00 +01", 0),
        ("2026-11-22 05:00 +01", 0),
        // In summer, by the clocks there.
        ("2026-07-05 20:00 +00", late),
        ("2026-07-05 19:59 +00", 0),
    ] {
        assert_eq!(at(&queue, moment).await, expected, "{moment}");
    }
    let whole =
        entry(&queue, "{\"weekdays\": \"tue\", \"from\": \"08:00\", \"to\": \"08:00\", \"time_zone\": \"UTC\"}").await;
    assert_eq!(at(&queue, "2026-11-25 07:59 +00").await, whole, "from Tuesday's morning to Wednesday's");
    assert_eq!(at(&queue, "2026-11-25 08:00 +00").await, 0);
}

#[tokio::test]
async fn the_most_specific_holds_and_what_nothing_decides_is_refused() {
    let queue = queue().await;
    let always = entry(&queue, "{\"time_zone\": \"UTC\"}").await;
    let mornings = entry(&queue, "{\"to\": \"12:00\", \"time_zone\": \"UTC\"}").await;
    let quiet = entry(&queue, "{\"time_zone\": \"UTC\", \"when\": {\"web_users\": {\"below\": 100}}}").await;
    let monday = "2026-11-23 09:00 +00";
    assert_eq!(at(&queue, monday).await, mornings, "it covers less of the week");
    assert_eq!(at(&queue, "2026-11-23 13:00 +00").await, always);
    queue.run("select pcfarm.set_signal('web_users', 99)").await;
    assert_eq!(at(&queue, monday).await, quiet, "it has more conditions");
    queue.run("select pcfarm.set_signal('web_users', 100)").await;
    assert_eq!(at(&queue, monday).await, mornings);
    queue.run("select pcfarm.set_signal('web_users', 1, '1 microsecond')").await;
    assert_eq!(at(&queue, monday).await, mornings, "what was said too long ago is not known");

    let (code, message) =
        queue.refused("select pcfarm.set_profile('t', '{\"from\": \"06:00\", \"to\": \"18:00\", \"time_zone\": \"Asia/Kolkata\"}')").await;
    assert_eq!(code, "22023");
    let named = format!("profile entry {mornings} (Mon,Tue,Wed,Thu,Fri,Sat,Sun 00:00 to 12:00 UTC)");
    assert!(message.contains(&named) && message.contains("this one (Mon,"), "{message}");
    // Opposite hours of the same length do not overlap, nor do opposite conditions.
    entry(&queue, "{\"from\": \"12:00\", \"time_zone\": \"UTC\"}").await;
    entry(&queue, "{\"time_zone\": \"UTC\", \"when\": {\"web_users\": {\"at_least\": 100}}}").await;
    let (_, message) = queue
        .refused(
            "select pcfarm.set_profile('t', '{\"time_zone\": \"UTC\", \"when\": {\"web_users\": {\"at_least\": 50}}}')",
        )
        .await;
    assert!(message.contains("web_users below 100"), "{message}");
    let changed =
        format!("select pcfarm.set_profile('t', '{{\"when\": {{\"web_users\": {{\"below\": 101}}}}}}', {quiet})");
    assert!(queue.refused(&changed).await.1.contains(&format!("profile entry {quiet} (")), "a change may be one, too");
    for (options, said) in [
        ("{\"weekdays\": \"someday\"}", "there is no weekday 'someday'"),
        ("{\"weekdays\": []}", "no weekday is given"),
        ("{\"time_zone\": \"Mars/Olympus\"}", "there is no time zone 'Mars/Olympus'"),
        ("{\"hours\": 3}", "no such option: 'hours'"),
        ("{\"when\": {\"load\": 3}}", "no condition: load"),
        ("{\"when\": {\"load\": {\"above\": 3}}}", "no condition: load"),
    ] {
        let (code, message) = queue.refused(&format!("select pcfarm.set_profile('t', '{options}')")).await;
        assert!(code == "22023" && message.contains(said), "{options}: {code} {message}");
    }
    assert_eq!(queue.refused("select pcfarm.set_profile('x', '{}')").await.0, "42704");
}

#[tokio::test]
async fn an_explanation_says_why_each_entry_holds_or_not() {
    let queue = queue().await;
    entry(&queue, "{\"time_zone\": \"UTC\", \"problems_per_hour\": 7}").await;
    entry(&queue, "{\"time_zone\": \"UTC\", \"to\": \"06:00\"}").await;
    entry(&queue, "{\"time_zone\": \"UTC\", \"when\": {\"load\": {\"below\": 2}, \"mood\": {\"at_least\": 1}}}").await;
    queue.run("select pcfarm.set_signal('load', 2.5)").await;
    let monday = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_795_438_800); // 2026-11-23 13:00 UTC
    let told = profiles::profiles(&*queue.server().await, "t", Some(monday)).await.expect("told");
    let told: Vec<(bool, &str)> = told.iter().map(|one| (one.holds, one.reason.as_str())).collect();
    assert_eq!(
        told,
        [
            (false, "load is 2.5, not below 2; signal mood is not known"),
            (false, "it is Mon 13:00 in UTC"),
            (true, "it holds")
        ]
    );
    let error = profiles::profiles(&*queue.server().await, "x", None).await.expect_err("no such type");
    assert_eq!(error.code().map(|code| code.code()), Some("42704"));
}

#[tokio::test]
async fn an_hours_limit_counts_weights_and_holds_across_servers() {
    let queue = queue().await;
    let job = queue.job(100, 1).await;
    let lane = queue.lane(job, false).await.expect("a lane");
    entry(&queue, "{\"problems_per_hour\": 10}").await;
    assert_eq!(count(&made(&queue, &lane, &[4, 5, 2, 1]).await), 2, "9 of 10, and nothing past one that does not fit");
    assert_eq!(count(&made(&queue, &lane, &[2]).await), 0);
    let (first, second) = (queue.server().await, queue.server().await);
    first.batch_execute("begin").await.expect("begun");
    let one = |order: i64| HandOut {
        job_id: lane.job_id,
        lane_id: lane.lane_id,
        job_type: lane.job_type.clone(),
        from: BatchOrder(order),
        to: BatchOrder(order + 1),
        problems: 1,
        weight: 1,
        workstation_id: WorkstationId(1),
        token: 5,
        seconds: None,
    };
    assert_eq!(count(&checkout::check_out_within_limits(&first, &[one(2)], true).await.expect("told")), 1);
    let other = queue.job(5, 1).await;
    let of_other = queue.lane(other, false).await.expect("a lane");
    let of_other = [HandOut { job_id: other, lane_id: of_other.lane_id, ..one(0) }];
    let waits = queue::backend(&second).await;
    let (ids, ()) = tokio::join!(checkout::check_out_within_limits(&second, &of_other, true), async {
        queue.until_blocked(waits).await;
        first.batch_execute("commit").await.expect("committed");
    });
    assert_eq!(count(&ids.expect("told")), 0, "the tenth was the other server's");
    let share = sharing::shares(&*queue.server().await).await.expect("shares").into_iter().find(|s| s.weight.is_some());
    assert_eq!(share.and_then(|share| share.weight), Some(0));
    let why = queue.text(&format!("select string_agg(o, '; ') from pcfarm.job_obstacles({job}) o")).await;
    assert!(why.contains("lets job type t have 10 an hour, and 0 are left: more from"), "{why}");
    // An hour later.
    queue.run("update pcfarm.handed_out set at = at - interval '59 min 30 s'").await;
    assert_eq!(count(&made(&queue, &lane, &[1]).await), 0, "it is not over yet");
    queue.run("update pcfarm.handed_out set at = at - interval '30 s'").await;
    assert_eq!(count(&made(&queue, &lane, &[10]).await), 1);
    queue.check().await;
}

#[tokio::test]
async fn a_clock_that_is_set_back_makes_no_hour_longer() {
    let queue = queue().await;
    let job = queue.job(20, 1).await;
    let lane = queue.lane(job, false).await.expect("a lane");
    entry(&queue, "{\"problems_per_hour\": 10}").await;
    assert_eq!(count(&made(&queue, &lane, &[6]).await), 1);
    queue.run("update pcfarm.handed_out set at = at + interval '2 h'").await;
    assert_eq!(count(&made(&queue, &lane, &[3]).await), 1);
    assert_eq!(count(&made(&queue, &lane, &[2]).await), 0);
    assert_eq!(count(&made(&queue, &lane, &[1]).await), 1);
    // What was handed out two hours ahead counts for an hour from now, and not for three.
    profiles::put_hand_outs_right(&*queue.server().await).await.expect("put right");
    assert_eq!(count(&made(&queue, &lane, &[1]).await), 0);
    queue.run("update pcfarm.handed_out set at = at - interval '1 h'").await;
    assert_eq!(count(&made(&queue, &lane, &[10]).await), 1);
    assert_eq!(count(&made(&queue, &lane, &[1]).await), 0);
    queue.check().await;
}

#[tokio::test]
async fn what_an_hour_has_had_is_told_by_a_few_pages_and_forgotten_after_two() {
    let queue = queue().await;
    let of_entry = entry(&queue, "{\"problems_per_hour\": 1000000}").await;
    queue
        .run(&format!(
            "insert into pcfarm.handed_out (profile_id, at, weight, total)
             select {of_entry}, clock_timestamp() - n * interval '1 s', 2, 2 * (20000 - n) from generate_series(1, 10000) n;
             analyze pcfarm.handed_out"
        ))
        .await;
    let used = format!("select pcfarm.handed_out_in_an_hour({of_entry})");
    let hour = queue.number(&used).await;
    assert!((2 * 3580..=2 * 3600).contains(&hour), "{hour}");
    let client = queue.server().await;
    client.query(&used, &[]).await.expect("told"); // what a connection reads for the first time
    let plan = client.query(&format!("explain (analyze, buffers) {used}"), &[]).await.expect("explained");
    let lines: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
    let buffers = lines.iter().find(|line| line.contains("Buffers")).expect("counted");
    let pages = |kind: &str| -> i64 {
        let told = buffers.split_once(kind).and_then(|(_, rest)| rest.split(' ').next());
        told.map_or(0, |pages| pages.parse().expect("a number"))
    };
    let pages = pages("hit=") + pages("read=");
    assert!(pages < 50, "{pages} pages for two entries of an index");

    let until = profiles::forget_hand_outs(&*client, None).await.expect("forgotten").expect("some");
    assert!(until.elapsed().expect("past") > std::time::Duration::from_secs(7200 - 1));
    assert_eq!(profiles::forget_hand_outs(&*client, Some(until)).await.expect("forgotten"), None);
    // By a clock that was ahead it had come further.
    queue
        .run("update pcfarm.handed_out set at = at - interval '2 h' where at < clock_timestamp() - interval '118 min'")
        .await;
    let further = until + std::time::Duration::from_secs(86400);
    assert!(profiles::forget_hand_outs(&*client, Some(further)).await.expect("forgotten").is_some());
    let left = queue.number("select count(*) from pcfarm.handed_out").await;
    assert!((7060..=7080).contains(&left), "{left}");
    assert!(queue.number(&used).await >= 2 * 3500);
}

#[tokio::test]
async fn a_checkout_has_no_more_than_its_entry_says() {
    let queue = queue().await;
    let job = queue.job(10, 3).await;
    let lane = queue.lane(job, false).await.expect("a lane");
    entry(&queue, "{\"problems_per_checkout\": 2}").await;
    let hand_out = |from: i64, problems: i32| HandOut {
        job_id: lane.job_id,
        lane_id: lane.lane_id,
        job_type: lane.job_type.clone(),
        from: BatchOrder(from),
        to: BatchOrder(from + 1),
        problems,
        weight: problems.into(),
        workstation_id: WorkstationId(1),
        token: 5,
        seconds: None,
    };
    let ids = checkout::check_out_within_limits(&*queue.server().await, &[hand_out(0, 3), hand_out(1, 1)], true).await;
    assert_eq!(ids.expect("told"), [None, None], "what is behind one that does not fit waits with it");
    let why = queue.text(&format!("select string_agg(o, '; ') from pcfarm.job_obstacles({job}) o")).await;
    assert!(why.contains("its next convoy of job type t has 3 problems, and profile entry"), "{why}");
    queue.check().await;
}

/// On a faster clock, on which an hour is three seconds. Somebody asks all the time; then every hour that begins with a
/// hand-out is looked at.
#[tokio::test]
async fn no_sliding_hour_has_more_than_its_limit_and_little_is_left_unused() {
    const LIMIT: i64 = 60;
    let queue = queue().await;
    queue
        .run(&format!("alter database {} set pcfarm.hour = '3 s'", queue.text("select current_database()").await))
        .await;
    let job = queue.job(2000, 1).await;
    let lane = queue.lane(job, false).await.expect("a lane");
    entry(&queue, &format!("{{\"problems_per_hour\": {LIMIT}}}")).await;
    let began = std::time::Instant::now();
    while began.elapsed() < std::time::Duration::from_secs(13) {
        if count(&made(&queue, &lane, &[1, 1]).await) == 0 {
            count(&made(&queue, &lane, &[1]).await);
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let most = "select max(n) from (select count(*) over (order by checked_out_at range between current row and interval '3 s' following) as n
        from pcfarm.checkout) w";
    assert!(queue.number(most).await <= LIMIT, "{}", queue.number(most).await);
    let all = queue.number("select count(*) from pcfarm.checkout").await;
    // Four hours and what the fifth gives at once.
    assert!(all >= LIMIT * 4 * 95 / 100, "{all}");
    queue.check().await;
}

#[tokio::test]
async fn the_farms_traffic_peaks_when_the_users_falls() {
    let queue = queue().await;
    let job = queue.job(1000, 1).await;
    let lane = queue.lane(job, false).await.expect("a lane");
    entry(&queue, "{\"problems_per_hour\": 3}").await;
    entry(&queue, "{\"problems_per_hour\": 20, \"when\": {\"web_users\": {\"at_least\": 50, \"below\": 200}}}").await;
    entry(&queue, "{\"problems_per_hour\": 100, \"when\": {\"web_users\": {\"below\": 50}}}").await;
    let mut sent = Vec::new();
    // A day of a web site, by the hour.
    let users = [20, 5, 5, 60, 180, 400, 700, 650, 300, 150, 40];
    for users in users {
        queue.run(&format!("select pcfarm.set_signal('web_users', {users})")).await;
        let mut handed_out = 0;
        loop {
            let more = count(&made(&queue, &lane, &[1; 4]).await);
            handed_out += more;
            if more == 0 && count(&made(&queue, &lane, &[1]).await) == 0 {
                break;
            }
        }
        sent.push(handed_out);
        // An hour goes by.
        queue.run("update pcfarm.handed_out set at = at - interval '1 h'").await;
        profiles::forget_hand_outs(&*queue.server().await, None).await.expect("forgotten");
    }
    for (n, users) in users.iter().enumerate() {
        let limit = if *users < 50 {
            97..=100
        } else if *users < 200 {
            17..=20
        } else {
            0..=3
        };
        assert!(limit.contains(&sent[n]), "{users} users: {sent:?}");
    }
    queue.check().await;
}
