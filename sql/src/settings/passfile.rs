//! libpq's password file: `host:port:database:user:password` by line, `*` for any, `\` before a `:` or `\` that is meant.
//! It owns the rule of whose password that is; it never logs one.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Whose password is wanted. `host` is a name, an address, or the socket directory; the default socket directory is
/// `localhost`, as libpq has it.
#[derive(Debug, Clone, Copy)]
pub struct Login<'a> {
    pub host: &'a str,
    pub port: u16,
    pub database: &'a str,
    pub user: &'a str,
}

/// Where passwords are; read anew at each question, so that a changed password needs no restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passfile {
    path: PathBuf,
}

/// Why a password file that exists was not used. libpq warns about the first two and goes on without; so do we.
#[derive(Debug, thiserror::Error)]
pub enum PassfileError {
    #[error("the password file {path} is not used: group or others can read it; run `chmod 0600 {path}`", path = .0.display())]
    Open(PathBuf),
    #[error("the password file {} is not used: it is not a plain file", .0.display())]
    NotPlain(PathBuf),
    #[error("the password file {} cannot be read", path.display())]
    Read { path: PathBuf, source: std::io::Error },
}

impl Passfile {
    pub fn new(path: PathBuf) -> Passfile {
        Passfile { path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The password of the first line that fits; `None` when no line does or there is no such file.
    pub fn password_for(&self, login: Login<'_>) -> Result<Option<String>, PassfileError> {
        let Some(text) = self.read()? else {
            return Ok(None);
        };
        Ok(text.lines().find_map(|line| password_in(line, login)))
    }

    fn read(&self) -> Result<Option<String>, PassfileError> {
        let failed = |source| PassfileError::Read { path: self.path.clone(), source };
        // A pipe would block the open; libpq looks first, too.
        match std::fs::metadata(&self.path) {
            Ok(metadata) if !metadata.is_file() => {
                return Err(PassfileError::NotPlain(self.path.clone()));
            }
            Ok(metadata) if readable_by_others(&metadata) => {
                return Err(PassfileError::Open(self.path.clone()));
            }
            Ok(_) => (),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        }
        let mut bytes = Vec::new();
        File::open(&self.path).and_then(|mut file| file.read_to_end(&mut bytes)).map_err(failed)?;
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }
}

#[cfg(unix)]
fn readable_by_others(metadata: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    metadata.permissions().mode() & 0o077 != 0
}

#[cfg(not(unix))]
fn readable_by_others(_: &std::fs::Metadata) -> bool {
    false // libpq does not look there either
}

fn password_in(line: &str, login: Login<'_>) -> Option<String> {
    if line.starts_with('#') {
        return None;
    }
    let rest = after_field(line, login.host)?;
    let rest = after_field(rest, &login.port.to_string())?;
    let rest = after_field(rest, login.database)?;
    let password = after_field(rest, login.user)?;
    Some(unescape(password))
}

/// What follows the first field and its `:` if that field is `*` or says `wanted`.
fn after_field<'a>(line: &'a str, wanted: &str) -> Option<&'a str> {
    let mut escaped = false;
    let end = line.bytes().position(|byte| {
        let ends = byte == b':' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })?;
    let field = &line[..end];
    (field == "*" || unescape(field) == wanted).then_some(&line[end + 1..])
}

fn unescape(text: &str) -> String {
    let mut characters = text.chars();
    let mut plain = String::with_capacity(text.len());
    while let Some(character) = characters.next() {
        match character {
            '\\' => plain.extend(characters.next()),
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGIN: Login<'_> = Login { host: "db.example", port: 5432, database: "farm", user: "ann" };

    #[test]
    fn a_line_fits_or_it_does_not() {
        let table = [
            ("db.example:5432:farm:ann:secret", Some("secret")),
            ("*:*:*:*:secret", Some("secret")),
            ("*:*:*:ann:a:b", Some("a:b")),
            (r"*:*:*:ann:a\:b\\c", Some(r"a:b\c")),
            ("*:*:*:ann:", Some("")),
            ("db.example:5433:farm:ann:secret", None),
            ("db.example:5432:farm:anna:secret", None),
            ("db.exampl:5432:farm:ann:secret", None),
            ("db*:5432:farm:ann:secret", None),
            (r"\*:5432:farm:ann:secret", None),
            ("#*:*:*:*:secret", None),
            ("*:*:*:ann", None),
            ("", None),
        ];
        for (line, expected) in table {
            assert_eq!(password_in(line, LOGIN).as_deref(), expected, "{line}");
        }
        let ipv6 = Login { host: "::1", ..LOGIN };
        assert_eq!(password_in(r"\:\:1:5432:*:*:six", ipv6).as_deref(), Some("six"));
    }

    #[test]
    #[cfg(unix)]
    fn only_a_private_plain_file_is_used() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("pgpass");
        let passfile = Passfile::new(path.clone());
        assert!(matches!(passfile.password_for(LOGIN), Ok(None)));

        std::fs::write(&path, "# mine\n*:*:*:bob:no\r\n*:*:*:ann:yes\r\n*:*:*:*:late\n").expect("written");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).expect("chmod");
        let error = passfile.password_for(LOGIN).expect_err("others can read it");
        assert!(error.to_string().contains("chmod 0600"), "{error}");

        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("chmod");
        assert_eq!(passfile.password_for(LOGIN).expect("readable").as_deref(), Some("yes"));

        let error = Passfile::new(directory.path().to_owned()).password_for(LOGIN);
        assert!(matches!(error, Err(PassfileError::NotPlain(_))));
    }

    mod fuzz {
        use super::*;

        /// What is left after four fields, as it stands or without the characters that protect others.
        #[test]
        fn a_line_of_a_password_file() {
            bolero::check!().for_each(|bytes: &[u8]| {
                let line = String::from_utf8_lossy(bytes);
                if let Some(password) = password_in(&line, LOGIN) {
                    assert!(line.matches(':').count() >= 4 && password.len() <= line.len() - 4);
                }
            });
        }
    }
}
