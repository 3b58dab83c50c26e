//! The oracle: compares what the farm's database says, once everybody is well again, with what clients and agents wrote
//! down while they were not.

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::time::Instant;

use anyhow::Context;
use futures_util::SinkExt;
use tokio_postgres::Client;

use super::journal::{Known, Submission, Told, Verdict};
use crate::truth;
use pcfarm_sql::checks;

/// What was found. All of it is to be nothing.
#[derive(Debug, Default)]
pub struct Judgement {
    /// Problems that were submitted and have not ended as they should; results that were acknowledged and are not there.
    pub lost: Vec<String>,
    /// Problems that are there twice, or took effect twice.
    pub doubled: Vec<String>,
    /// Results of checkouts that had been revoked.
    pub applied_from_revoked: Vec<String>,
    /// Anything else that is not as it must be.
    pub wrong: Vec<String>,
    pub jobs: usize,
    pub problems: usize,
    pub verdicts: usize,
}

impl Judgement {
    /// All of it.
    pub fn found(&self) -> impl Iterator<Item = &String> {
        [&self.lost, &self.doubled, &self.applied_from_revoked, &self.wrong].into_iter().flatten()
    }

    pub fn is_clean(&self) -> bool {
        self.found().next().is_none()
    }
}

/// A time from which an acknowledgement is worth nothing, since the administrator restored a backup that is older.
#[derive(Clone, Copy, Debug)]
pub struct Void {
    pub from: Instant,
    pub to: Instant,
}

/// What real agents wrote down of a problem that they solved: checkout and key.
pub type Solved = HashSet<(i64, String)>;

/// Reads everything. `client` is connected to the farm's database, which does nothing any more.
pub async fn judge(
    client: &Client,
    submissions: &[Submission],
    told: &[Told],
    solved: &Solved,
    voids: &[Void],
) -> anyhow::Result<Judgement> {
    let mut judgement = Judgement { jobs: submissions.len(), verdicts: told.len(), ..Judgement::default() };
    judgement.problems = submissions.iter().map(|submission| submission.problems.len()).sum();
    client.batch_execute("set statement_timeout = 0; set search_path = public").await?;
    expect(client, submissions).await.context("writing down what is expected")?;
    for (found, queries) in [
        (&mut judgement.lost, LOST),
        (&mut judgement.doubled, DOUBLED),
        (&mut judgement.applied_from_revoked, APPLIED_FROM_REVOKED),
        (&mut judgement.wrong, WRONG),
    ] {
        for query in queries {
            for row in client.query(*query, &[]).await.with_context(|| format!("asking {query}"))? {
                found.push(row.get(0));
            }
        }
    }
    judgement.wrong.extend(truth::violations(client).await.context("looking for violations")?);
    for (name, query) in checks::INVARIANTS {
        let text = format!("select to_jsonb(v)::text from ({query}\n) v limit 10");
        for row in client.query(&text, &[]).await.with_context(|| format!("asking {name}"))? {
            judgement.wrong.push(format!("{name}: {}", row.get::<_, &str>(0)));
        }
    }
    verdicts(client, told, voids, &mut judgement).await?;
    authors(client, solved, &mut judgement).await?;
    Ok(judgement)
}

/// One row a problem of every submission, `known` what its client knows of it.
async fn expect(client: &Client, submissions: &[Submission]) -> anyhow::Result<()> {
    client
        .batch_execute(
            "create temp table expected (submission text not null, job_type text not null, known text not null,
                 cancelled text not null, job_id bigint, key text not null, payload jsonb not null)",
        )
        .await?;
    let mut sink = pin!(client.copy_in("copy expected from stdin").await?);
    for submission in submissions {
        let (known, job) = match submission.known {
            Known::Done(job) => ("done", job.to_string()),
            Known::Refused => ("refused", "\\N".to_owned()),
            Known::Started | Known::Unknown => ("unknown", "\\N".to_owned()),
        };
        let mut text = String::new();
        for (key, payload) in &submission.problems {
            let Submission { key: submission, job_type, cancelled, .. } = submission;
            text += &format!("{submission}\t{job_type}\t{known}\t{cancelled:?}\t{job}\t{key}\t{payload}\n");
        }
        sink.send(bytes::Bytes::from(text)).await?;
    }
    sink.finish().await?;
    client.batch_execute("create index on expected (submission, key); analyze expected").await?;
    Ok(())
}

