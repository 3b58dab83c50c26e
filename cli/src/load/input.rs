//! Where lines come from: a file or standard input, gzip or not, with a bar that follows what was read.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::path::Path;

use anyhow::{Context, Result};
use flate2::bufread::MultiGzDecoder;
use indicatif::ProgressBar;

use super::bar_style;
use crate::exit::{Exit, Failure};
use crate::text;

const BUFFER: usize = 1 << 17;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// An opened input.
pub struct Input {
    name: String,
    bar: ProgressBar,
    reader: Box<dyn BufRead + Send>,
}

impl Input {
    /// Reads its first bytes, which may take as long as somebody types.
    pub fn open(path: &Path) -> Result<Input> {
        let name = name(path);
        if is_standard_input(path) {
            let bar = bar(None);
            return Input::new(&name, Box::new(bar.wrap_read(io::stdin())), bar);
        }
        let file = File::open(path).map_err(|error| cannot_open(&name, &error))?;
        let found = file.metadata().with_context(|| format!("opening {name}"))?;
        if found.is_dir() {
            return Err(Failure::of(Exit::Failed, format!("{name} is a directory, not a file")));
        }
        let bar = bar(found.is_file().then_some(found.len()));
        Input::new(&name, Box::new(bar.wrap_read(file)), bar)
    }

    fn new(name: &str, source: Box<dyn Read + Send>, bar: ProgressBar) -> Result<Input> {
        let mut plain = BufReader::with_capacity(BUFFER, source);
        let start = plain.fill_buf().with_context(|| format!("reading {name}"))?;
        let reader: Box<dyn BufRead + Send> = if start.starts_with(&GZIP_MAGIC) {
            Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(plain)))
        } else {
            Box::new(plain)
        };
        Ok(Input { name: name.to_owned(), bar, reader })
    }

    #[cfg(test)]
    pub fn of_bytes(bytes: &[u8]) -> Input {
        let source = Box::new(io::Cursor::new(bytes.to_vec()));
        Input::new("input", source, ProgressBar::hidden()).expect("bytes can be read")
    }

    pub fn bar(&self) -> &ProgressBar {
        &self.bar
    }

    pub fn into_parts(self) -> (String, ProgressBar, Box<dyn BufRead + Send>) {
        (self.name, self.bar, self.reader)
    }
}

/// For messages, without control characters.
pub fn name(path: &Path) -> String {
    if is_standard_input(path) { "standard input".to_owned() } else { text::plain(&path.to_string_lossy()) }
}

fn is_standard_input(path: &Path) -> bool {
    path == Path::new("-")
}

fn cannot_open(name: &str, error: &io::Error) -> anyhow::Error {
    let exit = match error.kind() {
        io::ErrorKind::NotFound => Exit::NotFound,
        io::ErrorKind::PermissionDenied => Exit::NotAllowed,
        _ => Exit::Failed,
    };
    Failure::of(exit, format!("opening {name}: {error}"))
}

fn bar(size: Option<u64>) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = match size {
        Some(size) => ProgressBar::new(size),
        None => ProgressBar::no_length(),
    };
    bar.with_style(bar_style(size.is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn gzip_is_known_by_its_first_bytes() -> Result<()> {
        let mut packed = Vec::new();
        for part in [b"one\n", b"two\n"] {
            // Two members, as `cat a.gz b.gz` makes them.
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            gzip.write_all(part)?;
            packed.extend(gzip.finish()?);
        }
        for bytes in [packed.as_slice(), b"one\ntwo\n"] {
            let mut text = String::new();
            Input::of_bytes(bytes).into_parts().2.read_to_string(&mut text)?;
            assert_eq!(text, "one\ntwo\n");
        }
        Ok(())
    }
}
