//! `pcfarm job load --query`: the database loads what a query returns, on the user's own connection and with
//! the user's rights. No server of the farm is involved.

use std::time::{Duration, Instant};

use anyhow::Result;
use pcfarm_sql::connect::pooler::{self, PoolerError};
use pcfarm_sql::connect::{self, ConnectError, ConnectionTask};
use pcfarm_sql::pool;
use pcfarm_sql::settings::DatabaseSettings;
use pcfarm_sql::submit::{self, Submission, Submitted, Target};
use serde::Serialize;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::args::{Global, LoadArgs};
use crate::exit::{Exit, Failure};
use crate::output::{self, Output};
use crate::{jobs, load, text, trace};

/// For the connection's end, with its reason.
const END_TIMEOUT: Duration = Duration::from_secs(5);

pub async fn load(args: &LoadArgs, global: &Global, output: Output) -> Result<()> {
    let mut submission = submission(args)?;
    if let Target::New { options, .. } = &mut submission.target {
        *options = trace::in_options(std::mem::take(options), trace::wanted(global).as_deref())?;
    }
    let settings = DatabaseSettings::resolve(args.database_url.as_deref())
        .map_err(|error| Failure::usage(format!("{:#}", anyhow::Error::new(error))))?;
    for warning in &settings.warnings {
        output::note(&format!("warning: {}", text::plain(warning)));
    }
    let started = Instant::now();
    let target = pool::session_of_user(settings.target);
    pooler::refuse_transaction_pooling(&target).await.map_err(behind_pooler)?;
    let (client, connection) = target.connect().await.map_err(not_connected)?;
    let submitted = run(&client, &target, &submission, global.timeout).await;
    drop(client);
    let submitted = finish(submitted, connection).await?;
    output.print(|| json(&submitted), || summary(&submitted, &submission, started.elapsed()))
}

fn submission(args: &LoadArgs) -> Result<Submission> {
    let target = match args.job {
        Some(job) => {
            load::no_options(&args.options)?;
            Target::Job(job)
        }
        None => Target::New {
            name: args.name.clone().unwrap_or_default(),
            job_type: args.job_type.clone().unwrap_or_default(),
            options: jobs::options(&args.options)?,
        },
    };
    let open = if args.job.is_some() { args.open } else { !args.no_open };
    let query = args.query.clone().unwrap_or_default();
    Ok(Submission { target, query, convoy: args.convoy, open })
}

