//! Random operations on the queue and on a model of it in memory: after each, both say the same and no invariant is
//! broken. `PCFARM_TEST_SEED=N` runs another seed.

use crate::queue::{Held, MAX_ATTEMPTS, Queue, Told, queue, take};
use pcfarm_proto::ids::{JobId, ProblemId, WorkstationId};
use pcfarm_sql::checkout::{Closing, VerdictKind};
use std::collections::BTreeMap;

const STEPS: usize = 80;

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.roll() % n.max(1) as u64).expect("small")
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Held,
    Done,
    Failed,
}

#[derive(Clone, Copy, Debug)]
struct Problem {
    state: State,
    attempts: i32,
    /// It failed under the checkout that holds it, and not for the last time.
    failed_now: bool,
    /// The checkout that its result came under.
    ended_by: i64,
}

#[derive(Debug)]
struct Job {
    state: &'static str,
    problems: BTreeMap<ProblemId, Problem>,
}

impl Job {
    fn loadable(&self) -> bool {
        matches!(self.state, "open" | "held")
    }
}

struct Model {
    jobs: BTreeMap<JobId, Job>,
    checkouts: Vec<(Held, bool)>,
}

impl Model {
    fn live(&self, job_id: JobId) -> impl Iterator<Item = &Held> {
        self.checkouts.iter().filter(move |(held, live)| *live && held.job_id == job_id).map(|(held, _)| held)
    }

