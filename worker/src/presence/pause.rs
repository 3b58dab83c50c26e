//! The owner's pause.
//!
//! Owns how long it lasts, over restarts as well. It is counted on the clock that no change of the wall clock moves.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use jiff::{Timestamp, ToSpan, Zoned};

use super::signals::Moment;

const FILE: &str = "pause";

/// Nobody remembers a longer one.
const LONGEST: Duration = Duration::from_secs(7 * 86_400);

/// The hour at which a night is over.
const MORNING: i8 = 8;

/// What the owner asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    For(Duration),
    UntilTomorrow,
    /// Until the next morning.
    Tonight,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no pause: 30m, 1h, 2d (a week at most), until-tomorrow or tonight")]
pub struct NoPause(String);

impl FromStr for Wish {
    type Err = NoPause;

    fn from_str(text: &str) -> Result<Wish, NoPause> {
        match text {
            "until-tomorrow" | "tomorrow" => return Ok(Wish::UntilTomorrow),
            "tonight" | "not-tonight" => return Ok(Wish::Tonight),
            _ => {}
        }
        let wrong = || NoPause(text.to_owned());
        let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(wrong)?;
        let unit = match unit {
            "m" => 60,
            "h" => 3600,
            "d" => 86_400,
            _ => return Err(wrong()),
        };
        let seconds =
            number.parse::<u32>().ok().and_then(|number| u64::from(number).checked_mul(unit)).ok_or_else(wrong)?;
        let wish = Duration::from_secs(seconds);
        if wish.is_zero() || wish > LONGEST { Err(wrong()) } else { Ok(Wish::For(wish)) }
    }
}

impl Wish {
    /// How long that is, from now on.
    pub fn lasts(self, now: &Zoned) -> Duration {
        let until = match self {
            Wish::For(time) => return time,
            Wish::UntilTomorrow => now.tomorrow().and_then(|tomorrow| tomorrow.start_of_day()),
            Wish::Tonight => {
                let morning = |day: &Zoned| day.with().hour(MORNING).minute(0).second(0).subsec_nanosecond(0).build();
                match morning(now) {
                    Ok(today) if today > *now => Ok(today),
                    Ok(_) | Err(_) => now.checked_add(1.day()).and_then(|tomorrow| morning(&tomorrow)),
                }
            }
        };
        let left = until.map(|until| until.duration_since(now));
        // No calendar is that long.
        left.ok().and_then(|left| Duration::try_from(left).ok()).unwrap_or(LONGEST).min(LONGEST)
    }
}

/// A pause, or none, and where it is kept.
pub struct Pause {
    file: PathBuf,
    until: Option<Until>,
}

#[derive(Clone)]
struct Until {
    moment: Moment,
    /// As people read it.
    text: String,
}

impl Pause {
    /// The one that was left, if it is not over. One that nobody can read is over.
    pub fn open(state_dir: &Path, now: Moment, wall: &Zoned) -> Pause {
        let file = state_dir.join(FILE);
        let until = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse::<Timestamp>().ok());
        let left = until.and_then(|until| Duration::try_from(until.duration_since(wall.timestamp())).ok());
        // The wall clock may have been set meanwhile.
        let left = left.filter(|left| !left.is_zero()).map(|left| left.min(LONGEST));
        let until = left.map(|left| Until { moment: now + left, text: in_words(wall, left) });
        Pause { file, until }
    }

    /// Lasts even if it cannot be kept, until the agent ends.
    pub fn begin(&mut self, wish: Wish, now: Moment, wall: &Zoned) -> io::Result<()> {
        let lasts = wish.lasts(wall);
        self.until = Some(Until { moment: now + lasts, text: in_words(wall, lasts) });
        let until = wall.timestamp().checked_add(lasts).map_err(io::Error::other)?;
        fs::write(&self.file, format!("{until}\n"))
    }

    pub fn end(&mut self) -> io::Result<()> {
        self.until = None;
        match fs::remove_file(&self.file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Until when, in words, if it lasts.
    pub fn now(&self, now: Moment) -> Option<String> {
        self.until.as_ref().filter(|until| now < until.moment).map(|until| until.text.clone())
    }
}

fn in_words(wall: &Zoned, left: Duration) -> String {
    wall.checked_add(left)
        .map_or_else(|_| "for long".to_owned(), |until| format!("until {}", until.strftime("%F %H:%M")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Zoned {
        format!("{text}[Europe/Berlin]").parse().expect("a time")
    }

    #[test]
    fn wishes_last_as_long_as_they_say() {
        let hours = |hours: u64| Duration::from_secs(hours * 3600);
        for (wish, now, expected) in [
            ("1h", "2026-11-22T20:00", hours(1)),
            ("30m", "2026-11-22T20:00", hours(1) / 2),
            ("until-tomorrow", "2026-11-22T20:00", hours(4)),
            ("tonight", "2026-11-22T20:00", hours(12)),
            ("tonight", "2026-11-22T02:00", hours(6)),
            // The night in which clocks are set forward.
            ("tonight", "2026-03-28T20:00", hours(11)),
        ] {
            assert_eq!(wish.parse::<Wish>().map(|wish| wish.lasts(&at(now))), Ok(expected), "{wish} at {now}");
        }
        for wrong in ["", "h", "0h", "8d", "-1h", "1y", "1.5h", "99999999999h", "soon", "1ä"] {
            assert_eq!(wrong.parse::<Wish>(), Err(NoPause(wrong.to_owned())));
        }
    }

    #[test]
    fn it_ends_by_the_clock_that_nobody_sets_and_outlives_the_agent() {
        let dir = tempfile::tempdir().expect("a directory");
        let (start, wall, hour) = (Duration::from_secs(100), at("2026-11-22T20:00"), Duration::from_secs(3600));
        let mut pause = Pause::open(dir.path(), start, &wall);
        assert_eq!(pause.now(start), None);
        pause.begin(Wish::For(hour), start, &wall).expect("it is kept");
        assert_eq!(pause.now(start).as_deref(), Some("until 2026-11-22 21:00"));
        assert_eq!(pause.now(start + hour), None);
        // The machine was started anew.
        let again = Pause::open(dir.path(), Duration::from_secs(5), &at("2026-11-22T20:50"));
        assert_eq!(again.now(Duration::from_secs(604)).as_deref(), Some("until 2026-11-22 21:00"));
        assert_eq!(again.now(Duration::from_secs(605)), None);
        assert_eq!(Pause::open(dir.path(), start, &at("2026-11-22T21:00")).now(start), None);
        pause.end().expect("forgotten");
        pause.end().expect("forgotten already");
        assert_eq!(Pause::open(dir.path(), start, &wall).now(start), None);
    }
}
