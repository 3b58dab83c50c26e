//! Hours of the week: `mon-fri 18:00-07:00`.
//!
//! Owns how hours are written, for agents, which go by them, and for the CLI, which warns of gaps. **A range beyond midnight belongs to the day on which it
//! begins**: `mon-fri 18:00-07:00` ends on Saturday at 7:00 and leaves out Monday's morning. `pcfarm.in_hours` and the profiles of job
//! types keep the same rule.
//!
//! - [`gaps`]: hours that an owner probably left out by mistake.

pub mod gaps;

use std::fmt;
use std::str::FromStr;

/// Days of the week, from Monday.
pub const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
pub const MINUTES_OF_DAY: u16 = 24 * 60;

/// Time by the clock on the wall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalTime {
    /// From Monday, 0.
    pub weekday: usize,
    /// Of the day.
    pub minute: u16,
}

/// Windows of which one must hold; none: all the time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hours(pub Vec<Window>);

/// Some hours of some days. A range beyond midnight belongs to the day on which it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    days: [bool; 7],
    from: u16,
    /// Beyond `from`, or on the next day.
    to: u16,
    text: String,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} are no hours, such as \"mon-fri 9:00-17:00\", \"sat,sun\" or \"18:00-07:00\"")]
pub struct NoHours(String);

impl Hours {
    pub fn include(&self, time: LocalTime) -> bool {
        self.0.is_empty() || self.0.iter().any(|window| window.includes(time))
    }
}

impl fmt::Display for LocalTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}:{:02}", DAYS[self.weekday % 7], self.minute / 60, self.minute % 60)
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<&str> = self.0.iter().map(|window| window.text.as_str()).collect();
        f.write_str(&texts.join("; "))
    }
}

impl Window {
    /// True if the window goes beyond midnight. A window whose end is its beginning lasts a day.
    fn is_overnight(&self) -> bool {
        self.to <= self.from && self.to > 0
    }

    fn includes(&self, time: LocalTime) -> bool {
        let today = self.days[time.weekday % 7];
        if self.from < self.to {
            return today && (self.from..self.to).contains(&time.minute);
        }
        let yesterday = self.days[(time.weekday + 6) % 7];
        (today && time.minute >= self.from) || (yesterday && time.minute < self.to)
    }
}

impl FromStr for Window {
    type Err = NoHours;

    fn from_str(text: &str) -> Result<Window, NoHours> {
        let wrong = || NoHours(text.to_owned());
        let lower = text.to_ascii_lowercase();
        let mut days = None;
        let mut times = None;
        for word in lower.split_ascii_whitespace() {
            let slot_is_taken = if word.starts_with(|first: char| first.is_ascii_digit()) {
                times.replace(parse_times(word).ok_or_else(wrong)?).is_some()
            } else {
                days.replace(parse_days(word).ok_or_else(wrong)?).is_some()
            };
            if slot_is_taken {
                return Err(wrong());
            }
        }
        if days.is_none() && times.is_none() {
            return Err(wrong());
        }
        let (from, to) = times.unwrap_or((0, MINUTES_OF_DAY));
        Ok(Window { days: days.unwrap_or([true; 7]), from, to, text: text.trim().to_owned() })
    }
}

/// `mon-fri`, `sat,sun` or both mixed; `fri-mon` goes over the weekend.
fn parse_days(word: &str) -> Option<[bool; 7]> {
    let day = |name: &str| DAYS.iter().position(|day| *day == name);
    let mut days = [false; 7];
    for part in word.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (day(first)?, day(last)?);
        for step in 0..=(last + 7 - first) % 7 {
            days[(first + step) % 7] = true;
        }
    }
    Some(days)
}

fn parse_times(word: &str) -> Option<(u16, u16)> {
    let minute = |text: &str| {
        let (hour, minute) = text.split_once(':')?;
        let digits = |text: &str| (text.len() <= 2 && text.bytes().all(|b| b.is_ascii_digit())).then_some(());
        digits(hour)?;
        digits(minute)?;
        let (hour, minute) = (hour.parse::<u16>().ok()?, minute.parse::<u16>().ok()?);
        let all = hour * 60 + minute;
        (minute < 60 && all <= MINUTES_OF_DAY).then_some(all)
    };
    let (from, to) = word.split_once('-')?;
    let (from, to) = (minute(from)?, minute(to)?);
    (from < MINUTES_OF_DAY).then_some((from, to))
}
