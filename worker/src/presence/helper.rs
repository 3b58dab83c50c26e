//! What a helper in somebody's session says.
//!
//! Owns how far it is believed. Whoever says that somebody is there is always believed. That nobody is there follows from what it
//! says only if the agent runs as the same user, or the owner has said that every session has a helper.

use std::borrow::Cow;

use super::signals::{Input, Moment, Proves, Reading};

#[derive(Clone, Debug, PartialEq)]
pub struct Helper {
    /// Such as `x11`.
    pub source: String,
    /// The helper's user is the agent's.
    pub is_own: bool,
    pub at: Moment,
    /// When the session's person touched something last; or why that is not known.
    pub last: Result<Moment, String>,
    pub full_screen: Option<bool>,
}

impl Helper {
    pub fn input(&self, trusted: bool) -> Reading<Input> {
        let proves = if self.is_own || trusted { Proves::Absence } else { Proves::Presence };
        let says = self.last.clone().map(|last| Input { last, proves, bump: None, untold: false });
        Reading { source: Cow::Owned(self.source.clone()), at: self.at, says }
    }

    pub fn full_screen(&self) -> Option<Reading<bool>> {
        let says = Ok(self.full_screen?);
        Some(Reading { source: Cow::Owned(self.source.clone()), at: self.at, says })
    }
}
