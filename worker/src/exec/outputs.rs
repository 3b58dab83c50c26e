//! Files that a program has left in a problem's directory, for the farm.
//!
//! Owns which of them are meant, and that they are the program's: what it names is looked for in its own directory alone, and opened
//! so that no link leads anywhere else.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, anyhow, ensure};
use pcfarm_proto::files::{OUTPUTS_LIMIT, is_file_name};
use rustix::fs::{Mode, OFlags, open, openat};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::exec::plan::User;
use crate::files::Uploaded;

/// A name, or names of a form: `*` stands for any characters, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted(String);

impl Wanted {
    /// Nothing if it can be no file's name.
    pub fn parse(text: &str) -> Option<Wanted> {
        let example = text.replace('*', "x");
        is_file_name(&example).then(|| Wanted(text.to_owned()))
    }

    fn is_exact(&self) -> bool {
        !self.0.contains('*')
    }

    fn matches(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = name.strip_prefix(first) else { return false };
        let mut parts: Vec<&str> = parts.collect();
        let Some(last) = parts.pop() else { return rest.is_empty() };
        for part in parts {
            match rest.split_once(part) {
                Some((_, behind)) => rest = behind,
                None => return false,
            }
        }
        rest.ends_with(last)
    }
}

/// The files that are wanted of a directory, open, by name. One that is named must be there; of a form there may be none.
pub fn collect(directory: &Path, wanted: &[Wanted], user: Option<User>) -> anyhow::Result<BTreeMap<String, File>> {
    let mut names: BTreeSet<String> = wanted.iter().filter(|w| w.is_exact()).map(|w| w.0.clone()).collect();
    if wanted.iter().any(|w| !w.is_exact()) {
        for entry in fs::read_dir(directory).context("the program's directory cannot be read")? {
            let entry = entry.context("the program's directory cannot be read")?;
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| is_file_name(name)) else { continue };
            // What the job has given it is a link.
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            if is_file && wanted.iter().any(|w| w.matches(name)) {
                names.insert(name.to_owned());
            }
            ensure!(names.len() <= OUTPUTS_LIMIT, "the program has made more than {OUTPUTS_LIMIT} files for the farm");
        }
    }
    ensure!(names.len() <= OUTPUTS_LIMIT, "the program names more than {OUTPUTS_LIMIT} files for the farm");
    names.into_iter().map(|name| opened(directory, &name, user).map(|file| (name, file))).collect()
}

fn opened(directory: &Path, name: &str, user: Option<User>) -> anyhow::Result<File> {
    ensure!(is_file_name(name), "{name:?} is no name of a file: letters, digits and _ . - are");
    let of = OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let directory = open(directory, of | OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).map_err(io::Error::from);
    let directory = directory.context("the program's directory cannot be opened")?;
    // A pipe would be waited for.
    let file = openat(&directory, name, of | OFlags::NONBLOCK | OFlags::RDONLY, Mode::empty());
    let file = File::from(file.map_err(|error| match error {
        rustix::io::Errno::NOENT => anyhow!("the program has left no file {name} in its directory"),
        rustix::io::Errno::LOOP => anyhow!("file {name} is a link, and not the program's"),
        other => anyhow!("file {name} cannot be read: {}", io::Error::from(other)),
    })?);
    let metadata = file.metadata().with_context(|| format!("file {name}"))?;
    ensure!(metadata.is_file(), "{name} is not a file");
    let uid = user.map_or_else(|| rustix::process::getuid().as_raw(), |user| user.uid);
    // A hard link may be anybody's.
    ensure!(metadata.uid() == uid && metadata.nlink() == 1, "file {name} is not the program's alone");
    Ok(file)
}

#[derive(Serialize)]
struct Solution<'a> {
    result: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<BTreeMap<&'a str, OfFarm>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stderr: Option<&'a str>,
}

#[derive(Serialize)]
struct OfFarm {
    sha256: String,
    bytes: u64,
}

