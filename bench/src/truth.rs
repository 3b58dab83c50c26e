//! What must be true of a farm's database: queries that return no rows, and results compared with what the same
//! problems give without a farm.

use pcfarm_proto::ids::JobId;
use tokio_postgres::Client;

use crate::puzzle::digest;

/// An invariant: what it says, and what breaks it. The query returns text, one row per violation.
pub struct Invariant {
    pub name: &'static str,
    pub violations: &'static str,
}

/// True at any moment.
pub const INVARIANTS: &[Invariant] = &[
    Invariant {
        name: "every problem of an ended job is done, failed or cancelled",
        violations: "select format('job %s (%s) problem %s has no result', p.job_id, j.state, p.problem_id)
            from pcfarm.problem p join pcfarm.job j on j.job_id = p.job_id and j.state in ('done', 'failed')
            left join pcfarm.result r on r.job_id = p.job_id and r.problem_id = p.problem_id
            where r.problem_id is null",
    },
    Invariant {
        name: "a job is failed if a problem is, and done otherwise",
        violations: "select format('job %s is %s with %s failed', j.job_id, j.state, f.n) from pcfarm.job j
            cross join lateral (select count(*) as n from pcfarm.result r where r.job_id = j.job_id and r.failed) f
            where j.state = 'done' and f.n > 0 or j.state = 'failed' and f.n = 0",
    },
    Invariant {
        name: "every result is of a problem",
        violations: "select format('job %s result of problem %s, which is none', r.job_id, r.problem_id)
            from pcfarm.result r
            left join pcfarm.problem p on p.job_id = r.job_id and p.problem_id = r.problem_id
            where p.problem_id is null",
    },
    Invariant {
        name: "every result is of a checkout that held its problem",
        violations: "select format('job %s problem %s has its result from checkout %s, which did not hold it',
                r.job_id, r.problem_id, r.checkout_id)
            from pcfarm.result r
            left join (select distinct h.checkout_id, h.problem_id from pcfarm.held_problem h) h
                on h.checkout_id = r.checkout_id and h.problem_id = r.problem_id
            where h.problem_id is null",
    },
    Invariant {
        // Revoking a checkout may itself fail a problem whose attempts are used up, at about the same time.
        name: "nothing is accepted from a checkout that has ended",
        violations: "select format('job %s problem %s: accepted %s after checkout %s was %s', r.job_id, r.problem_id,
                r.accepted_at - c.ended_at, c.checkout_id, c.ending)
            from pcfarm.result r join pcfarm.checkout c on c.checkout_id = r.checkout_id
            where r.accepted_at > c.ended_at + case when r.failed then interval '1 second' else interval '0' end",
    },
    Invariant {
        name: "a solution was computed under the checkout that it is accepted under",
        violations: "select format('job %s problem %s: computed under %s, accepted under %s', r.job_id, r.problem_id,
                r.solution ->> 'checkout', r.checkout_id)
            from pcfarm.result r where (r.solution ->> 'checkout')::bigint <> r.checkout_id",
    },
    Invariant {
        name: "an ended job has no live checkout",
        violations: "select format('job %s (%s) checkout %s lives', j.job_id, j.state, c.checkout_id)
            from pcfarm.job j join pcfarm.checkout c on c.job_id = j.job_id
            where j.ended_at is not null and c.ended_at is null",
    },
    Invariant {
        name: "counts are what is",
        violations: "select format('job %s: counted %s done and %s failed, there are %s and %s', j.job_id, p.done,
                p.failed, r.done, r.failed)
            from pcfarm.job j
            cross join lateral (select coalesce(sum(p.done), 0) as done, coalesce(sum(p.failed), 0) as failed
                from pcfarm.progress p where p.job_id = j.job_id) p
            cross join lateral (select count(*) filter (where not r.failed) as done,
                count(*) filter (where r.failed) as failed from pcfarm.result r where r.job_id = j.job_id) r
            where p.done <> r.done or p.failed <> r.failed",
    },
    Invariant {
        name: "a lane's checkouts follow one another without gap or overlap, in the order in which they were made",
        violations:
            "select format('lane %s of job %s: checkout %s from %s to %s after %s, which ended at %s', s.lane_id,
                s.job_id, s.checkout_id, s.from_order, s.to_order, s.before, s.end_before)
            from (select c.*, lag(c.to_order) over lane as end_before, lag(c.checkout_id) over lane as before
                  from pcfarm.checkout c window lane as (partition by c.job_id, c.lane_id order by c.from_order)) s
            where s.from_order <> coalesce(s.end_before, 0) or s.before > s.checkout_id",
    },
    Invariant {
        name: "a checkout is never of nothing",
        violations: "select format('checkout %s says %s problems and holds %s', c.checkout_id, c.problems, h.n)
            from pcfarm.checkout c
            cross join lateral (select count(*) as n from pcfarm.held_problem h where h.checkout_id = c.checkout_id) h
            where h.n <> c.problems",
    },
    Invariant {
        name: "failed attempts are only of live checkouts",
        violations: "select format('failed attempt of problem %s under checkout %s, which was %s', f.problem_id,
                f.checkout_id, c.ending)
            from pcfarm.failed_attempt f
            join pcfarm.checkout c on c.checkout_id = f.checkout_id
            where c.ended_at is not null and c.reason <> 'the job was cancelled'",
    },
    Invariant {
        name: "a problem is in one live checkout at most",
        violations: "select format('job %s problem %s is in checkouts %s', h.job_id, h.problem_id,
                array_agg(h.checkout_id))
            from pcfarm.held_problem h join pcfarm.checkout c on c.checkout_id = h.checkout_id and c.ended_at is null
            group by h.job_id, h.problem_id having count(*) > 1",
    },
];

/// Everything that is not as it must be, in words.
pub async fn violations(client: &Client) -> Result<Vec<String>, tokio_postgres::Error> {
    let mut found = Vec::new();
    for Invariant { name, violations } in INVARIANTS {
        for row in client.query(&format!("select * from ({violations}) v limit 10"), &[]).await? {
            found.push(format!("{name}: {}", row.get::<_, &str>(0)));
        }
    }
    Ok(found)
}

/// Solutions of a job that are not what its problems give without a farm.
pub async fn wrong_digests(client: &Client, job: JobId) -> Result<Vec<String>, tokio_postgres::Error> {
    let text = "select p.key, p.payload::text, r.solution ->> 'digest' from pcfarm.problem p
        join pcfarm.result r on r.job_id = p.job_id and r.problem_id = p.problem_id and not r.failed
        where p.job_id = $1";
    let rows = client.query(text, &[&job]).await?;
    let wrong = rows.iter().filter_map(|row| {
        let (key, payload, solution): (&str, &str, Option<&str>) = (row.get(0), row.get(1), row.get(2));
        let right = digest(key, payload);
        (solution != Some(&right)).then(|| format!("problem {key:?}: {solution:?} instead of {right}"))
    });
    Ok(wrong.collect())
}