/// A job that its client knows of is there, whole, and so is one that nobody knows of, if it is there; and all ended well,
/// but for those that were to be cancelled.
const LOST: &[&str] = &[
    "select format('%s: its client was told job %s, which is not there', e.submission, e.job_id)
     from (select distinct submission, job_id from expected where known = 'done') e
     left join pcfarm.job j on j.job_id = e.job_id and j.idempotency_key = e.submission
     where j.job_id is null",
    "select format('job %s lacks problem %s', j.job_id, e.key)
     from expected e join pcfarm.job j on j.idempotency_key = e.submission
     left join pcfarm.problem p on p.job_id = j.job_id and p.key = e.key and p.payload = e.payload
     where e.known <> 'refused' and p.problem_id is null",
    "select format('job %s (%s) problem %s has no solution: %s', j.job_id, j.state, p.key, r.message)
     from expected e join pcfarm.job j on j.idempotency_key = e.submission
     join pcfarm.problem p on p.job_id = j.job_id and p.key = e.key
     left join pcfarm.result r on r.job_id = p.job_id and r.problem_id = p.problem_id
     where e.known <> 'refused' and j.state <> 'cancelled' and r.failed is distinct from false",
    "select format('problem %s is done, and its write-back has not happened', p.key)
     from pcfarm.job j join pcfarm.problem p on p.job_id = j.job_id
     join pcfarm.result r on r.job_id = p.job_id and r.problem_id = p.problem_id and not r.failed
     left join chaos.applied a on a.key = p.key
     where j.job_type in ('counted', 'hasty') and a.key is null",
];

const DOUBLED: &[&str] = &[
    "select format('%s has jobs %s', j.idempotency_key, array_agg(j.job_id))
     from pcfarm.job j where j.idempotency_key is not null group by j.idempotency_key having count(*) > 1",
    "select format('job %s has problem %s %s times', p.job_id, p.key, count(*))
     from pcfarm.problem p group by p.job_id, p.key having count(*) > 1",
    "select format('problem %s took effect %s times', a.key, a.times) from chaos.applied a where a.times <> 1",
    "select format('problem %s: its write-back got %s of checkout %s, stored is %s of checkout %s', a.key, a.digest,
         a.checkout, r.solution ->> 'digest', r.checkout_id)
     from chaos.applied a join pcfarm.problem p on p.key = a.key
     join pcfarm.result r on r.job_id = p.job_id and r.problem_id = p.problem_id and not r.failed
     where a.digest is distinct from r.solution ->> 'digest' or a.checkout is distinct from r.checkout_id",
    "select format('%s took effect without a result', a.key) from chaos.applied a
     where not exists (select from pcfarm.problem p
         join pcfarm.result r on r.job_id = p.job_id and r.problem_id = p.problem_id and not r.failed
         where p.key = a.key)",
];

const APPLIED_FROM_REVOKED: &[&str] = &[
    "select format('problem %s: accepted %s after checkout %s was %s', r.problem_id, r.accepted_at - c.ended_at,
         c.checkout_id, c.ending)
     from pcfarm.result r join pcfarm.checkout c on c.checkout_id = r.checkout_id
     where not r.failed and r.accepted_at > c.ended_at",
    "select format('problem %s: committed %s after the revocation of checkout %s', r.problem_id,
         pg_xact_commit_timestamp(r.xmin) - pg_xact_commit_timestamp(c.xmin), c.checkout_id)
     from pcfarm.result r join pcfarm.checkout c on c.checkout_id = r.checkout_id
     where not r.failed and c.ending = 'revoked'
         and pg_xact_commit_timestamp(r.xmin) > pg_xact_commit_timestamp(c.xmin)",
    "select format('problem %s: computed under checkout %s, stored under %s', r.problem_id, r.solution ->> 'checkout',
         r.checkout_id)
     from pcfarm.result r where (r.solution ->> 'checkout')::bigint <> r.checkout_id",
];

