//! Users: their limits and turns, and what they have.

use anyhow::Result;
use pcfarm_proto::v1::{
    Limits, ListQuotasRequest, ListQuotasResponse, ListUsersRequest, ListUsersResponse, Quota, SetLimitsRequest,
    SetQuotaRequest, User,
};
use serde::Serialize;

use crate::args::sharing::{Cap, Limit, Period, QuotaArgs, SetLimitsArgs};
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
    let SetLimitsArgs { users, defaults: _, job_type, queue_limit, concurrency, allocation, prohibited, version } =
        args;
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
        version,
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

/// Shows quotas, after having changed them if something is to be changed.
pub async fn quota(farm: &Farm, args: QuotaArgs, output: Output) -> Result<()> {
    let QuotaArgs { users, per, problems, cpu_seconds, version } = args;
    let mut client = farm.queue();
    let found = match per {
        None => farm.call("listing quotas", client.list_quotas(farm.request(ListQuotasRequest { users }))).await?,
        Some(per) => {
            let most = |cap: Option<Cap>| match cap {
                Some(Cap::Most(most)) => Some(most),
                Some(Cap::None) | None => None,
            };
            let given = [("problems", problems), ("cpu_seconds", cpu_seconds)];
            let reset = given.iter().filter(|(_, cap)| *cap == Some(Cap::None)).map(|(name, _)| (*name).to_owned());
            let request = SetQuotaRequest {
                users,
                period: match per {
                    Period::Day => "day",
                    Period::Month => "month",
                }
                .to_owned(),
                problems: most(problems),
                cpu_seconds: most(cpu_seconds).map(|seconds| seconds as f64),
                reset: reset.collect(),
                version,
            };
            farm.call("setting quotas", client.set_quota(farm.request(request))).await?
        }
    };
    output.print(|| quotas_json(&found), || quotas_table(&found))
}

fn quotas_table(found: &ListQuotasResponse) -> String {
    let columns = [
        Column::Text("USER"),
        Column::Text("PER"),
        Column::Number("PROBLEMS"),
        Column::Number("LOADED"),
        Column::Number("CPU SECONDS"),
    ];
    let row = |user: &str, quota: &Quota| {
        vec![
            cut(user, 30),
            quota.period.clone(),
            quota.problems.map(text::number).unwrap_or_default(),
            text::number(quota.used),
            quota.cpu_seconds.map(|seconds| text::number(seconds.round() as i64)).unwrap_or_default(),
        ]
    };
    let rows = found.users.iter().flat_map(|of| of.quotas.iter().map(move |quota| row(&of.user, quota)));
    output::table(&columns, rows.collect(), "no quotas: they may load as much as they like")
}

fn quotas_json(found: &ListQuotasResponse) -> QuotasJson<'_> {
    let quota = |quota: &Quota| QuotaJson {
        period: quota.period.clone(),
        problems: quota.problems,
        cpu_seconds: quota.cpu_seconds,
        used: quota.used,
    };
    let users = found.users.iter().map(|of| UserQuotasJson {
        user: &of.user,
        quotas: of.quotas.iter().map(quota).collect(),
        version: &of.version,
    });
    QuotasJson { users: users.collect() }
}

#[derive(Serialize)]
struct QuotasJson<'a> {
    users: Vec<UserQuotasJson<'a>>,
}

#[derive(Serialize)]
struct UserQuotasJson<'a> {
    user: &'a str,
    quotas: Vec<QuotaJson>,
    version: &'a str,
}

#[derive(Serialize)]
struct QuotaJson {
    period: String,
    problems: Option<i64>,
    cpu_seconds: Option<f64>,
    used: i64,
}

#[derive(Serialize)]
struct UsersJson<'a> {
    defaults: LimitsJson,
    users: Vec<UserJson<'a>>,
    /// Of the defaults.
    version: &'a str,
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
    version: &'a str,
}

#[derive(Serialize)]
struct UserJobTypeJson<'a> {
    job_type: &'a str,
    #[serde(flatten)]
    limits: LimitsJson,
}

fn json(found: &ListUsersResponse) -> UsersJson<'_> {
    UsersJson {
        defaults: limits_json(found.defaults),
        users: found.users.iter().map(user_json).collect(),
        version: &found.version,
    }
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
        version: &user.version,
    }
}

fn limits_json(limits: Option<Limits>) -> LimitsJson {
    let Limits { queue_limit, concurrency, allocation } = limits.unwrap_or_default();
    LimitsJson { queue_limit, concurrency, allocation }
}
