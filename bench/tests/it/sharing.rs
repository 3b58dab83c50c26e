//! Who is served next, live: the order of the views, shares, limits over two servers, and rates.

use std::sync::Arc;
use std::time::Duration;

use pcfarm_bench::farm::{Farm, LONG, SOON};
use pcfarm_bench::light::{Herd, Nothing, Pace};
use pcfarm_proto::ids::JobId;
use serde_json::json;
use tokio::time::{Instant, sleep};

/// A job of a user, with this many problems in convoys of one, open.
async fn job(farm: &Farm, user: &str, job_type: &str, options: &str, problems: i64) -> JobId {
    let text = format!("select pcfarm.create_job('of {user}', '{job_type}', '{options}')");
    let job: JobId = farm.query(&text, &[]).await[0].get(0);
    farm.run(&format!(
        "select pcfarm.load({job}, 'select i::text as key, to_jsonb(i) as payload from generate_series(1, {problems}) i', 1);
         select pcfarm.set_user('{{{user}}}', '{{}}');
         update pcfarm.job set owner = '{user}' where job_id = {job};
         select pcfarm.open_job({job})"
    ))
    .await;
    job
}

async fn all_ended(farm: &Farm) {
    farm.until(LONG, "select count(*) = 0 from pcfarm.job where ended_at is null").await;
}

async fn texts(farm: &Farm, query: &str) -> Vec<String> {
    farm.query(query, &[]).await.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn jobs_are_handed_out_in_the_order_of_the_view() {
    let farm = Farm::new().await;
    farm.job_type("noop", "echo", json!({})).await;
    farm.job_type("more", "echo", json!({})).await;
    // A number that is the same in every run.
    let mut state = 7_u64;
    let mut dice = |sides: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % sides
    };
    for _ in 0..60 {
        let user = ["ann", "ben", "cem", "dee", "eve"][dice(5) as usize];
        let deadline = match dice(4) {
            0 => String::new(),
            1 => format!(", \"deadline\": \"2020-01-{:02}T00:00:00Z\"", 1 + dice(28)),
            _ => format!(", \"deadline\": \"2090-01-{:02}T00:00:00Z\"", 1 + dice(28)),
        };
        let job_type = ["noop", "more"][dice(2) as usize];
        job(&farm, user, job_type, &format!("{{\"priority\": {}{deadline}}}", dice(3)), 1).await;
    }
    farm.run(
        "select pcfarm.set_user('{ben}', '{\"allocation\": 3}'); select pcfarm.set_user('{cem}', '{\"allocation\": 2}');
         select pcfarm.set_user_job_type('{dee}', 'more', '{\"allocation\": 2}');
         select pcfarm.set_profile('more', '{\"priority\": 1}')",
    )
    .await;
    let expected = texts(&farm, "select job_id::text from pcfarm.jobs_ordered order by position").await;
    assert_eq!(expected.len(), 60);
    let server = farm.serving("a", &[]).await;
    let herd = Herd::start(&[server.url()], 1, Arc::new(Nothing));
    herd.pace(Pace { draw: true, ..Pace::default() });
    all_ended(&farm).await;
    let order = texts(&farm, "select job_id::text from pcfarm.checkout order by checkout_id").await;
    assert_eq!(order, expected);
    farm.check(&[]).await;
}

