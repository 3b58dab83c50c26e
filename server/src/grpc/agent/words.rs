//! When an agent is told about its lease: after its messages, and while a long message is on its way.

use crate::farm::Farm;
use crate::session::Session;
use pcfarm_proto::OUTAGE;
use std::future::pending;
use std::pin::Pin;
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep};
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

/// Marks a refusal that comes from an outage of the database. While it lasts, no server declares a workstation dead, so that an
/// agent need not stop its programs.
pub fn outage_told(farm: &Farm, mut refused: Status) -> Status {
    if refused.code() == Code::Unavailable && farm.recorded().is_none() {
        refused.metadata_mut().insert(OUTAGE, MetadataValue::from_static("true"));
    }
    refused
}

/// Timer of one session's words. It costs nothing while the workstation holds nothing.
pub struct Words {
    wait: Duration,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Words {
    pub fn new(wait: Duration) -> Words {
        Words { wait, timer: None }
    }

    /// Tells the agent about its lease if that is due.
    pub fn tell(&mut self, farm: &Farm, session: &Session) {
        if session.say_word(|| farm.recorded()) {
            let due = Instant::now() + self.wait;
            match &mut self.timer {
                Some(timer) => timer.as_mut().reset(due),
                None => self.timer = Some(Box::pin(sleep(self.wait))),
            }
        }
    }

    /// Waits until bytes of an unfinished message are worth a word, and tells the agent.
    pub async fn unfinished(&mut self) {
        match &mut self.timer {
            Some(timer) => timer.as_mut().await,
            None => pending().await,
        }
    }

    /// Tells the agent about its lease after [`Words::unfinished`].
    pub fn tell_unfinished(&mut self, farm: &Farm, session: &Session) {
        self.timer = (session.holds() > 0).then(|| Box::pin(sleep(self.wait)));
        self.tell(farm, session);
    }
}
