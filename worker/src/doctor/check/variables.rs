//! Variables of a check: those of its program under the agent, not those of the doctor's own process.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::exec::settings::Program;

/// Name and value.
pub type Variable = (String, String);

/// Environment of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    pub set: Vec<Variable>,
    /// Variables that systemd gives a unit, and the agent does not give a program.
    pub unset: Vec<String>,
}

impl Environment {
    /// Under an agent with these variables.
    pub fn of(program: &Program, of_agent: &[Variable]) -> Environment {
        let value = |name: &str| of_agent.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        let set = with_places(program.variables.environment(value));
        let is_foreign = |name: &&str| set.iter().all(|(known, _)| known != name);
        let unset = of_agent.iter().map(|(name, _)| name.as_str()).filter(is_foreign).map(str::to_owned).collect();
        Environment { set, unset }
    }
}

/// Directories of a program, which are the check's unless the owner names others.
pub fn with_places(mut variables: Vec<Variable>) -> Vec<Variable> {
    for place in ["HOME", "TMPDIR", "PWD"] {
        if variables.iter().all(|(name, _)| name != place) {
            variables.push((place.to_owned(), "/tmp".to_owned()));
        }
    }
    variables
}

/// Variables that `env -0` has printed.
pub fn printed(text: &str) -> Vec<Variable> {
    let variable = |entry: &str| entry.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    text.split('\0').filter_map(variable).filter(|(name, _)| is_name(name)).collect()
}

/// As systemd takes it.
fn is_name(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// A file for systemd's `EnvironmentFile=`, which only its owner reads, until it is dropped. systemd reads it for the check alone. So
/// values, which may be secret, are in no arguments, and a program's `LD_PRELOAD` does not act on `systemd-run`, which is root's.
#[derive(Debug)]
pub struct EnvironmentFile {
    pub path: PathBuf,
}

impl EnvironmentFile {
    pub fn write(dir: &Path, name: &str, variables: &[Variable]) -> io::Result<EnvironmentFile> {
        let path = dir.join(format!("{name}.env"));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let written = EnvironmentFile { path };
        file.write_all(lines(variables).as_bytes())?;
        Ok(written)
    }
}

impl Drop for EnvironmentFile {
    fn drop(&mut self) {
        // It may be gone with the machine's runtime directory.
        let _ = fs::remove_file(&self.path);
    }
}

/// As systemd and shells read them.
fn lines(variables: &[Variable]) -> String {
    let quoted = |value: &str| {
        let mut quoted = String::with_capacity(value.len() + 2);
        for character in value.chars() {
            if ['"', '\\', '`', '$'].contains(&character) {
                quoted.push('\\');
            }
            quoted.push(character);
        }
        quoted
    };
    variables
        .iter()
        .filter(|(name, _)| is_name(name))
        .map(|(name, value)| format!("{name}=\"{}\"\n", quoted(value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> Vec<Variable> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_file_of_variables_is_read_as_it_was_meant_and_by_nobody_else() {
        let dir = tempfile::tempdir().expect("a directory");
        let meant =
            variables(&[("A", "a \"b\" \\ $HOME `id` 'c' #d\nsecond = line"), ("EMPTY", ""), ("PLAIN", "27000@lic")]);
        let file = EnvironmentFile::write(dir.path(), "x", &[meant.clone(), variables(&[("my-own", "1")])].concat());
        let file = file.expect("written");
        assert_eq!(fs::metadata(&file.path).expect("it is there").permissions().mode() & 0o777, 0o600);
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "set -a; . \"$0\"; env -0"]).arg(&file.path).env_clear().env("PATH", "/usr/bin:/bin");
        let said = printed(&String::from_utf8(shell.output().expect("it runs").stdout).expect("text"));
        assert!(meant.iter().all(|variable| said.contains(variable)), "{said:?}");
        assert!(EnvironmentFile::write(dir.path(), "x", &meant).is_err(), "never another's");
        let path = file.path.clone();
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn output_of_env_is_split_at_nuls() {
        let said = "A=1\0B=x=y\nz\0BASH_FUNC_f%%=() { :; }\0nothing\0=x\0";
        assert_eq!(printed(said), variables(&[("A", "1"), ("B", "x=y\nz")]));
    }
}
