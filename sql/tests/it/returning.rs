//! Problems that come back unbegun while their checkout goes on with the others.

use crate::queue::{Held, Queue, queue};
use pcfarm_proto::ids::{JobId, WorkstationId};
use pcfarm_sql::checkout::{self, Closing, Returnable, VerdictKind};
use pcfarm_sql::presence::{self, LiveCheckout};

impl Queue {
    /// Returns these problems of a checkout, by their places.
    async fn give_back(&self, held: &Held, places: &[usize]) -> i32 {
        let problems: Vec<_> = places.iter().map(|&place| held.problems[place].problem_id).collect();
        let client = self.server().await;
        checkout::give_back(&*client, held.checkout_id, held.token, &problems, "others are idle").await.expect("asked")
    }
}

#[tokio::test]
async fn unbegun_problems_come_back_while_the_checkout_goes_on() {
    let queue = queue().await;
    let job = queue.job(10, 5).await;
    let held = queue.take(job, false, 2).await.expect("held");
    queue.deliver(&held, &[(0, Ok("1"))], false).await;
    // The rest of the first convoy but one, and all of the second.
    assert_eq!(queue.give_back(&held, &[2, 3, 4, 5, 6, 7, 8, 9]).await, 8);
    queue.check().await;
    let progress =
        format!("select format('%s %s %s', waiting, in_progress, done) from pcfarm.job_progress where job_id = {job}");
    assert_eq!(queue.text(&progress).await, "8 1 1");
    // Problems of the convoy that was cut are by themselves, the others are together.
    let orders = "select count(distinct batch_order) from pcfarm.requeued";
    assert_eq!(queue.number(orders).await, 4);
    let costs = "select count(*) from pcfarm.requeued where attempts + losses > 0 or alone";
    assert_eq!(queue.number(costs).await, 0);
    let back = queue.take(job, true, usize::MAX).await.expect("they came back");
    assert_eq!(back.keys(), ["k3", "k4", "k5", "k6", "k7", "k8", "k9", "k10"], "in order");
    // A repetition has no effect, and returns no problem that another checkout has now.
    assert_eq!(queue.give_back(&held, &[2, 3]).await, 0);
    queue.check().await;
    assert!(queue.deliver(&held, &[(1, Ok("1"))], true).await.closed, "that was all of it");
    assert!(queue.finish(&back).await.closed);
    assert_eq!(queue.end(job).await.as_deref(), Some("done"));
    queue.check().await;
}

#[tokio::test]
async fn results_of_what_was_returned_are_refused() {
    let queue = queue().await;
    for plainly in [true, false] {
        let job = queue.job(4, 1).await;
        let held = queue.take(job, false, 4).await.expect("held");
        assert_eq!(queue.give_back(&held, &[3]).await, 1);
        // A server that does not know of it yet.
        let told: &[_] = if plainly { &[(3, Ok("7"))] } else { &[(0, Ok("1")), (3, Ok("7"))] };
        let verdict = queue.deliver(&held, told, false).await;
        assert_eq!((verdict.kind, verdict.accepted, verdict.refused), (VerdictKind::Accepted, i32::from(!plainly), 1));
        let failure = queue.deliver(&held, &[(3, Err("no"))], false).await;
        assert_eq!((failure.accepted, queue.number("select count(*) from pcfarm.failed_attempt").await), (0, 0));
        queue.check().await;
        assert!(queue.finish(&held).await.closed);
        let back = queue.take(job, true, 1).await.expect("it came back");
        assert_eq!((back.keys(), queue.finish(&back).await.accepted), (vec!["k4"], 1));
        assert_eq!(queue.end(job).await.as_deref(), Some("done"));
        queue.check().await;
    }
}

#[tokio::test]
async fn what_has_an_outcome_or_depends_on_others_is_not_returned() {
    let queue = queue().await;
    let job = queue.job(5, 5).await;
    let held = queue.take(job, false, 1).await.expect("held");
    queue.deliver(&held, &[(0, Ok("1")), (1, Err("no"))], false).await;
    assert_eq!(queue.give_back(&held, &[0, 1, 2]).await, 1);
    queue.check().await;
    // Nothing else is left but the failed attempt: that counts when the checkout is closed.
    assert_eq!(queue.give_back(&held, &[3, 4]).await, 2);
    assert_eq!(queue.close(&held, Closing::Finished).await[0].requeued, 1);
    queue.check().await;

    let query = "select ''g'' || g as key, ''1''::jsonb as payload, ''group'' || g / 3 as group_key from generate_series(0, 5) g";
    let grouped = JobId(queue.number(&format!("select pcfarm.submit('g', 't', '{query}', 3)")).await);
    let held = queue.take(grouped, false, 2).await.expect("both convoys");
    assert_eq!(queue.give_back(&held, &[1, 2, 4, 5]).await, 0, "a convoy of dependent problems is never cut");
    assert_eq!(queue.give_back(&held, &[1, 3, 4, 5]).await, 3, "but returned as a whole");
    let orders = format!("select count(distinct batch_order) from pcfarm.requeued where job_id = {grouped}");
    assert_eq!(queue.number(&orders).await, 1);
    queue.check().await;
}

