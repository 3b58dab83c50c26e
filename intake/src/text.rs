//! Text for people: what others wrote is escaped and cut, sizes are made readable.

use std::fmt::Write;

/// The text with everything escaped that could steer a terminal or change the order of what is read.
pub fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() || is_invisible(c) => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c)); // a String takes everything
            }
            c => out.push(c),
        }
    }
    out
}

/// Zero-width and direction-changing characters, with which one name can pass for another.
fn is_invisible(c: char) -> bool {
    matches!(
        u32::from(c),
        0xad | 0x61c | 0x180e | 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x206f | 0xfeff
            | 0xfff9..=0xfffb | 0xe0000..=0xe007f
    )
}

/// [`plain`], at most `limit` characters, with an ellipsis for what is cut off.
pub fn cut(text: &str, limit: usize) -> String {
    // A character escapes to at most ten, so this much is enough and a megabyte is not escaped to be cut.
    let start: String = text.chars().take(limit + 1).collect();
    let safe = plain(&start);
    if safe.chars().count() <= limit {
        return safe;
    }
    let mut short: String = safe.chars().take(limit.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// Memory and sizes: `512 MiB`, `1.5 GiB`.
pub fn bytes(value: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut scaled = value as f64;
    let mut unit = 0;
    while scaled >= 1024.0 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    if unit == 0 || scaled >= 10.0 {
        format!("{scaled:.0} {}", UNITS[unit])
    } else {
        format!("{scaled:.1} {}", UNITS[unit])
    }
}
