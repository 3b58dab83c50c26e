//! The owner's pause, and that of whoever else has an account.
//!
//! Owns how long it lasts, over restarts as well, and who may end it. It is counted on the clock that no change of the wall clock moves.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use jiff::{Timestamp, ToSpan, Zoned};
use tracing::warn;

use super::disk::Kept;
use super::signals::Moment;
use crate::platform::CALLERS;

const FILE: &str = "pause";

/// In place of who has paused it.
const UNKNOWN: &str = "unknown";

/// More people do not share a desk.
const PAUSERS_LIMIT: usize = 64;

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

/// Those who may pause it and have, and where that is kept. Each has a pause of their own: nobody's is ended, or shortened, by another.
pub struct Pauses {
    file: PathBuf,
    by: BTreeMap<Pauser, Until>,
}

/// One of those that the agent tells apart at its socket; or, none, nobody knows who.
type Pauser = Option<u32>;

/// Who calls.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub number: u32,
    /// May end everybody's.
    pub is_administrator: bool,
}

#[derive(Clone)]
struct Until {
    moment: Moment,
    /// On the wall.
    at: Timestamp,
    /// As people read it.
    text: String,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("paused by {0}: only who has paused it ends that, or an administrator of this machine")]
pub struct NotYours(String);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many people have paused it")]
pub struct TooMany;

impl Pauses {
    /// Those that were left and are not over. Who cannot read what was left takes it that it is paused, until tomorrow.
    pub fn open(state_dir: &Path, now: Moment, wall: &Zoned) -> Pauses {
        let file = state_dir.join(FILE);
        let (left, trouble) = match read(&file) {
            Ok(left) => (left, None),
            Err(why) => (Vec::new(), Some(why)),
        };
        let mut pauses = Pauses { file, by: BTreeMap::new() };
        for (at, by) in left {
            // The wall clock may have been set meanwhile.
            let left = Duration::try_from(at.duration_since(wall.timestamp())).ok().map(|left| left.min(LONGEST));
            if let Some(left) = left.filter(|left| !left.is_zero()) {
                pauses.by.insert(by, Until { moment: now + left, at, text: in_words(wall, left) });
            }
        }
        if let Some(why) = trouble {
            warn!(why, "what was left of pauses cannot be read: it is paused until tomorrow");
            let left = Wish::UntilTomorrow.lasts(wall);
            let at = wall.timestamp().checked_add(left).unwrap_or(Timestamp::MAX);
            let text = format!("{}, as what was left of a pause cannot be read", in_words(wall, left));
            pauses.by.insert(None, Until { moment: now + left, at, text });
        }
        pauses
    }

    /// In place of an earlier one of the same.
    pub fn begin(&mut self, by: u32, wish: Wish, now: Moment, wall: &Zoned) -> Result<(), TooMany> {
        self.by.retain(|_, until| now < until.moment);
        if self.by.len() >= PAUSERS_LIMIT && !self.by.contains_key(&Some(by)) {
            return Err(TooMany);
        }
        let lasts = wish.lasts(wall);
        let at = wall.timestamp().checked_add(lasts).unwrap_or(Timestamp::MAX);
        self.by.insert(Some(by), Until { moment: now + lasts, at, text: in_words(wall, lasts) });
        Ok(())
    }

    /// Those that the caller may end; an error if that leaves all as it was.
    pub fn end(&mut self, caller: Caller, now: Moment) -> Result<(), NotYours> {
        self.by.retain(|_, until| now < until.moment);
        if caller.is_administrator {
            self.by.clear();
        }
        if self.by.remove(&Some(caller.number)).is_some() {
            return Ok(());
        }
        let who = |by: &Pauser| by.map_or_else(|| "somebody".to_owned(), |number| format!("{CALLERS} {number}"));
        match self.longest(now) {
            Some((by, _)) => Err(NotYours(who(by))),
            None => Ok(()),
        }
    }

    /// Until when, in words, if one lasts.
    pub fn now(&self, now: Moment) -> Option<String> {
        self.longest(now).map(|(_, until)| until.text.clone())
    }

    fn longest(&self, now: Moment) -> Option<(&Pauser, &Until)> {
        let lasts = self.by.iter().filter(|(_, until)| now < until.moment);
        lasts.max_by_key(|(_, until)| until.moment)
    }

    /// As it is now, to be kept by whoever can wait.
    pub fn kept(&self) -> Kept {
        let who = |by: &Pauser| by.map_or_else(|| UNKNOWN.to_owned(), |number| number.to_string());
        let lines = self.by.iter().map(|(by, until)| format!("{} {}\n", until.at, who(by)));
        Kept { file: self.file.clone(), text: lines.collect() }
    }
}