    fn delivered(&mut self, at: usize, told: &[(usize, Told<'_>)], closing: bool) {
        let (held, live) = &mut self.checkouts[at];
        if !*live {
            return;
        }
        let job = self.jobs.get_mut(&held.job_id).expect("known");
        for (n, told) in told {
            let problem = job.problems.get_mut(&held.problems[*n].problem_id).expect("known");
            if problem.state != State::Held {
                continue;
            }
            if told.is_err() && problem.attempts + 1 < MAX_ATTEMPTS {
                problem.failed_now = true;
                continue;
            }
            let state = if told.is_ok() { State::Done } else { State::Failed };
            *problem =
                Problem { state, attempts: problem.attempts + 1, failed_now: false, ended_by: held.checkout_id.0 };
        }
        let left = held.problems.iter().any(|p| job.problems[&p.problem_id].state == State::Held);
        *live = left || !closing;
    }

    /// Returns how many come back and how many have failed.
    fn closed(&mut self, at: usize, how: Closing) -> Option<(i32, i32)> {
        let (held, live) = &mut self.checkouts[at];
        if !std::mem::replace(live, false) {
            return None;
        }
        let job = self.jobs.get_mut(&held.job_id).expect("known");
        let (mut back, mut failed, mut first) = (0, 0, true);
        let one_by_one = held.problems.iter().any(|p| p.grouped && p.alone);
        for coming in &held.problems {
            let problem = job.problems.get_mut(&coming.problem_id).expect("known");
            if problem.state != State::Held {
                continue;
            }
            let lost = how == Closing::Lost && !problem.failed_now;
            let blamed = lost
                && ((held.problems.len() == 1 && coming.alone) || (one_by_one && std::mem::replace(&mut first, false)));
            problem.attempts += i32::from(problem.failed_now || blamed);
            problem.failed_now = false;
            if problem.attempts >= MAX_ATTEMPTS {
                (problem.state, problem.ended_by) = (State::Failed, held.checkout_id.0);
                failed += 1;
            } else {
                problem.state = State::Waiting;
                back += 1;
            }
        }
        Some((back, failed))
    }

    fn ends(&self, job_id: JobId) -> Option<&'static str> {
        let job = &self.jobs[&job_id];
        let over = job.problems.values().all(|p| matches!(p.state, State::Done | State::Failed));
        if job.state != "open" || !over || self.live(job_id).next().is_some() {
            return None;
        }
        Some(if job.problems.values().any(|p| p.state == State::Failed) { "failed" } else { "done" })
    }
}

async fn load(queue: &Queue, model: &mut Model, dice: &mut Dice, job_id: JobId) {
    let (problems, convoy) = (1 + dice.below(30), 1 + dice.below(6));
    let groups = if dice.one_in(3) { ", (g % 4)::text as group_key" } else { "" };
    let text = format!(
        "select pcfarm.load({job_id}, 'select ''k'' || g as key, to_jsonb(g) as payload{groups} from generate_series(1, {problems}) g', {convoy})"
    );
    assert_eq!(queue.number(&text).await, problems as i64);
    let ids = format!("select problem_id from pcfarm.problem where job_id = {job_id}");
    let new = Problem { state: State::Waiting, attempts: 0, failed_now: false, ended_by: 0 };
    let job = model.jobs.get_mut(&job_id).expect("known");
    for row in queue.client.query(&ids, &[]).await.expect("asked") {
        job.problems.entry(row.get(0)).or_insert(new);
    }
}

async fn step(queue: &Queue, model: &mut Model, dice: &mut Dice) -> String {
    let jobs: Vec<JobId> = model.jobs.keys().copied().collect();
    let job_id = jobs.get(dice.below(jobs.len())).copied();
    let at = dice.below(model.checkouts.len());
    match dice.below(20) {
        0 => {
            let job_id = JobId(queue.number("select pcfarm.create_job('j', 't')").await);
            model.jobs.insert(job_id, Job { state: "open", problems: BTreeMap::new() });
            load(queue, model, dice, job_id).await;
            queue.run(&format!("select pcfarm.open_job({job_id})")).await;
            format!("new job {job_id}")
        }
        1 => {
            let Some(job_id) = job_id else { return String::new() };
            if model.jobs[&job_id].loadable() {
                load(queue, model, dice, job_id).await;
            } else {
                queue
                    .refused(&format!(
                        "select pcfarm.load({job_id}, 'select ''x'' as key, ''1''::jsonb as payload', 1)"
                    ))
                    .await;
            }
            format!("load into {job_id}")
        }
        2..=7 => {
            let Some(job_id) = job_id else { return String::new() };
            let (came_back, convoys) = (dice.one_in(2), 1 + dice.below(5));
            let job = &model.jobs[&job_id];
            let Some(lane) = queue.lane(job_id, came_back).await else {
                let waiting = job.problems.values().any(|p| p.state == State::Waiting);
                assert!(
                    !waiting || job.state != "open" || queue.lane(job_id, !came_back).await.is_some(),
                    "work is not shown"
                );
                return String::new();
            };
            assert_eq!(job.state, "open");
            let held =
                take(&*queue.server().await, &lane, convoys, WorkstationId(1)).await.expect("nobody is in the way");
            let job = model.jobs.get_mut(&job_id).expect("known");
            for coming in &held.problems {
                let problem = job.problems.get_mut(&coming.problem_id).expect("known");
                assert_eq!((problem.state, problem.attempts), (State::Waiting, coming.attempts), "{coming:?}");
                problem.state = State::Held;
            }
            let text = format!("checkout {} of job {job_id}: {:?}", held.checkout_id, held.keys());
            model.checkouts.push((held, true));
            text
        }
        8..=12 => {
            let Some((held, live)) = model.checkouts.get(at).cloned() else { return String::new() };
            let mut told: Vec<(usize, Told<'_>)> = Vec::new();
            let all = dice.one_in(2);
            for n in 0..held.problems.len() {
                if all || dice.one_in(3) {
                    told.push((n, if dice.one_in(5) { Err("no") } else { Ok("1") }));
                }
            }
            if dice.one_in(4) && !told.is_empty() {
                told.push(told[0]);
            }
            let closing = dice.one_in(2);
            if dice.one_in(8) {
                let forged = Held { token: held.token ^ 1, ..held.clone() };
                assert_eq!(queue.deliver(&forged, &told, closing).await.kind, VerdictKind::Unknown);
            }
            let verdict = queue.deliver(&held, &told, closing).await;
            assert_eq!(verdict.kind == VerdictKind::Accepted, live, "{verdict:?}");
            model.delivered(at, &told, closing);
            assert_eq!(verdict.closed, live && !model.checkouts[at].1, "{verdict:?}");
            format!("deliver {} of checkout {}, closing: {closing}", told.len(), held.checkout_id)
        }
        13..=15 => {
            let Some((held, _)) = model.checkouts.get(at).cloned() else { return String::new() };
            let how = [Closing::Finished, Closing::Unreceived, Closing::Lost, Closing::Lost][dice.below(4)];
            let closed = queue.close(&held, how).await;
            let closed = closed.first().map(|c| (c.requeued, c.failed));
            assert_eq!(closed, model.closed(at, how), "{how:?}");
            format!("close checkout {}: {how:?}", held.checkout_id)
        }
        16 => {
            let Some(job_id) = job_id else { return String::new() };
            let (call, from, to) = [("hold_job", "open", "held"), ("release_job", "held", "open")][dice.below(2)];
            let job = model.jobs.get_mut(&job_id).expect("known");
            if job.state == from {
                queue.run(&format!("select pcfarm.{call}({job_id})")).await;
                job.state = to;
            }
            format!("{call} {job_id}")
        }
        17 if dice.one_in(4) => {
            let Some(job_id) = job_id else { return String::new() };
            let job = model.jobs.get_mut(&job_id).expect("known");
            if job.loadable() {
                queue.run(&format!("select pcfarm.cancel_job({job_id})")).await;
                job.state = "cancelled";
                model
                    .checkouts
                    .iter_mut()
                    .filter(|(held, _)| held.job_id == job_id)
                    .for_each(|(_, live)| *live = false);
            }
            format!("cancel {job_id}")
        }
        18 => {
            let Some(job_id) = job_id else { return String::new() };
            let live: Vec<i64> = model.live(job_id).map(|held| held.checkout_id.0).collect();
            let job = model.jobs.get_mut(&job_id).expect("known");
            if !matches!(job.state, "open" | "held" | "failed") {
                return String::new();
            }
            let mut retried = 0;
            for problem in job.problems.values_mut().filter(|p| p.state == State::Failed && !live.contains(&p.ended_by))
            {
                *problem = Problem { state: State::Waiting, attempts: 0, failed_now: false, ended_by: 0 };
                retried += 1;
            }
            if retried > 0 && job.state == "failed" {
                job.state = "open";
            }
            assert_eq!(queue.number(&format!("select pcfarm.retry_job({job_id})")).await, retried);
            format!("retry {job_id}: {retried}")
        }
        _ => {
            let client = queue.server().await;
            pcfarm_sql::upkeep::exhaust_lanes(&*client, &jobs).await.expect("exhausted");
            let counted = pcfarm_sql::upkeep::count_progress(&*client).await.expect("counted");
            pcfarm_sql::upkeep::fold_progress(&*client, &counted).await.expect("folded");
            for job_id in jobs {
                let ended = queue.end(job_id).await;
                assert_eq!(ended.as_deref(), model.ends(job_id));
                if let Some(state) = model.ends(job_id) {
                    model.jobs.get_mut(&job_id).expect("known").state = state;
                }
            }
            "end".to_owned()
        }
    }
}

async fn compare(queue: &Queue, model: &Model) {
    let query = "select job_id, problem_id, state, attempts from pcfarm.job_problems";
    let mut seen = 0;
    for row in queue.client.query(query, &[]).await.expect("asked") {
        let job = &model.jobs[&row.get(0)];
        let problem = &job.problems[&row.get(1)];
        let state = match problem.state {
            State::Done => "done",
            State::Failed => "failed",
            State::Waiting | State::Held if job.state == "cancelled" => "cancelled",
            State::Held => "in_progress",
            State::Waiting => "waiting",
        };
        assert_eq!((row.get::<_, &str>(2), row.get::<_, i32>(3)), (state, problem.attempts), "{problem:?}");
        seen += 1;
    }
    assert_eq!(seen, model.jobs.values().map(|job| job.problems.len()).sum::<usize>());
    for row in queue.client.query("select job_id, state from pcfarm.job", &[]).await.expect("asked") {
        assert_eq!(row.get::<_, &str>(1), model.jobs[&row.get(0)].state);
    }
    queue.check().await;
}

async fn run(seed: u64) {
    let seed = std::env::var("PCFARM_TEST_SEED").map_or(seed, |text| text.parse().expect("a number"));
    println!("seed {seed}");
    let queue = queue().await;
    let (mut model, mut dice) = (Model { jobs: BTreeMap::new(), checkouts: Vec::new() }, Dice(seed));
    for number in 0..STEPS {
        let text = step(&queue, &mut model, &mut dice).await;
        if !text.is_empty() {
            println!("{number}: {text}");
            compare(&queue, &model).await;
        }
    }
    // And then all is brought to an end.
    for at in 0..model.checkouts.len() {
        model.closed(at, Closing::Finished);
        queue.close(&model.checkouts[at].0.clone(), Closing::Finished).await;
    }
    let jobs: Vec<JobId> = model.jobs.keys().copied().collect();
    for job_id in jobs {
        if model.jobs[&job_id].state == "held" {
            queue.run(&format!("select pcfarm.release_job({job_id})")).await;
        }
        for came_back in [false, true] {
            while let Some(held) = queue.take(job_id, came_back, usize::MAX).await {
                assert!(queue.finish(&held).await.closed);
            }
        }
        queue.end(job_id).await;
        assert!(["done", "failed", "cancelled"].contains(&queue.state(job_id).await.as_str()));
    }
    queue.check().await;
}

#[tokio::test]
async fn the_queue_does_what_the_model_does_1() {
    run(1).await;
}

#[tokio::test]
async fn the_queue_does_what_the_model_does_2() {
    run(0x5eed).await;
}

#[tokio::test]
async fn the_queue_does_what_the_model_does_3() {
    run(20_261_121).await;
}