/// The load, until it is done, its time is over or Ctrl-C. The database is told to stop, or it would go on.
async fn run(
    client: &Client,
    target: &connect::Target,
    submission: &Submission,
    limit: Option<Duration>,
) -> Result<Submitted> {
    let over = async {
        match limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    let failure = tokio::select! {
        submitted = submit::by_query(client, submission) => return submitted.map_err(|error| refused(&error)),
        () = over => Failure::of(Exit::TimedOut, "loading by query: not done within --timeout; nothing was loaded"),
        _ = tokio::signal::ctrl_c() => Failure::of(Exit::Failed, "interrupted; nothing was loaded"),
    };
    target.cancel(&client.cancel_token()).await;
    Err(failure)
}

/// A connection that broke says why; the statement on it only says that it was closed.
async fn finish(submitted: Result<Submitted>, connection: ConnectionTask) -> Result<Submitted> {
    let ended = tokio::time::timeout(END_TIMEOUT, connection.ended()).await;
    match (submitted, ended) {
        (Err(error), Ok(Err(why))) => Err(error.context(refused(&why).to_string())),
        (submitted, _) => submitted,
    }
}

fn behind_pooler(error: PoolerError) -> anyhow::Error {
    match error {
        PoolerError::Connect(error) => not_connected(error),
        other => Failure::of(Exit::Failed, format!("{:#}", anyhow::Error::new(other))),
    }
}

fn not_connected(error: ConnectError) -> anyhow::Error {
    let exit = match &error {
        ConnectError::Timeout { .. } | ConnectError::NoTls { .. } => Exit::NotReachable,
        ConnectError::NoClientCertificate { .. } => Exit::NotAllowed,
        ConnectError::Postgres { source, .. } => match source.code() {
            Some(&(SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION)) => Exit::NotAllowed,
            Some(&SqlState::INVALID_CATALOG_NAME) => Exit::NotFound,
            _ => Exit::NotReachable,
        },
    };
    let causes = anyhow::Error::new(error);
    let help = "name the database with --database-url or PCFARM_DATABASE_URL";
    Failure::of(exit, format!("{causes:#}; {help}"))
}

/// What the database says, with its hint, which tells what to do.
fn refused(error: &tokio_postgres::Error) -> anyhow::Error {
    let Some(said) = error.as_db_error() else {
        let exit = if error.is_closed() { Exit::NotReachable } else { Exit::Failed };
        let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
        let whether = "whether the problems were loaded is not known; see `pcfarm jobs`";
        return Failure::of(exit, format!("loading by query: {error}{}; {whether}", cause.unwrap_or_default()));
    };
    let mut message = format!("loading by query: {}", said.message());
    for more in [said.detail(), said.hint()].into_iter().flatten() {
        message.push('\n');
        message.push_str(more);
    }
    if said.code() == &SqlState::INVALID_SCHEMA_NAME || said.code() == &SqlState::UNDEFINED_FUNCTION {
        message.push_str("\nIs this the farm's database? Its server makes the schema pcfarm when it starts.");
    }
    Failure::of(exit_of(said.code()), message)
}

fn exit_of(code: &SqlState) -> Exit {
    match *code {
        // An undefined object is a job type that does not exist: as the server says it, an invalid argument.
        SqlState::INVALID_PARAMETER_VALUE | SqlState::UNDEFINED_OBJECT => Exit::Usage,
        SqlState::NO_DATA_FOUND => Exit::NotFound,
        SqlState::INSUFFICIENT_PRIVILEGE => Exit::NotAllowed,
        SqlState::QUERY_CANCELED => Exit::TimedOut,
        SqlState::ADMIN_SHUTDOWN | SqlState::CRASH_SHUTDOWN | SqlState::CANNOT_CONNECT_NOW => Exit::NotReachable,
        // raise … using errcode = 'no_data_found' is P0002, the name's meaning in PL/pgSQL.
        ref other if other.code() == "P0002" => Exit::NotFound,
        _ => Exit::Failed,
    }
}

#[derive(Serialize)]
struct SubmittedJson {
    job_id: String,
    problems: i64,
    repeated: bool,
}

fn json(submitted: &Submitted) -> SubmittedJson {
    SubmittedJson { job_id: submitted.job.to_string(), problems: submitted.problems, repeated: submitted.repeated }
}

fn summary(submitted: &Submitted, submission: &Submission, took: Duration) -> String {
    let id = submitted.job;
    if submitted.repeated {
        return format!("job {id} had been loaded under this idempotency key before; nothing was added");
    }
    let problems = text::counted(submitted.problems, "problem");
    let next = match (&submission.target, submission.open) {
        (Target::New { .. }, false) => {
            format!("\nit is still loading: `pcfarm job open {id}` starts it")
        }
        (Target::New { .. } | Target::Job(_), _) => String::new(),
    };
    format!("{problems} in job {id}, in {}{next}", text::duration(took))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_database_says_has_an_exit_code() {
        let cases = [
            ("22023", Exit::Usage),
            ("42704", Exit::Usage),
            ("P0002", Exit::NotFound),
            ("42501", Exit::NotAllowed),
            ("55000", Exit::Failed),
            ("23505", Exit::Failed),
            ("57P01", Exit::NotReachable),
        ];
        for (code, expected) in cases {
            assert_eq!(exit_of(&SqlState::from_code(code)), expected, "{code}");
        }
    }
}