fn read(file: &Path) -> Result<Vec<(Timestamp, Pauser)>, String> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(format!("{}: {error}", file.display())),
    };
    let nonsense = || format!("{} makes no sense", file.display());
    if text.is_empty() {
        return Err(nonsense());
    }
    let line = |line: &str| {
        let (at, by) = line.split_once(' ')?;
        let by = if by == UNKNOWN { None } else { Some(by.parse().ok()?) };
        Some((at.parse().ok()?, by))
    };
    text.lines().map(|text| line(text).ok_or_else(nonsense)).collect()
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

    const ANN: Caller = Caller { number: 1000, is_administrator: false };
    const BEN: Caller = Caller { number: 1001, is_administrator: false };
    const ROOT: Caller = Caller { number: 0, is_administrator: true };

    #[test]
    fn it_ends_by_the_clock_that_nobody_sets_and_outlives_the_agent() {
        let dir = tempfile::tempdir().expect("a directory");
        let (start, wall, hour) = (Duration::from_secs(100), at("2026-11-22T20:00"), Duration::from_secs(3600));
        let mut pauses = Pauses::open(dir.path(), start, &wall);
        assert_eq!(pauses.now(start), None);
        pauses.begin(ANN.number, Wish::For(hour), start, &wall).expect("it may");
        pauses.kept().write().expect("it is kept");
        assert_eq!(pauses.now(start).as_deref(), Some("until 2026-11-22 21:00"));
        assert_eq!(pauses.now(start + hour), None);
        // The machine was started anew.
        let mut again = Pauses::open(dir.path(), Duration::from_secs(5), &at("2026-11-22T20:50"));
        assert_eq!(again.now(Duration::from_secs(604)).as_deref(), Some("until 2026-11-22 21:00"));
        assert_eq!(again.now(Duration::from_secs(605)), None);
        assert!(again.end(BEN, Duration::from_secs(5)).is_err(), "it is still Ann's");
        assert_eq!(Pauses::open(dir.path(), start, &at("2026-11-22T21:00")).now(start), None);
        pauses.end(ANN, start).expect("it is hers");
        pauses.kept().write().expect("forgotten");
        pauses.kept().write().expect("forgotten already");
        assert_eq!(Pauses::open(dir.path(), start, &wall).now(start), None);
        assert_eq!(fs::read_dir(dir.path()).expect("it is there").count(), 0);
    }

    #[test]
    fn nobody_ends_or_shortens_what_another_has_paused() {
        let dir = tempfile::tempdir().expect("a directory");
        let (start, wall) = (Duration::from_secs(100), at("2026-11-22T20:00"));
        let hours = |hours: u64| Duration::from_secs(hours * 3600);
        let mut pauses = Pauses::open(dir.path(), start, &wall);
        pauses.begin(ANN.number, Wish::For(hours(2)), start, &wall).expect("she may");
        pauses.begin(BEN.number, Wish::For(hours(1)), start, &wall).expect("he may");
        assert_eq!(pauses.now(start).as_deref(), Some("until 2026-11-22 22:00"));
        pauses.end(BEN, start).expect("his own");
        let refused = pauses.end(BEN, start).expect_err("it is hers");
        assert!(refused.to_string().starts_with("paused by user 1000: only who"), "{refused}");
        assert_eq!(pauses.now(start).as_deref(), Some("until 2026-11-22 22:00"));
        pauses.begin(ANN.number, Wish::For(hours(1)), start, &wall).expect("her own");
        assert_eq!(pauses.now(start).as_deref(), Some("until 2026-11-22 21:00"));
        assert_eq!(pauses.end(BEN, start + hours(1)), Ok(()), "it is over");
        pauses.begin(ANN.number, Wish::For(hours(1)), start, &wall).expect("she may");
        assert_eq!((pauses.end(ROOT, start), pauses.now(start)), (Ok(()), None));
        for number in 1..=64 {
            pauses.begin(number, Wish::For(hours(1)), start, &wall).expect("they may");
        }
        assert_eq!(pauses.begin(65, Wish::For(hours(1)), start, &wall), Err(TooMany));
    }

    #[test]
    fn what_cannot_be_read_is_a_pause_until_tomorrow_and_says_so() {
        let (start, wall) = (Duration::from_secs(100), at("2026-11-22T20:00"));
        for left in ["", "2026-11-22T20:30:00Z", "soon 1000\n", "2026-11-22T20:30:00Z 1000\n2026-11"] {
            let dir = tempfile::tempdir().expect("a directory");
            fs::write(dir.path().join(FILE), left).expect("written");
            let mut pauses = Pauses::open(dir.path(), start, &wall);
            let says = "until 2026-11-23 00:00, as what was left of a pause cannot be read";
            assert_eq!(pauses.now(start).as_deref(), Some(says), "{left:?}");
            assert_eq!(pauses.now(start + Duration::from_secs(4 * 3600)), None);
            // It is nobody's: an administrator ends it.
            assert!(pauses.end(ANN, start).is_err());
            pauses.kept().write().expect("kept");
            let mut again = Pauses::open(dir.path(), start, &wall);
            assert_eq!(again.now(start).as_deref(), Some("until 2026-11-23 00:00"));
            assert_eq!((again.end(ROOT, start), again.now(start)), (Ok(()), None));
        }
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join(FILE)).expect("made");
        assert!(Pauses::open(dir.path(), start, &wall).now(start).is_some());
    }
}