#[tokio::test]
async fn nothing_comes_back_of_what_is_not_held() {
    let queue = queue().await;
    let job = queue.job(4, 1).await;
    let held = queue.take(job, false, 2).await.expect("held");
    let stranger = Held { token: held.token ^ 1, ..held.clone() };
    assert_eq!(queue.give_back(&stranger, &[1]).await, 0, "another token");
    // Without anything left the checkout is over.
    assert_eq!(queue.give_back(&held, &[0, 1]).await, 2);
    assert_eq!(queue.finish(&held).await.kind, VerdictKind::AlreadyAccepted);
    let back = queue.take(job, true, 2).await.expect("both came back");
    queue.close(&back, Closing::Lost).await;
    assert_eq!(queue.give_back(&back, &[1]).await, 0, "revoked");
    queue.check().await;
}

/// Problems that came back once are returned again, and the others of their checkout are lost like any others.
#[tokio::test]
async fn what_came_back_is_returned_again() {
    let queue = queue().await;
    let job = queue.job(6, 1).await;
    let first = queue.take(job, false, 6).await.expect("held");
    assert_eq!(queue.give_back(&first, &[1, 2, 3, 4, 5]).await, 5);
    let second = queue.take(job, true, 5).await.expect("they came back");
    assert_eq!(queue.give_back(&second, &[2, 3, 4]).await, 3);
    queue.check().await;
    let third = queue.take(job, true, 3).await.expect("they came back again");
    assert_eq!(third.keys(), ["k4", "k5", "k6"]);
    queue.close(&second, Closing::Lost).await;
    queue.close(&third, Closing::Unreceived).await;
    queue.check().await;
    queue.finish(&first).await;
    while let Some(back) = queue.take(job, true, usize::MAX).await {
        assert!(queue.finish(&back).await.closed);
    }
    assert_eq!(queue.end(job).await.as_deref(), Some("done"));
    queue.check().await;
}

/// A problem that is returned and does not come back would be computed nowhere until the end of its checkout.
#[tokio::test]
async fn a_checkout_returns_any_number_of_problems() {
    let queue = queue().await;
    let job = queue.job(9000, 100).await;
    let held = queue.take(job, false, usize::MAX).await.expect("held");
    for first in (1..9000).step_by(1000) {
        let places: Vec<usize> = (first..9000.min(first + 1000)).collect();
        assert_eq!(usize::try_from(queue.give_back(&held, &places).await), Ok(places.len()), "from {first}");
    }
    assert_eq!(queue.number("select count(*) from pcfarm.requeued").await, 8999);
    assert!(queue.deliver(&held, &[(0, Ok("1"))], true).await.closed);
    queue.check().await;
}

#[tokio::test]
async fn a_workstation_that_connects_again_is_known_by_what_is_left() {
    let queue = queue().await;
    let job = queue.job(10, 10).await;
    let held = queue.take(job, false, 1).await.expect("held");
    queue.deliver(&held, &[(0, Ok("1")), (1, Err("no"))], false).await;
    assert_eq!(queue.give_back(&held, &[8, 9]).await, 2);
    let live = presence::live_checkouts(&*queue.server().await, &[WorkstationId(1)]).await.expect("read");
    let expected = LiveCheckout { token: held.token, job_type: "t".to_owned(), problems_left: 6 };
    assert_eq!(live, [(WorkstationId(1), held.checkout_id, expected)]);
}

/// Returned problems are in progress no longer, so a limit that is reached keeps none of them from another workstation. A limit
/// that is exceeded without them does.
#[tokio::test]
async fn what_a_limit_keeps_in_the_queue_is_not_returnable() {
    let queue = queue().await;
    let job = queue.job(6, 3).await;
    let small = queue.take(job, false, 1).await.expect("three").checkout_id;
    let other = queue.take(job, false, 1).await.expect("three more").checkout_id;
    let all = vec![small, other];
    let ask = async || {
        let asked = checkout::returnable(&*queue.server().await, &[WorkstationId(2)], &all).await.expect("asked");
        asked.into_iter().map(|one| one.checkout_id).collect::<Vec<_>>()
    };
    assert_eq!(ask().await, all);
    let owner = queue.text("select current_user::text").await;
    queue.run("select pcfarm.set_resource('licence', 6)").await;
    let needs =
        |tokens: i64| format!("select pcfarm.set_job_type('t', '{{\"resources\": {{\"licence\": {tokens}}}}}')");
    let licences = |tokens: i64| format!("select pcfarm.set_resource('licence', {tokens})");
    let user = |what: &str| format!("select pcfarm.set_user('{{{owner}}}', '{{{what}}}')");
    let of_type =
        |most: &str| format!("select pcfarm.set_user_job_type('{{{owner}}}', 't', '{{\"concurrency\": {most}}}')");
    for (how, may) in [
        (user("\"concurrency\": 6"), true),
        (user("\"concurrency\": 4"), true),
        (user("\"concurrency\": 3"), false),
        (user("\"concurrency\": 0"), false),
        (user("\"concurrency\": null"), true),
        (of_type("4"), true),
        (of_type("3"), false),
        (of_type("null"), true),
        (user("\"prohibited\": true"), false),
        (user("\"prohibited\": false"), true),
        (needs(1), true),
        (licences(4), true),
        (licences(3), false),
        // Twelve in use, six of them by each checkout.
        (needs(2), false),
        (licences(8), true),
        (licences(7), false),
        (licences(12), true),
    ] {
        queue.run(&how).await;
        assert_eq!(ask().await, if may { all.clone() } else { Vec::new() }, "{how}");
    }
}

