//! `pcfarm`: the admin CLI, a client of the server's gRPC services.
//!
//! - [`args`]: the command line; [`settings`]: what else decides which server is asked.
//! - [`farm`]: the connection; [`trace`]: whose doing it is a part of; [`exit`]: how errors end; [`output`], [`text`]: how answers look.
//! - A module per noun or verb: [`status`], [`workstations`], [`jobs`], [`wait`], [`results`], [`problems`],
//!   [`users`], [`types`], [`files`], [`profiles`], [`resources`], [`queue`], [`explain`],
//!   [`events`], [`alerts`], [`access`], [`schedules`], [`top`].
//! - [`load`] sends problems from files, [`query`] lets the database load what a query returns.
//! - [`up`] runs a farm on this machine. [`platform`]: what Windows does otherwise.

mod access;
mod alerts;
mod args;
mod clock;
mod events;
mod exit;
mod explain;
mod farm;
mod files;
mod fleet;
mod jobs;
mod load;
mod output;
#[cfg(unix)]
#[path = "platform/unix.rs"]
mod platform;
#[cfg(windows)]
#[path = "platform/windows.rs"]
mod platform;
mod presence;
mod problems;
mod profiles;
mod query;
mod queue;
mod resources;
mod results;
mod schedules;
mod selector;
mod settings;
mod slots;
mod statistics;
mod status;
mod text;
mod top;
mod trace;
mod types;
#[cfg(unix)]
mod up;
#[cfg(windows)]
#[path = "up/nowhere.rs"]
mod up;
mod usage;
mod users;
mod wait;
mod workstations;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{CommandFactory, Parser};

use args::{Cli, ClockVerb, ExplainVerb, JobVerb, SlotsVerb, UsersVerb, Verb};
use exit::Exit;
use farm::Farm;
use output::Output;
use settings::Settings;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let outcome = match runtime.context("starting the runtime") {
        Ok(runtime) => {
            let outcome = runtime.block_on(run(cli));
            // A thread may still wait for standard input, and nobody needs what it would read.
            runtime.shutdown_background();
            outcome
        }
        Err(error) => Err(error),
    };
    let exit = outcome.unwrap_or_else(|error| exit::report(&error));
    ExitCode::from(exit as u8)
}

