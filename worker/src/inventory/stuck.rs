//! Controllers that do not return from revoked work, on every core at once.
//!
//! Owns how long that is borne. It never ends a thread: nobody can. A core that such a controller occupies is
//! lost until it returns; the others go on, and only when none is left is there something to decide.

use std::time::Duration;

use tracing::{error, info};

use super::held::Held;
use super::{Inventory, STUCK_PATIENCE};
use crate::work::CheckoutKey;

/// Problems that have not begun wait so long for a core. A controller that looks whether its work is cancelled returns sooner.
const UNBEGUN_PATIENCE: Duration = Duration::from_secs(1);

/// Since when every core is occupied by revoked work, if it is.
#[derive(Default)]
pub struct Stuck {
    since: Option<Duration>,
    /// The problems that have not begun were returned.
    returned: bool,
    noted: bool,
}

impl Inventory {
    /// What waits behind such controllers, or arrives in spite of all, goes back: without a time limit the
    /// server would wait for it for ever.
    pub(super) fn notice_stuck(&mut self, now: Duration, revoked_cores: u32) {
        if revoked_cores < self.profile.hello.cores {
            if std::mem::take(&mut self.stuck).noted {
                info!("a core has returned from revoked work");
            }
            return;
        }
        let since = *self.stuck.since.get_or_insert(now);
        if now >= since + UNBEGUN_PATIENCE {
            self.stuck.returned = true;
            self.return_whole_convoys(Option::is_none, "every core is occupied by revoked work");
        }
        if now < since + STUCK_PATIENCE {
            return;
        }
        if !std::mem::replace(&mut self.stuck.noted, true) {
            error!(
                revoked_cores,
                "no controller returns from revoked work: nothing can run until this agent is restarted"
            );
        }
        let hopeless: Vec<CheckoutKey> =
            self.held.values().filter(|held| held.is_computing()).map(|held| held.checkout.key).collect();
        self.give_back(&hopeless, "every core is occupied by revoked work that does not return");
    }

    pub(super) fn stuck_deadline(&self) -> Option<Duration> {
        let waited_for = self.held.values().any(Held::is_computing);
        let patience = if self.stuck.returned { STUCK_PATIENCE } else { UNBEGUN_PATIENCE };
        self.stuck.since.filter(|_| waited_for).map(|since| since + patience)
    }
}