#[tokio::test]
async fn what_would_wait_in_the_queue_is_not_returnable() {
    let queue = queue().await;
    let job = queue.job(4, 1).await;
    let first = queue.take(job, false, 3).await.expect("held");
    queue.close(&first, Closing::Lost).await;
    // Lost problems come back to be run alone.
    let alone = queue.take(job, true, 1).await.expect("it came back");
    let plain = queue.take(job, false, 1).await.expect("held");
    let ids = [alone.checkout_id, plain.checkout_id];
    let ask = async || {
        let asked = checkout::returnable(&*queue.server().await, &[WorkstationId(2)], &ids).await.expect("asked");
        asked.into_iter().map(|one| one.checkout_id).collect::<Vec<_>>()
    };
    assert_eq!(ask().await, [plain.checkout_id], "problems that run alone are never returned");
    for (how, back) in [
        (format!("select pcfarm.park({job})"), format!("select pcfarm.park({job}, parked => false)")),
        ("select pcfarm.suspend_job_type('t')".to_owned(), "select pcfarm.resume_job_type('t')".to_owned()),
        (
            format!("update pcfarm.job set not_before = clock_timestamp() + interval '1 day' where job_id = {job}"),
            format!("update pcfarm.job set not_before = null where job_id = {job}"),
        ),
    ] {
        queue.run(&how).await;
        assert_eq!(ask().await, [], "{how}");
        queue.run(&back).await;
        assert_eq!(ask().await, [plain.checkout_id], "{back}");
    }
}

#[tokio::test]
async fn only_what_an_idle_workstation_may_take_is_returnable() {
    let queue = queue().await;
    let job = queue.job(4, 1).await;
    let query = "select ''g'' || g as key, ''1''::jsonb as payload, ''x'' as group_key from generate_series(0, 5) g";
    let grouped = JobId(queue.number(&format!("select pcfarm.submit('g', 't', '{query}', 3)")).await);
    let (loose, whole) = (queue.take(job, false, 2).await, queue.take(grouped, false, 1).await);
    let ids = [loose, whole].map(|held| held.expect("held").checkout_id);
    let ask = async |idle: &[i64]| {
        let idle: Vec<WorkstationId> = idle.iter().copied().map(WorkstationId).collect();
        checkout::returnable(&*queue.server().await, &idle, &ids).await.expect("asked")
    };
    let both = [(ids[0], false), (ids[1], true)]
        .map(|(checkout_id, whole_convoys)| Returnable { checkout_id, whole_convoys })
        .to_vec();
    assert_eq!(ask(&[2]).await, both);
    assert_eq!(ask(&[1]).await, [], "its own");
    assert_eq!(ask(&[99]).await, [], "nobody");
    let owner = queue.text("select current_user::text").await;
    for (how, back) in [
        (
            "update pcfarm.workstation set controllers = '{d}' where workstation_id = 2".to_owned(),
            "update pcfarm.workstation set controllers = '{c}'",
        ),
        (
            format!("select pcfarm.set_selection('{{pc2}}', '{{\"excluded\": [\"{owner}\"]}}')"),
            "delete from pcfarm.selection",
        ),
        (
            "select pcfarm.set_selection('{pc2}', '{\"required\": [\"ann\"]}')".to_owned(),
            "delete from pcfarm.selection",
        ),
        ("update pcfarm.job_type set labels = '{big}'".to_owned(), "update pcfarm.job_type set labels = '{}'"),
    ] {
        queue.run(&how).await;
        assert_eq!(ask(&[2]).await, [], "{how}");
        queue.run(back).await;
        assert_eq!(ask(&[2, 3]).await, both, "{back}");
    }
    queue.run(&format!("select pcfarm.hold_job({job})")).await;
    assert_eq!(ask(&[2]).await, both[1..], "of an open job");
}