async fn run(cli: Cli) -> Result<Exit> {
    let output = cli.global.output;
    // The verbs that need no server.
    match &cli.verb {
        Verb::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "pcfarm", &mut script);
            output::print(&String::from_utf8_lossy(&script))?;
            return Ok(Exit::Done);
        }
        Verb::Up(args) => return up::up(args, cli.global.insecure).await,
        Verb::Job(JobVerb::Load(args)) if args.query.is_some() => {
            query::load(args, &cli.global, Output::from_flag(output)?).await?;
            return Ok(Exit::Done);
        }
        _ => {}
    }
    if let Verb::Job(JobVerb::Results(args)) = &cli.verb {
        let form = results::Form::from_flag(output)?;
        let farm = Farm::connect(&Settings::resolve(&cli.global)?).await?;
        results::results(&farm, args, form).await?;
        return Ok(Exit::Done);
    }
    let output = Output::from_flag(output)?;
    let settings = Settings::resolve(&cli.global)?;
    let farm = Farm::connect(&settings).await?;
    match cli.verb {
        Verb::Status => status::show(&farm, output).await?,
        Verb::Workstations(args) => workstations::list(&farm, &args, output).await?,
        Verb::Jobs(args) => jobs::list(&farm, &args, output).await?,
        Verb::Job(verb) => return job(&farm, verb, output).await,
        Verb::Problems(args) => problems::list(&farm, &args, output).await?,
        Verb::Login(args) => access::login(&farm, &settings, args, output).await?,
        Verb::Logout => access::logout(&farm, output).await?,
        Verb::Whoami => access::who_am_i(&farm, output).await?,
        Verb::Tokens(verb) => access::tokens(&farm, verb, output).await?,
        Verb::JoinToken(verb) => access::join_tokens(&farm, verb, output).await?,
        Verb::Credentials(verb) => access::credentials(&farm, verb, output).await?,
        Verb::Users(UsersVerb::Accounts) => access::accounts(&farm, output).await?,
        Verb::Users(UsersVerb::Create(args)) => {
            settings.secret_may_be_told()?;
            access::create_user(&farm, args, output).await?;
        }
        Verb::Users(UsersVerb::Role { user, role }) => access::set_role(&farm, user, role, output).await?,
        Verb::Users(UsersVerb::Disable { user }) => access::set_disabled(&farm, user, true, output).await?,
        Verb::Users(UsersVerb::Enable { user }) => access::set_disabled(&farm, user, false, output).await?,
        Verb::Users(UsersVerb::Password(args)) => {
            settings.secret_may_be_told()?;
            access::set_password(&farm, args, output).await?;
        }
        Verb::Users(UsersVerb::List) => users::list(&farm, output).await?,
        Verb::Users(UsersVerb::Set(args)) => users::set(&farm, args, output).await?,
        Verb::Users(UsersVerb::Quota(args)) => users::quota(&farm, args, output).await?,
        Verb::Types(verb) => types::run(&farm, verb, output).await?,
        Verb::Files(verb) => files::run(&farm, verb, output).await?,
        Verb::Profiles(verb) => profiles::run(&farm, verb, output).await?,
        Verb::Resources(verb) => resources::run(&farm, verb, output).await?,
        Verb::Queue(verb) => queue::run(&farm, verb, output).await?,
        Verb::Select(args) => workstations::select(&farm, args, output).await?,
        Verb::Presence(args) => presence::run(&farm, args, output).await?,
        Verb::Statistics(args) => statistics::statistics(&farm, args, output).await?,
        Verb::Usage(args) => usage::usage(&farm, args, output).await?,
        Verb::Slots(SlotsVerb::List) => slots::list(&farm, output).await?,
        Verb::Slots(SlotsVerb::Start(args)) => slots::set(&farm, args, true, output).await?,
        Verb::Slots(SlotsVerb::Stop(args)) => slots::set(&farm, args, false, output).await?,
        Verb::Clock { verb: None } => clock::show(&farm, output).await?,
        Verb::Clock { verb: Some(ClockVerb::Accept) } => clock::accept(&farm, output).await?,
        Verb::Drain(args) => fleet::drain(&farm, args, output).await?,
        Verb::Undrain(args) => fleet::undrain(&farm, args, output).await?,
        Verb::Note(args) => fleet::note(&farm, args, output).await?,
        Verb::Wake(args) => fleet::wake(&farm, args, output).await?,
        Verb::Forget(args) => fleet::forget(&farm, args, output).await?,
        Verb::Explain(ExplainVerb::Job(args)) => explain::job(&farm, args.id, output).await?,
        Verb::Explain(ExplainVerb::Workstation { workstation }) => {
            explain::workstation(&farm, &workstation, output).await?;
        }
        Verb::Alerts(verb) => alerts::run(&farm, verb, output).await?,
        Verb::Schedules(verb) => schedules::run(&farm, verb, output).await?,
        Verb::Events(args) => events::events(&farm, &args, output).await?,
        Verb::Top(args) => top::top(&farm, &args, output).await?,
        Verb::Up(_) | Verb::Completions { .. } => unreachable!("handled above, without a server"),
    }
    Ok(Exit::Done)
}

async fn job(farm: &Farm, verb: JobVerb, output: Output) -> Result<Exit> {
    match verb {
        JobVerb::Create(args) => jobs::create(farm, &args, output).await?,
        JobVerb::Show(args) => jobs::show(farm, args.id, output).await?,
        JobVerb::Info(args) => jobs::info(farm, args, output).await?,
        JobVerb::Require(args) => jobs::require(farm, args, output).await?,
        JobVerb::Load(args) => load::load(farm, &args, output).await?,
        JobVerb::Open(args) => jobs::change(farm, jobs::Change::Open, args.id, output).await?,
        JobVerb::Hold(args) => jobs::change(farm, jobs::Change::Hold, args.id, output).await?,
        JobVerb::Release(args) => jobs::change(farm, jobs::Change::Release, args.id, output).await?,
        JobVerb::Cancel(args) => jobs::change(farm, jobs::Change::Cancel, args.id, output).await?,
        JobVerb::Retry(args) => jobs::change(farm, jobs::Change::Retry, args.id, output).await?,
        JobVerb::Wait(args) => return wait::wait(farm, args.id, output).await,
        JobVerb::Results(_) => unreachable!("handled above, with formats of its own"),
    }
    Ok(Exit::Done)
}