const WRONG: &[&str] = &[
    "select format('%s was refused and job %s is there', e.submission, j.job_id)
     from (select distinct submission from expected where known = 'refused') e
     join pcfarm.job j on j.idempotency_key = e.submission",
    "select format('job %s problem %s was asked for by nobody', p.job_id, p.key)
     from pcfarm.problem p join pcfarm.job j on j.job_id = p.job_id
     left join expected e on e.submission = j.idempotency_key and e.key = p.key
     where e.key is null and j.name <> 'a sign of life'",
    "select format('job %s (%s) has not ended', j.job_id, j.state) from pcfarm.job j where j.ended_at is null",
    "select format('job %s is %s, and its client said %s', j.job_id, j.state, e.cancelled)
     from (select distinct submission, cancelled from expected) e
     join pcfarm.job j on j.idempotency_key = e.submission
     where j.state <> case e.cancelled when 'Done' then 'cancelled' when 'Asked' then j.state else 'done' end
         or j.state not in ('done', 'cancelled')",
];

/// What was acknowledged is there, under the checkout and by the author that it was acknowledged to; what was refused is
/// not.
async fn verdicts(client: &Client, told: &[Told], voids: &[Void], judgement: &mut Judgement) -> anyhow::Result<()> {
    // A verdict may come long after it was made, from a server that was frozen or over a link that was slow.
    let is_void = |told: &Told| voids.iter().any(|void| void.from <= told.at && told.delivered_at <= void.to);
    // Of a checkout that was revoked, what was stored before that rightly is, whatever its agent was told of the rest.
    let text = "select r.solution ->> 'author', array_agg(r.problem_id),
            count(*) filter (where not (c.ending = 'revoked' and r.accepted_at <= c.ended_at))
        from pcfarm.result r join pcfarm.checkout c on c.checkout_id = r.checkout_id
        where r.solution ? 'author' group by 1";
    let (mut stored, mut against): (HashMap<String, HashSet<i64>>, HashMap<String, i64>) = Default::default();
    for row in client.query(text, &[]).await? {
        let author: String = row.get(0);
        against.insert(author.clone(), row.get(2));
        stored.insert(author, row.get::<_, Vec<i64>>(1).into_iter().collect());
    }
    let nothing = HashSet::new();
    for told in told.iter().filter(|told| !is_void(told)) {
        let by_it = stored.get(&told.author).unwrap_or(&nothing);
        match told.verdict {
            Verdict::Accepted => {
                let missing = told.problems.iter().filter(|problem| !by_it.contains(problem)).count();
                if missing > 0 {
                    let all = told.problems.len();
                    judgement.lost.push(format!("{}: {missing} of {all} acknowledged results are gone", told.author));
                }
            }
            Verdict::Refused => {
                let count = against.get(&told.author).copied().unwrap_or(0);
                if count > 0 {
                    judgement.applied_from_revoked.push(format!("{}: {count} refused results are stored", told.author));
                }
            }
        }
    }
    Ok(())
}

/// Every solution was computed by somebody who wrote that down, and is right.
async fn authors(client: &Client, solved: &Solved, judgement: &mut Judgement) -> anyhow::Result<()> {
    let text = "select p.key, p.payload::text, r.checkout_id, r.solution ->> 'digest', r.solution ->> 'author'
        from pcfarm.result r join pcfarm.problem p on p.job_id = r.job_id and p.problem_id = r.problem_id
        join pcfarm.job j on j.job_id = r.job_id and j.name <> 'a sign of life'
        where not r.failed";
    for row in client.query(text, &[]).await? {
        let (key, payload, checkout): (&str, &str, i64) = (row.get(0), row.get(1), row.get(2));
        if row.get::<_, Option<&str>>(3) != Some(&crate::puzzle::digest(key, payload)) {
            judgement.wrong.push(format!("problem {key} has a wrong solution"));
        }
        let author: Option<&str> = row.get(4);
        if author.is_none() && !solved.contains(&(checkout, key.to_owned())) {
            judgement.wrong.push(format!("problem {key}: nobody has solved it under checkout {checkout}"));
        }
    }
    Ok(())
}

/// The journals of real agents: lines of what, checkout, attempt and key.
pub fn solved(journals: &[String]) -> Solved {
    let lines = journals.iter().flat_map(|journal| journal.lines());
    lines
        .filter_map(|line| {
            let mut words = line.splitn(4, ' ');
            let (what, checkout, _attempt, key) = (words.next()?, words.next()?, words.next()?, words.next()?);
            (what == "solved").then_some((checkout.parse().ok()?, key.to_owned()))
        })
        .collect()
}
