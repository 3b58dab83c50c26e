//! Users: their limits and turns, and what they have.

use anyhow::Result;
use pcfarm_proto::v1::{Limits, ListUsersRequest, ListUsersResponse, SetLimitsRequest, User};
use serde::Serialize;

use crate::args::sharing::{Limit, SetLimitsArgs};
use crate::farm::Farm;
use crate::output::{self, Column, Output};
use crate::text::{self, cut};

pub async fn list(farm: &Farm, output: Output) -> Result<()> {
    let mut client = farm.queue();
    let call = client.list_users(farm.request(ListUsersRequest {}));
    let users = farm.call("listing users", call).await?;
    show(&users, output)
}

pub async fn set(farm: &Farm, args: SetLimitsArgs, output: Output) -> Result<()> {
    let SetLimitsArgs { users, defaults: _, job_type, queue_limit, concurrency, allocation, prohibited } = args;
    let most = |limit: Option<Limit>| match limit {
        Some(Limit::Most(most)) => Some(most),
        Some(Limit::Default) | None => None,
    };
    let given = [("queue_limit", queue_limit), ("concurrency", concurrency), ("allocation", allocation)];
    let reset = given.iter().filter(|(_, limit)| *limit == Some(Limit::Default)).map(|(name, _)| (*name).to_owned());
    let request = SetLimitsRequest {
        users,
        job_type: job_type.unwrap_or_default(),
        limits: Some(Limits {
            queue_limit: most(queue_limit),
            concurrency: most(concurrency),
            allocation: most(allocation),
        }),
        reset: reset.collect(),
        prohibited,
    };
    let mut client = farm.queue();
    let call = client.set_limits(farm.request(request));
    let users = farm.call("setting limits", call).await?;
    show(&users, output)
}

fn show(found: &ListUsersResponse, output: Output) -> Result<()> {
    output.print(|| json(found), || table(found))
}

fn table(found: &ListUsersResponse) -> String {
    let columns = [
        Column::Text("USER"),
        Column::Text("TYPE"),
        Column::Number("WAITING"),
        Column::Number("QUEUE LIMIT"),
        Column::Number("IN PROGRESS"),
        Column::Number("CONCURRENCY"),
        Column::Number("ALLOCATION"),
        Column::Number("OPEN JOBS"),
        Column::Text(""),
    ];
    let limit = |own: Option<i64>, otherwise: &str| own.map_or_else(|| otherwise.to_owned(), text::number);
    let defaults = found.defaults.unwrap_or_default();
    let mut rows = vec![vec![
        "(default)".to_owned(),
        String::new(),
        String::new(),
        limit(defaults.queue_limit, "–"),
        String::new(),
        limit(defaults.concurrency, "–"),
        limit(defaults.allocation, "–"),
        String::new(),
        String::new(),
    ]];
    for user in &found.users {
        let own = user.limits.unwrap_or_default();
        rows.push(vec![
            cut(&user.name, 24),
            String::new(),
            text::number(user.waiting),
            limit(own.queue_limit, ""),
            text::number(user.in_progress),
            limit(own.concurrency, ""),
            limit(own.allocation, ""),
            text::number(user.open_jobs),
            if user.prohibited { "prohibited".to_owned() } else { String::new() },
        ]);
        for of_type in &user.job_types {
            let own = of_type.limits.unwrap_or_default();
            rows.push(vec![
                String::new(),
                cut(&of_type.job_type, 20),
                String::new(),
                limit(own.queue_limit, ""),
                String::new(),
                limit(own.concurrency, ""),
                limit(own.allocation, ""),
                String::new(),
                String::new(),
            ]);
        }
    }
    output::table(&columns, rows, "no users")
}

#[derive(Serialize)]
struct UsersJson<'a> {
    defaults: LimitsJson,
    users: Vec<UserJson<'a>>,
}

#[derive(Serialize)]
struct LimitsJson {
    queue_limit: Option<i64>,
    concurrency: Option<i64>,
    allocation: Option<i64>,
}

#[derive(Serialize)]
struct UserJson<'a> {
    name: &'a str,
    #[serde(flatten)]
    limits: LimitsJson,
    prohibited: bool,
    waiting: i64,
    in_progress: i64,
    open_jobs: i64,
    job_types: Vec<UserJobTypeJson<'a>>,
}

#[derive(Serialize)]
struct UserJobTypeJson<'a> {
    job_type: &'a str,
    #[serde(flatten)]
    limits: LimitsJson,
}

fn json(found: &ListUsersResponse) -> UsersJson<'_> {
    UsersJson { defaults: limits_json(found.defaults), users: found.users.iter().map(user_json).collect() }
}

fn user_json(user: &User) -> UserJson<'_> {
    UserJson {
        name: &user.name,
        limits: limits_json(user.limits),
        prohibited: user.prohibited,
        waiting: user.waiting,
        in_progress: user.in_progress,
        open_jobs: user.open_jobs,
        job_types: user
            .job_types
            .iter()
            .map(|one| UserJobTypeJson { job_type: &one.job_type, limits: limits_json(one.limits) })
            .collect(),
    }
}

fn limits_json(limits: Option<Limits>) -> LimitsJson {
    let Limits { queue_limit, concurrency, allocation } = limits.unwrap_or_default();
    LimitsJson { queue_limit, concurrency, allocation }
}
