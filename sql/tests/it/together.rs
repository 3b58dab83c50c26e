//! Several servers at once, each doing what comes to its mind, with recyclers and people in between: no invariant is
//! broken, nobody deadlocks, and every job comes to its end.

use crate::queue::{Held, Queue, Told, acceptance, queue, take};
use pcfarm_proto::ids::{CheckoutId, JobId, WorkstationId};
use pcfarm_sql::checkout::{self, Closing};
use pcfarm_sql::{lanes, upkeep};
use std::cell::RefCell;

const OPERATIONS: u64 = 80;

/// A number for each step of each server, the same in every run.
fn dice(server: u64, step: u64, salt: u64) -> usize {
    let mut z = (server << 40) ^ (step << 8) ^ salt ^ 0x9e37_79b9_7f4a_7c15;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    usize::try_from((z ^ (z >> 31)) >> 33).expect("31 bits")
}

async fn serve(queue: &Queue, server: u64, jobs: &[JobId], out: &RefCell<Vec<Held>>) {
    let client = queue.server().await;
    for step in 0..OPERATIONS {
        let roll = |salt| dice(server, step, salt);
        let job_id = jobs[roll(1) % jobs.len()];
        // Everybody's checkouts are everybody's: an agent delivers to another server, a recycler knows no owner.
        let some: Vec<Held> = {
            let out = out.borrow();
            (0..3).filter_map(|n| out.get(roll(10 + n) % out.len().max(1)).cloned()).collect()
        };
        match roll(2) % 16 {
            0..=5 => {
                let lanes = lanes::open_lanes(&client).await.expect("lanes");
                let Some(lane) = lanes.get(roll(3) % lanes.len().max(1)) else { continue };
                if let Some(held) = take(&client, lane, 1 + roll(4) % 4, WorkstationId(1)).await {
                    out.borrow_mut().push(held);
                }
            }
            6..=9 => {
                let mut some = some;
                some.sort_by_key(|held| held.checkout_id);
                some.dedup_by_key(|held| held.checkout_id);
                let told: Vec<Vec<(usize, Told<'_>)>> = some
                    .iter()
                    .map(|held| {
                        let outcome = |n: usize| if (roll(5) + n).is_multiple_of(6) { Err("no") } else { Ok("1") };
                        (0..held.problems.len())
                            .filter(|n| !(roll(6) + n).is_multiple_of(5))
                            .map(|n| (n, outcome(n)))
                            .collect()
                    })
                    .collect();
                let deliveries: Vec<_> =
                    some.iter().zip(&told).map(|(held, told)| (held, &told[..], roll(7).is_multiple_of(2))).collect();
                checkout::accept(&client, "t", &acceptance(&deliveries)).await.expect("accepted");
            }
            10..=12 => {
                // In any order: it is the statement that sorts.
                let ids: Vec<CheckoutId> = some.iter().map(|held| held.checkout_id).collect();
                let how = [Closing::Lost, Closing::Finished, Closing::Unreceived][roll(8) % 3];
                checkout::close(&*client, &ids, how, "because").await.expect("closed");
            }
            13 => {
                upkeep::exhaust_lanes(&*client, jobs).await.expect("exhausted");
                let counted = upkeep::count_progress(&*client).await.expect("counted");
                upkeep::fold_progress(&*client, &counted).await.expect("folded");
                for job_id in jobs {
                    upkeep::end_jobs_if_empty(&*client, &[*job_id]).await.expect("asked");
                }
            }
            14 => {
                let load = format!(
                    "select pcfarm.load({job_id}, 'select ''n'' || g as key, ''1''::jsonb as payload from generate_series(1, 9) g', 3)"
                );
                // An ended job takes no more.
                drop(client.batch_execute(&load).await);
            }
            _ => {
                let call = ["hold_job", "release_job", "retry_job", "retry_job"][roll(9) % 4];
                if let Err(error) = client.batch_execute(&format!("select pcfarm.{call}({job_id})")).await {
                    let code = error.as_db_error().expect("an answer").code().code().to_owned();
                    assert_eq!(code, "55000", "{call}: {error:?}");
                }
            }
        }
    }
}

#[tokio::test]
async fn servers_work_together_without_harm() {
    let queue = queue().await;
    let mut jobs = Vec::new();
    for problems in [60, 120, 30] {
        jobs.push(queue.job(problems, 4).await);
    }
    let out = RefCell::new(Vec::new());
    let serve = |server| serve(&queue, server, &jobs, &out);
    tokio::join!(serve(1), serve(2), serve(3), serve(4), async {
        // What must hold holds at every moment, not only at the end.
        for _ in 0..20 {
            queue.check().await;
        }
        queue.run(&format!("select pcfarm.cancel_job({})", jobs[2])).await;
        for _ in 0..20 {
            queue.check().await;
        }
    });
    queue.check().await;
    for job_id in &jobs[..2] {
        queue.run(&format!("select case state when 'held' then pcfarm.release_job(job_id) end from pcfarm.job where job_id = {job_id}")).await;
    }
    let held: Vec<CheckoutId> = out.borrow().iter().map(|held| held.checkout_id).collect();
    checkout::close(&*queue.server().await, &held, Closing::Finished, "over").await.expect("closed");
    queue.check().await;
    for job_id in &jobs {
        for came_back in [false, true] {
            while let Some(held) = queue.take(*job_id, came_back, usize::MAX).await {
                assert!(queue.finish(&held).await.closed);
            }
        }
        queue.end(*job_id).await;
        assert!(["done", "failed", "cancelled"].contains(&queue.state(*job_id).await.as_str()));
    }
    queue.check().await;
}
