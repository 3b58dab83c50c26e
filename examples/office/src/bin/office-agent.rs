//! The agent of the office's workstations. It takes what is to be mailed where `OFFICE_SMTP_URL` and `OFFICE_MAIL_FROM` name
//! a relay and a sender.

use pcfarm_office::enrolment::{Enrolment, EnrolmentFile};
use pcfarm_office::mail::Post;
use pcfarm_office::message::{Mailing, Report, SingleMessage};
use pcfarm_worker::Agent;
use pcfarm_worker::builtin::Echo;
use std::process::ExitCode;

fn main() -> ExitCode {
    let agent = Agent::new().controller(EnrolmentFile).controller(Enrolment).controller(Mailing).controller(Echo);
    match Post::from_environment() {
        Ok(Some(post)) => agent.controller(SingleMessage(post.clone())).controller(Report(post)).run(),
        Ok(None) => agent.run(),
        Err(error) => {
            eprintln!("office-agent: {error:#}");
            ExitCode::from(2)
        }
    }
}
