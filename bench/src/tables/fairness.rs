//! Table `fairness`: how near users' shares are to their allocations, what it costs to choose among many jobs, and what many
//! jobs cost the rate.

use crate::context::Context;
use crate::light::{Herd, Nothing, Pace};
use crate::night::Site;
use crate::report::{Figures, Report};
use anyhow::Context as _;
use pcfarm_proto::ids::{JobId, LaneId};
use pcfarm_server::dispatch::choose::{Candidate, Ring, Selection, Share};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Of the shares.
const USERS: u64 = 100;
const AGENTS: usize = 8;

/// Of the choice and of the rate.
const JOBS: u64 = 1000;
const OWNERS: u64 = 200;

const BYTES_EACH: u64 = 1_500;

/// Longest that all users have work.
const LONGEST: Duration = Duration::from_secs(600);

pub async fn run(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let problems = context.scaled(2_000_000, 100_000);
    context.need_disk(2 * problems * BYTES_EACH, "fairness")?;
    report.note(format!(
        "shares: {USERS} users, allocations 1 to 5, one of them with 90 % of all problems; two servers, {AGENTS} agents; \
         convoys of one problem, looked at until the first user had nothing left"
    ));
    report.note(format!("choice: the dispatcher's own function, {JOBS} jobs of {OWNERS} users, with its bookkeeping"));
    report.note(format!(
        "rate: {problems} problems, 100 a checkout, one agent on all cores: in one job, and in {JOBS}; from the first \
                       hand-out to the last result"
    ));
    for _ in 0..context.runs {
        let mut figures = Figures::default();
        figures.add("choice_us", choice_us(context.scaled(200_000, 20_000)));
        let worst = worst_share(context).await?;
        context.progress(&format!("worst share is {worst:.2} % off"));
        figures.add("worst_share_error_percent", worst);
        for (name, jobs, users) in [("one_job", 1, 1), ("many_jobs", JOBS, OWNERS)] {
            let rate = rate(context, jobs, users, problems / jobs).await?;
            context.progress(&format!("{name}: {rate:.0} a second"));
            figures.add(format!("{name}_per_second"), rate);
            report.processed(problems);
        }
        figures.add_ratio("many_of_one_ratio".to_owned(), "many_jobs_per_second", "one_job_per_second");
        report.run(figures);
    }
    report.promise_at_most("choice_us", 100.0);
    report.promise_at_most("worst_share_error_percent", 5.0);
    report.promise_at_least("many_of_one_ratio", 0.8);
    Ok(())
}

/// Microseconds that one choice takes, with noting it.
fn choice_us(choices: u64) -> f64 {
    let mut ring = Ring::default();
    let user = |n: u64| -> Arc<str> { format!("user{n}").into() };
    ring.set_shares((0..OWNERS).map(|n| ((user(n), None), Share { allocation: 1 + n as u32 % 5, prohibited: false })));
    for job in 0..JOBS {
        ring.add(Candidate {
            of_type: None,
            job_id: JobId(job as i64),
            lane_id: LaneId(job as i64),
            user: user(job % OWNERS),
            job_type: "noop".into(),
            controller: "echo".into(),
            requirement: None,
            priority: 0,
            deadline: None,
            late: job % 7 == 0,
            urgency: 0,
            came_back: false,
            first: false,
        });
    }
    let slot = Selection { controllers: HashSet::from(["echo".to_owned()]), ..Selection::default() };
    let began = Instant::now();
    for _ in 0..choices {
        let choice = ring.choose(&slot, |_| true).expect("there is work");
        ring.charge(&choice, 1);
    }
    began.elapsed().as_secs_f64() * 1e6 / choices as f64
}

/// How far, in percent, the user whose share is the farthest off is from its allocation.
async fn worst_share(context: &Context) -> anyhow::Result<f64> {
    let light = context.scaled(400, 100);
    let database = context.farm_database().await?;
    let (client, _connection) = database.connect().await?;
    let heavy = light * USERS * 27;
    client
        .batch_execute(&format!(
            "set statement_timeout = 0;
             select pcfarm.create_job_type('noop', 'echo');
             select pcfarm.set_user(array['user' || u], jsonb_build_object('allocation', 1 + u % 5))
             from generate_series(1, {USERS}) u;
             do $$
             declare
                 made bigint;
             begin
                 for n in 1..{USERS} loop
                     made := pcfarm.create_job('no-ops ' || n, 'noop');
                     perform pcfarm.load(made, format('select n::text as key, to_jsonb(n) as payload
                         from generate_series(1, %s::bigint) n', case n when 4 then {heavy} else {light} * (1 + n % 5) end), 1);
                     update pcfarm.job set owner = 'user' || n where job_id = made;
                     perform pcfarm.open_job(made);
                 end loop;
             end $$"
        ))
        .await
        .context("loading")?;
    context.settle(&database).await?;
    let farm = context.farm(&database);
    let (one, two) = (farm.serving("one", &[]).await, farm.serving("two", &[]).await);
    let herd = Herd::start(&[one.url(), two.url()], AGENTS, Arc::new(Nothing));
    herd.pace(Pace { draw: true, ..Pace::default() });
    farm.until(LONGEST, "select exists (select from pcfarm.job where ended_at is not null)").await;
    let rows = client
        .query(
            "with first as (select min(c.checked_out_at) as at from pcfarm.checkout c
                 join pcfarm.job j on j.job_id = c.job_id and j.state = 'done'
                 where c.to_order = (select max(o.to_order) from pcfarm.checkout o where o.job_id = c.job_id)),
             had as (select c.owner, sum(c.problems)::float8 as n from pcfarm.checkout c, first
                 where c.checked_out_at <= first.at group by c.owner),
             due as (select u.name, u.allocation::float8 / sum(u.allocation) over () as share from pcfarm.farm_user u
                 where u.allocation is not null)
             select max(abs(coalesce(h.n, 0) / ((select sum(n) from had) * d.share) - 1)) * 100
             from due d left join had h on h.owner = d.name",
            &[],
        )
        .await?;
    let worst = rows[0].get(0);
    drop((herd, one, two, farm));
    context.drop_database(database).await?;
    Ok(worst)
}

/// Problems a second.
async fn rate(context: &Context, jobs: u64, users: u64, problems_each: u64) -> anyhow::Result<f64> {
    let site = Site::start(context, &["--checkout-problems", "100"]).await?;
    // What is measured comes after some work on the same connections.
    let warming = site.load(problems_each * jobs / 10, 1).await?;
    site.load_many(jobs, users, problems_each).await?;
    context.settle(&site.database).await?;
    site.crunch(warming).await?;
    let (seconds, problems) = site.crunch_all().await?;
    site.end(context).await?;
    Ok(problems as f64 / seconds)
}
