//! `pcfarm top`: status, jobs and workstations again and again. On a terminal they replace one another.

use std::io::{self, IsTerminal, Write};

use anyhow::Result;

use crate::args::TopArgs;
use crate::exit::{self, Failure};
use crate::farm::Farm;
use crate::output::Output;
use crate::platform::{self, Stops};
use crate::{jobs, status, text, workstations};

/// More than a screen shows, and not all of a large farm every second.
const ROWS: u32 = 100;

pub async fn top(farm: &Farm, args: &TopArgs, output: Output) -> Result<()> {
    if output == Output::Json {
        return Err(Failure::usage("top is for people; `pcfarm status --output json` is for programs"));
    }
    let mut stops = Stops::new()?;
    // Before the screen is switched: an error now is told in the ordinary way.
    let mut view = frame(farm).await?;
    let mut screen = Screen::open()?;
    let mut ticks = tokio::time::interval(args.interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        screen.draw(&view)?;
        tokio::select! {
            () = stops.next() => return Ok(()),
            _ = ticks.tick() => {}
        }
        let next = tokio::select! {
            () = stops.next() => return Ok(()),
            next = frame(farm) => next,
        };
        match next {
            Ok(next) => view = next,
            Err(error) => view = format!("{}\nasking again", text::plain_lines(&error.to_string())),
        }
    }
}

async fn frame(farm: &Farm) -> Result<String> {
    let status = status::get(farm).await?;
    let jobs = jobs::get_all(farm, false, ROWS).await?;
    let workstations = workstations::get_all(farm, false, ROWS).await?;
    let now = jiff::Timestamp::now();
    Ok(format!(
        "{}\n\n{}\n\n{}",
        status::text(&status, farm.server(), now),
        jobs::table(&jobs, false, now),
        workstations::table(&workstations, false, now)
    ))
}

/// The terminal's other screen while there is one; left again however this ends.
struct Screen {
    is_terminal: bool,
    drawn: bool,
}

impl Screen {
    fn open() -> Result<Screen> {
        let is_terminal = io::stdout().is_terminal();
        if is_terminal {
            // Another screen, no cursor, and lines that end at the edge instead of going on below.
            write(b"\x1b[?1049h\x1b[?25l\x1b[?7l")?;
        }
        Ok(Screen { is_terminal, drawn: false })
    }

    fn draw(&mut self, view: &str) -> Result<()> {
        if !self.is_terminal {
            let between = if self.drawn { "\n" } else { "" };
            self.drawn = true;
            return write(format!("{between}{view}\n").as_bytes());
        }
        let rows = platform::terminal_size().map_or(24, |(_, rows)| rows);
        write(redraw(view, rows).as_bytes())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.is_terminal {
            let _ = write(b"\x1b[?7h\x1b[?25h\x1b[?1049l"); // the terminal may be gone
        }
    }
}

/// Overwrites line by line, so that nothing flickers; what does not fit is said to be missing.
fn redraw(view: &str, rows: u16) -> String {
    let rows = usize::from(rows.max(2));
    let lines: Vec<&str> = view.lines().collect();
    let mut out = String::from("\x1b[H");
    let shown = if lines.len() < rows { lines.len() } else { rows - 1 };
    for (i, line) in lines.iter().take(shown).enumerate() {
        if i > 0 {
            out.push_str("\r\n");
        }
        out.push_str(line);
        out.push_str("\x1b[K");
    }
    if shown < lines.len() {
        out.push_str(&format!("\r\n… {} lines more\x1b[K", lines.len() - shown));
    }
    out.push_str("\x1b[J");
    out
}

fn write(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    exit::written(out.write_all(bytes).and_then(|()| out.flush()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_fits_its_screen() {
        assert_eq!(redraw("a\nb", 24), "\x1b[Ha\x1b[K\r\nb\x1b[K\x1b[J");
        let long = redraw("1\n2\n3\n4\n5", 3);
        assert_eq!(long, "\x1b[H1\x1b[K\r\n2\x1b[K\r\n… 3 lines more\x1b[K\x1b[J");
    }
}