/// Of ten users one has nine tenths of all problems; allocations are from one to five.
#[tokio::test]
#[ignore = "nightly: a minute of shares among ten users"]
async fn shares_are_as_allocated_while_all_have_work() {
    let farm = Farm::new().await;
    farm.job_type("noop", "echo", json!({})).await;
    let mut allocations = Vec::new();
    for n in 0..10 {
        let (user, allocation) = (format!("user{n}"), 1 + n % 5);
        let problems = if n == 4 { 40_000 } else { 600 * allocation };
        job(&farm, &user, "noop", "{}", problems).await;
        farm.run(&format!("select pcfarm.set_user('{{{user}}}', '{{\"allocation\": {allocation}}}')")).await;
        allocations.push((user, allocation));
    }
    let flags = ["--checkout-problems", "8"];
    let (one, two) = (farm.serving("a", &flags).await, farm.serving("b", &flags).await);
    let herd = Herd::start(&[one.url(), two.url()], 8, Arc::new(Nothing));
    herd.connected(8, LONG).await.expect("a herd");
    herd.pace(Pace { draw: true, hold: Duration::from_millis(3), ..Pace::default() });
    farm.until(LONG, "select count(*) <= 9 from pcfarm.job where ended_at is null").await;
    farm.run("select pcfarm.suspend_queue()").await;
    let rows = farm
        .query(
            "with first as (
                 select min(t) as t from (select owner, max(checked_out_at) as t from pcfarm.checkout group by owner) o)
             select owner::text, sum(problems)::bigint from pcfarm.checkout, first where checked_out_at <= first.t group by owner",
            &[],
        )
        .await;
    let had: Vec<(String, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let (all, turns): (i64, i64) = (had.iter().map(|h| h.1).sum(), allocations.iter().map(|a| a.1).sum());
    for (user, allocation) in &allocations {
        let problems = had.iter().find(|had| had.0 == *user).map_or(0, |had| had.1);
        let due = all as f64 * *allocation as f64 / turns as f64;
        assert!((problems as f64 / due - 1.0).abs() < 0.05, "{user} had {problems} of {due:.0} due: {had:?}");
    }
    farm.check(&[]).await;
}

#[tokio::test]
#[ignore = "nightly: half a minute of samples of a limit"]
async fn limits_hold_over_two_servers_at_every_moment_and_a_change_is_felt_within_a_second() {
    let farm = Farm::new().await;
    farm.run("select pcfarm.set_resource('licence', 6, 'of a solver')").await;
    farm.job_type("noop", "echo", json!({})).await;
    farm.job_type("licensed", "echo", json!({"resources": {"licence": 2}})).await;
    job(&farm, "ann", "noop", "{}", 3_000).await;
    job(&farm, "ben", "noop", "{}", 2_000).await;
    job(&farm, "cem", "licensed", "{}", 300).await;
    farm.run("select pcfarm.set_user('{ann}', '{\"concurrency\": 3}')").await;
    let flags = ["--checkout-problems", "4"];
    let (one, two) = (farm.serving("a", &flags).await, farm.serving("b", &flags).await);
    let herd = Herd::start(&[one.url(), two.url()], 8, Arc::new(Nothing));
    herd.pace(Pace { draw: true, hold: Duration::from_millis(10), ..Pace::default() });
    let of = |owner: &str| {
        format!(
            "select coalesce(sum(problems - delivered), 0)::bigint from pcfarm.checkout where ended_at is null and owner = '{owner}'"
        )
    };
    let (mut most_of_ann, mut most_of_cem) = (0, 0);
    let began = Instant::now();
    let mut changed = None;
    loop {
        let (ann, cem) = (farm.number(&of("ann")).await, farm.number(&of("cem")).await);
        most_of_ann = most_of_ann.max(ann);
        most_of_cem = most_of_cem.max(cem);
        assert!(cem <= 3, "{cem} have two licences each, of six");
        match changed {
            None => assert!(ann <= 3, "{ann} in progress of at most 3"),
            Some(at) if Instant::now() > at => assert!(ann <= 1, "{ann} in progress of at most 1"),
            Some(_) => {}
        }
        if changed.is_none() && began.elapsed() > Duration::from_secs(2) {
            farm.run("select pcfarm.set_user('{ann}', '{\"concurrency\": 1}')").await;
            changed = Some(Instant::now() + Duration::from_secs(1));
        }
        if began.elapsed() > Duration::from_secs(6) {
            break;
        }
        sleep(Duration::from_millis(15)).await;
    }
    assert!(most_of_ann > 1 && most_of_cem > 1, "limits are used: {most_of_ann} {most_of_cem}");
    farm.run("select pcfarm.set_user('{ann}', '{\"concurrency\": 0}')").await;
    farm.until(SOON, &of("ann").replace("select", "select 0 =")).await;
    let done = farm.number("select sum(done)::bigint from pcfarm.job_progress where owner = 'ann'").await;
    sleep(Duration::from_millis(300)).await;
    assert_eq!(farm.number("select sum(done)::bigint from pcfarm.job_progress where owner = 'ann'").await, done);
    farm.run("select pcfarm.set_user('{ann}', '{\"concurrency\": null}')").await;
    all_ended(&farm).await;
    farm.check(&[]).await;
}

