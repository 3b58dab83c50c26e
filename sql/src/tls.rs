//! TLS to the database: libpq's modes and files, checked by rustls.
//!
//! - [`Encryption`]: a target's mode, root certificates and client certificate; [`files`] reads them at each connection, so
//!   that renewed certificates need no restart
//! - [`verify`]: the check of the server's certificate, by mode; [`names`] and [`version_1`] have libpq's rules beyond webpki's
//! - [`stream`]: the connector for tokio-postgres, with channel binding
//! - [`failure`]: errors that say what to do

mod failure;
mod files;
mod names;
mod stream;
mod verify;
mod version_1;

use std::fmt;
use std::path::{Path, PathBuf};

use rustls::SupportedProtocolVersion;
use tokio_postgres::config::SslMode;

pub use failure::TlsFailure;
pub use files::TlsFileError;
pub use stream::{Connector, Stream};

/// libpq's `sslmode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    Disable,
    Allow,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

impl Mode {
    pub fn parse(text: &str) -> Option<Mode> {
        Some(match text {
            "disable" => Mode::Disable,
            "allow" => Mode::Allow,
            "prefer" => Mode::Prefer,
            "require" => Mode::Require,
            "verify-ca" => Mode::VerifyCa,
            "verify-full" => Mode::VerifyFull,
            _ => return None,
        })
    }

    /// Ways to connect, in order. A later one is tried when the server refused an earlier one.
    pub(crate) fn attempts(self) -> &'static [SslMode] {
        match self {
            Mode::Disable => &[SslMode::Disable],
            Mode::Allow => &[SslMode::Disable, SslMode::Require],
            Mode::Prefer => &[SslMode::Prefer, SslMode::Disable],
            Mode::Require | Mode::VerifyCa | Mode::VerifyFull => &[SslMode::Require],
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Disable => "disable",
            Mode::Allow => "allow",
            Mode::Prefer => "prefer",
            Mode::Require => "require",
            Mode::VerifyCa => "verify-ca",
            Mode::VerifyFull => "verify-full",
        })
    }
}

/// Authorities that a server's certificate must come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Roots {
    /// None are known: certificates are not checked, which only the modes below `verify-ca` permit.
    None,
    /// `sslrootcert=system`.
    System,
    /// A file that `sslrootcert` names.
    File(PathBuf),
    /// libpq's `~/.postgresql/root.crt`, used if it exists.
    Default(PathBuf),
}

/// A client certificate and its key. Default files (`~/.postgresql/postgresql.crt`) may be missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub by_default: bool,
}

/// Rules for the encryption of connections to one database.
#[derive(Debug, Clone)]
pub struct Encryption {
    pub mode: Mode,
    pub roots: Roots,
    pub identity: Option<Identity>,
    /// Sends the server's name in the clear (`sslsni`).
    pub sni: bool,
    pub versions: &'static [&'static SupportedProtocolVersion],
}

impl Encryption {
    /// For Unix sockets and `sslmode=disable`.
    pub fn off() -> Encryption {
        Encryption {
            mode: Mode::Disable,
            roots: Roots::None,
            identity: None,
            sni: true,
            versions: rustls::ALL_VERSIONS,
        }
    }

    /// A root file that `sslrootcert` names, does not exist, and is not needed in this mode.
    pub(crate) fn missing_roots(&self) -> Option<&Path> {
        match &self.roots {
            Roots::File(path) if self.mode < Mode::Require && !path.exists() => Some(path),
            _ => None,
        }
    }

    /// Reads the files. Blocks on the file system.
    pub(crate) fn check(&self) -> Result<(), TlsFileError> {
        files::load(self).map(drop)
    }

    /// Reads the files, off the runtime's threads.
    pub(crate) async fn connector(&self) -> Connector {
        let encryption = self.clone();
        match tokio::task::spawn_blocking(move || Connector::new(files::load(&encryption))).await {
            Ok(connector) => connector,
            Err(_) => Connector::off(), // the runtime is shutting down
        }
    }
}

/// An error and its cause in one line, for the log.
pub(crate) fn with_cause(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}
