//! Stands in for `pcfarm_sql::submit` until that exists: the same names, types and meaning.

use pcfarm_proto::ids::JobId;
use tokio_postgres::{Client, Error};

/// Problems per convoy where none are given.
const DEFAULT_CONVOY: i32 = 100;

/// Which job gets the problems.
#[derive(Debug)]
pub enum Target {
    Job(JobId),
    /// `options` is a JSON object.
    New {
        name: String,
        job_type: String,
        options: String,
    },
}

#[derive(Debug)]
pub struct Submission {
    pub target: Target,
    pub query: String,
    pub convoy: Option<u32>,
    pub open: bool,
}

#[derive(Debug)]
pub struct Submitted {
    pub job: JobId,
    pub problems: i64,
    /// The idempotency key had been used for a job that is loaded; nothing was added.
    pub repeated: bool,
}

/// Creates, loads and opens in one transaction. A caller that gives up must drop the client.
pub async fn by_query(client: &Client, submission: &Submission) -> Result<Submitted, Error> {
    client.batch_execute("begin").await?;
    let submitted = in_transaction(client, submission).await?;
    client.batch_execute("commit").await?;
    Ok(submitted)
}

async fn in_transaction(client: &Client, submission: &Submission) -> Result<Submitted, Error> {
    let job = match &submission.target {
        Target::Job(job) => *job,
        Target::New { name, job_type, options } => {
            let create = "select pcfarm.create_job($1::text, $2::text, $3::text::jsonb)";
            JobId(client.query_one(create, &[name, job_type, options]).await?.try_get(0)?)
        }
    };
    if matches!(submission.target, Target::New { .. }) {
        let state = "select j.state = 'loading' from pcfarm.job j where j.job_id = $1";
        let is_new: bool = client.query_one(state, &[&job]).await?.try_get(0)?;
        if !is_new {
            return Ok(Submitted { job, problems: 0, repeated: true });
        }
    }
    let convoy = submission.convoy.map_or(DEFAULT_CONVOY, |convoy| i32::try_from(convoy).unwrap_or(i32::MAX));
    let load = "select pcfarm.load($1, $2::text, $3)";
    let problems = client.query_one(load, &[&job, &submission.query, &convoy]).await?.try_get(0)?;
    if submission.open {
        client.execute("select pcfarm.open_job($1)", &[&job]).await?;
    }
    Ok(Submitted { job, problems, repeated: false })
}