#[tokio::test]
async fn a_rate_holds_over_two_servers_and_most_of_it_is_used() {
    const LIMIT: i64 = 100;
    let farm = Farm::new().await;
    farm.job_type("noop", "echo", json!({})).await;
    // A faster clock: an hour is four seconds.
    let database = &farm.query("select current_database()::text", &[]).await[0].get::<_, String>(0);
    farm.run(&format!(
        "alter database {database} set pcfarm.hour = '4 s';
         select pcfarm.set_profile('noop', '{{\"problems_per_hour\": {LIMIT}, \"problems_per_checkout\": 3}}')"
    ))
    .await;
    let job = job(&farm, "ann", "noop", "{}", LIMIT * 3).await;
    let (one, two) = (farm.serving("a", &[]).await, farm.serving("b", &[]).await);
    let herd = Herd::start(&[one.url(), two.url()], 8, Arc::new(Nothing));
    herd.pace(Pace { draw: true, ..Pace::default() });
    let began = Instant::now();
    assert_eq!(farm.ended(job, LONG).await, "done");
    let most = "select max(n)::bigint from (select sum(problems) over (order by checked_out_at range between current row and interval '4 s' following) as n
        from pcfarm.checkout) w";
    assert!(farm.number(most).await <= LIMIT, "{} in an hour", farm.number(most).await);
    // The first at once, the last after two hours, of which each is a sixtieth longer.
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    assert!(farm.number("select max(problems)::bigint from pcfarm.checkout").await <= 3);
    farm.check(&[]).await;
}

/// Each of these agents is a workstation of its own: `pick-0` and so on.
#[tokio::test]
#[ignore = "nightly: half a minute of hand-outs under changing choices"]
async fn workstations_take_what_is_chosen_for_them_and_a_change_is_felt_at_once() {
    let farm = Farm::new().await;
    farm.job_type("noop", "echo", json!({})).await;
    farm.job_type("drawn", "echo", json!({"labels": ["gpu"]})).await;
    farm.run(
        "select pcfarm.set_selection('{pick-0}', '{\"required\": [\"ann\"]}');
         select pcfarm.set_selection('{pick-1}', '{\"excluded\": [\"ann\"], \"largest_problem\": 3}');
         select pcfarm.set_selection('{pick-2}', '{\"labels\": [\"gpu\"], \"job_types\": [\"drawn\"]}');
         select pcfarm.set_user('{eve}', '{\"prohibited\": true}')",
    )
    .await;
    for (user, job_type) in [("ann", "noop"), ("ben", "noop"), ("cem", "drawn"), ("eve", "noop")] {
        // Payloads are the numbers: those beyond 999 are larger than three bytes.
        job(&farm, user, job_type, "{}", 1_500).await;
    }
    let server = farm.serving("a", &["--checkout-problems", "5"]).await;
    let herd = Herd::named("pick", &[server.url()], 3, Arc::new(Nothing));
    herd.pace(Pace { draw: true, ..Pace::default() });
    farm.until(LONG, "select bool_and(state = 'done') from pcfarm.job where owner in ('ann', 'cem')").await;
    farm.until(LONG, "select done = 999 from pcfarm.job_progress where owner = 'ben'").await;
    let served = "select string_agg(distinct w.hostname || ' ' || c.owner, ', ' order by w.hostname || ' ' || c.owner)
        from pcfarm.checkout c join pcfarm.workstation w using (workstation_id)";
    assert_eq!(texts(&farm, served).await, ["pick-0 ann, pick-1 ben, pick-2 cem"]);
    farm.run("select pcfarm.set_selection('{pick-0}', '{\"required\": [\"eve\"]}')").await;
    farm.until(SOON, "select done = 1500 from pcfarm.job_progress where owner = 'eve'").await;
    assert_eq!(farm.number("select done from pcfarm.job_progress where owner = 'ben'").await, 999);
    farm.run("select pcfarm.set_selection('{pick-1}', '{\"largest_problem\": null, \"excluded\": []}')").await;
    all_ended(&farm).await;
    assert_eq!(farm.number("select count(*) from pcfarm.selection where hostname = 'pick-1'").await, 0);
    farm.check(&[]).await;
}
