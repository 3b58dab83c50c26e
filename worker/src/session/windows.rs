//! A session of Windows, as it tells its own processes. **Not yet tested.**
//!
//! Windows notifies nobody of input that has no window, so it is asked, often enough that whoever is back is noticed at once.

use std::time::{Duration, Instant};

use pcfarm_native::windows::{idle, leave_own_console, own_session, program_fills_screen};

use super::retry::Loss;
use super::{Agent, Ended, Never, SPEAK_EVERY, Sight};
use crate::clock;

pub const SOURCE: &str = "windows";

/// Half of what a person may wait.
const LOOK_EVERY: Duration = Duration::from_millis(500);

pub fn tell(agent: &mut Agent) -> Result<Never, Ended> {
    leave_own_console();
    let gone = |error: std::io::Error| {
        Ended::Session(Loss::Gone, format!("this session of Windows cannot be watched: {error}"))
    };
    if own_session().map_err(gone)? == 0 {
        let why = "nobody sits in the session of services: begin this in a person's".to_owned();
        return Err(Ended::Session(Loss::Unable, why));
    }
    let begun = clock::now();
    let mut before: Option<(Duration, Option<bool>)> = None;
    let mut said = Instant::now();
    loop {
        // In a session without any input so far Windows counts from its own start: somebody has just logged on.
        let idle = idle().map_err(gone)?.min(clock::now().saturating_sub(begun));
        let sight = (idle, program_fills_screen());
        let is_news = before.is_none_or(|(idle, full_screen)| sight.0 < idle || sight.1 != full_screen);
        if is_news || said.elapsed() >= SPEAK_EVERY {
            agent.hear(&Sight { source: SOURCE, idle: Ok(sight.0), full_screen: sight.1 })?;
            said = Instant::now();
        }
        before = Some(sight);
        std::thread::sleep(LOOK_EVERY);
    }
}
