//! Hours of the week by the clock on the wall, on which nothing else depends. [`pcfarm_proto::hours`] owns how hours are written.
//! `pcfarm.in_hours` and the profiles of job types keep the same rule.

pub use pcfarm_proto::hours::{Hours, LocalTime, NoHours, Window, gaps};

/// Time on the wall, where the workstation is.
pub fn local_time(time: &jiff::Zoned) -> LocalTime {
    let weekday = usize::try_from(time.weekday().to_monday_zero_offset()).unwrap_or(0);
    let minute = u16::try_from(i32::from(time.hour()) * 60 + i32::from(time.minute())).unwrap_or(0);
    LocalTime { weekday, minute }
}

#[cfg(test)]
mod tests;
