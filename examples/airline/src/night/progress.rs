//! How far the night is: a bar on a terminal, a line now and then elsewhere.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Between lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

pub struct Progress {
    bar: Option<ProgressBar>,
    total: u64,
    started: Instant,
    last_line: Instant,
}

impl Progress {
    pub fn new(total: u64) -> Progress {
        let bar = std::io::stdout().is_terminal().then(|| {
            let style = "  {bar:36} {percent:>3}%  {human_pos}/{human_len} flights  {per_sec}  ETA {eta}";
            let style = ProgressStyle::with_template(style).expect("a constant that is a template");
            ProgressBar::new(total).with_style(style)
        });
        Progress { bar, total, started: Instant::now(), last_line: Instant::now() }
    }

    pub fn show(&mut self, done: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        } else if self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            super::say(&line(done, self.total, self.started.elapsed()));
        }
    }

    /// A line of its own, above the bar.
    pub fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => super::say(text),
        }
    }

    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn line(done: u64, total: u64, elapsed: Duration) -> String {
    let rate = done as f64 / elapsed.as_secs_f64().max(1e-9);
    let percent = 100.0 * done as f64 / total.max(1) as f64;
    let eta = if rate > 0.0 { format!("{:.0} s", (total.saturating_sub(done)) as f64 / rate) } else { "?".to_owned() };
    format!("  {percent:3.0} %  {done}/{total} flights  {rate:.0}/s  ETA {eta}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_rate_and_eta() {
        assert_eq!(line(500, 2000, Duration::from_secs(5)), "   25 %  500/2000 flights  100/s  ETA 15 s");
        assert_eq!(line(0, 2000, Duration::from_secs(5)), "    0 %  0/2000 flights  0/s  ETA ?");
    }
}
