//! Where the server is and how long to wait for it: a TOML file, below `PCFARM_*` variables, below flags.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::args::Global;
use crate::exit::Failure;

pub const DEFAULT_SERVER: &str = "http://127.0.0.1:7070";

/// Settings of every verb that talks to a server.
#[derive(Debug)]
pub struct Settings {
    pub server: String,
    /// Unset: each verb has its own.
    pub timeout: Option<Duration>,
}

/// What the TOML file may say. A misspelt key is an error instead of a setting that is silently not there.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    server: Option<String>,
    timeout: Option<String>,
}

impl Settings {
    /// clap has already put a flag above its variable.
    pub fn resolve(global: &Global) -> Result<Settings> {
        let file = match &global.config {
            Some(path) => read(path)?,
            None => match default_file().filter(|path| path.is_file()) {
                Some(path) => read(&path)?,
                None => File::default(),
            },
        };
        let given = global.server.clone().filter(|server| !server.is_empty());
        let server = given.or(file.server).unwrap_or_else(|| DEFAULT_SERVER.to_owned());
        let timeout = match (global.timeout, file.timeout) {
            (Some(timeout), _) => Some(timeout),
            (None, Some(text)) => Some(duration(&text).map_err(Failure::usage)?),
            (None, None) => None,
        };
        Ok(Settings { server: server_url(&server)?, timeout })
    }
}

fn read(path: &Path) -> Result<File> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("reading settings from {}: {error}", path.display())))?;
    toml::from_str(&text)
        .context(format!("reading settings from {}", path.display()))
        .map_err(|error| Failure::usage(format!("{error:#}")))
}

/// `$XDG_CONFIG_HOME/pcfarm/pcfarm.toml`, and `~/.config` where that is not set.
fn default_file() -> Option<PathBuf> {
    let configured = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".config"));
    let directory = configured.filter(|path| path.is_absolute()).or(home)?;
    Some(directory.join("pcfarm/pcfarm.toml"))
}

/// `host:port` and `http://host:port` name the same server.
fn server_url(text: &str) -> Result<String> {
    let text = text.trim();
    if text.starts_with("https://") {
        return Err(Failure::usage("https is not spoken by this version: name the server as http://HOST:PORT"));
    }
    let url = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let parsed = url.parse::<tonic::codegen::http::Uri>().ok();
    let is_server =
        parsed.is_some_and(|uri| uri.scheme_str() == Some("http") && uri.host().is_some_and(|host| !host.is_empty()));
    if !is_server {
        return Err(Failure::usage(format!("`{text}` is not a server: write http://HOST:PORT")));
    }
    Ok(url.trim_end_matches('/').to_owned())
}

/// `90s`, `5 min`, `1h 30m`, or a number of seconds; longer than nothing.
pub fn duration(text: &str) -> Result<Duration, String> {
    let help = || format!("`{text}` is not a length of time: write it like 30s, 5m or 1h30m");
    let length = match text.trim().parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|_| help())?,
        Err(_) => {
            let signed: jiff::SignedDuration = text.trim().parse().map_err(|_| help())?;
            Duration::try_from(signed).map_err(|_| help())?
        }
    };
    if length.is_zero() { Err(help()) } else { Ok(length) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn global(server: Option<&str>, config: Option<PathBuf>) -> Global {
        Global { server: server.map(str::to_owned), config, timeout: None, output: None }
    }

    #[test]
    fn a_flag_is_above_the_file_and_the_file_above_the_default() -> Result<()> {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), "server = \"farm:7070\"\ntimeout = \"5m\"\n")?;
        let path = Some(file.path().to_owned());
        let flag = Settings::resolve(&global(Some("http://flag:1/"), path.clone()))?;
        assert_eq!(flag.server, "http://flag:1");
        let filed = Settings::resolve(&global(Some(""), path))?;
        assert_eq!(filed.server, "http://farm:7070");
        assert_eq!(filed.timeout, Some(Duration::from_secs(300)));
        Ok(())
    }

    #[test]
    fn a_wrong_file_is_wrong_usage() -> Result<()> {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), "sever = \"farm:7070\"\n")?;
        for path in [file.path().to_owned(), PathBuf::from("/no/such/file.toml")] {
            let error = Settings::resolve(&global(None, Some(path.clone()))).expect_err("wrong");
            assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        }
        Ok(())
    }

    #[test]
    fn servers_and_lengths_of_time() {
        let servers = [
            ("farm:7070", Some("http://farm:7070")),
            ("http://farm:7070/", Some("http://farm:7070")),
            ("[::1]:7070", Some("http://[::1]:7070")),
            ("https://farm", None),
            ("ftp://farm", None),
            ("http://", None),
            ("two words", None),
        ];
        for (text, expected) in servers {
            assert_eq!(server_url(text).ok().as_deref(), expected, "{text}");
        }
        let lengths = [
            ("30", Some(30.0)),
            ("0.5", Some(0.5)),
            ("90s", Some(90.0)),
            ("5 min", Some(300.0)),
            ("1h30m", Some(5_400.0)),
            ("0", None),
            ("-1s", None),
            ("soon", None),
            ("inf", None),
        ];
        for (text, expected) in lengths {
            assert_eq!(duration(text).ok().map(|d| d.as_secs_f64()), expected, "{text}");
        }
    }
}