/// A solution that comes with files, or with what the program has said on standard error.
pub fn with_more(
    result: &RawValue,
    files: Option<&BTreeMap<String, Uploaded>>,
    stderr: Option<&str>,
) -> anyhow::Result<Box<RawValue>> {
    Ok(to_raw_value(&Solution { result, files: files.map(of_farms), stderr })?)
}

fn of_farms(files: &BTreeMap<String, Uploaded>) -> BTreeMap<&str, OfFarm> {
    let of_farm = |file: &Uploaded| OfFarm { sha256: file.hash.to_string(), bytes: file.bytes };
    files.iter().map(|(name, file)| (name.as_str(), of_farm(file))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcfarm_proto::files::FileHash;
    use std::os::unix::fs::symlink;

    fn wanted(texts: &[&str]) -> Vec<Wanted> {
        texts.iter().map(|text| Wanted::parse(text).expect("a name")).collect()
    }

    #[test]
    fn stars_stand_for_anything() {
        for (form, name, expected) in [
            ("out.png", "out.png", true),
            ("out.png", "out.pngx", false),
            ("*", "a", true),
            ("*.png", "a.png", true),
            ("*.png", "a.png.tmp", false),
            ("a*b*c", "abc", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "ac", false),
            ("a*a", "a", false),
            ("part-*", "part-", true),
        ] {
            assert_eq!(Wanted(form.to_owned()).matches(name), expected, "{form} {name}");
        }
        for wrong in ["", "a/b", "../*", ".x", "-*", "a b"] {
            assert!(Wanted::parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn only_what_is_the_programs_own_is_taken() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = dir.path().join("7");
        fs::create_dir(&at).expect("made");
        let secret = dir.path().join("secret");
        fs::write(&secret, "the agent's").expect("written");
        fs::write(at.join("a.txt"), "a").expect("written");
        fs::write(at.join("b.txt"), "b").expect("written");
        fs::write(at.join(".hidden.txt"), "h").expect("written");
        fs::create_dir(at.join("dir.txt")).expect("made");
        symlink(&secret, at.join("link.txt")).expect("linked");
        let names =
            |texts: &[&str]| collect(&at, &wanted(texts), None).map(|files| files.into_keys().collect::<Vec<_>>());
        assert_eq!(names(&["*.txt"]).expect("collected"), ["a.txt", "b.txt"]);
        assert_eq!(names(&["b.txt", "*.png"]).expect("collected"), ["b.txt"]);
        for (name, expected) in [("c.txt", "left no file c.txt"), ("link.txt", "is a link"), ("dir.txt", "not a file")]
        {
            let error = names(&[name]).expect_err(expected).to_string();
            assert!(error.contains(expected), "{error}");
        }
        fs::hard_link(&secret, at.join("hard.txt")).expect("linked");
        let error = names(&["hard.txt"]).expect_err("another's").to_string();
        assert!(error.contains("not the program's alone"), "{error}");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at.join("pipe"),
            rustix::fs::FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .expect("made");
        assert!(names(&["pipe"]).expect_err("a pipe").to_string().contains("not a file"));
        (0..=OUTPUTS_LIMIT).for_each(|n| fs::write(at.join(format!("{n}.many")), "").expect("written"));
        assert!(names(&["*.many"]).expect_err("too many").to_string().contains("more than 100"));
    }

    #[test]
    fn a_solution_with_files_names_them() {
        let result = RawValue::from_string("[1]".to_owned()).expect("JSON");
        let files = BTreeMap::from([("a".to_owned(), Uploaded { hash: FileHash([1; 32]), bytes: 5 })]);
        let with = with_more(&result, Some(&files), None).expect("JSON");
        assert_eq!(
            with.get(),
            format!(r#"{{"result":[1],"files":{{"a":{{"sha256":"{}","bytes":5}}}}}}"#, "01".repeat(32))
        );
        assert_eq!(
            with_more(&result, Some(&BTreeMap::new()), None).expect("JSON").get(),
            r#"{"result":[1],"files":{}}"#
        );
        assert_eq!(with_more(&result, None, Some("s")).expect("JSON").get(), r#"{"result":[1],"stderr":"s"}"#);
    }
}
