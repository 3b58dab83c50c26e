//! Where the server is and how long to wait for it: a TOML file, below `PCFARM_*` variables, below flags.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;

use pcfarm_proto::secrets::Token;
use pcfarm_proxy::Proxies;

use crate::args::Global;
use crate::exit::Failure;
use crate::{platform, trace};

pub const DEFAULT_SERVER: &str = "http://127.0.0.1:7070";

/// Settings of every verb that talks to a server.
#[derive(Debug)]
pub struct Settings {
    pub server: String,
    /// Unset: each verb has its own.
    pub timeout: Option<Duration>,
    /// What is shown to the server.
    pub token: Option<Token>,
    /// The authority of its certificate, if not one that this system trusts.
    pub ca: Option<PathBuf>,
    /// HTTP proxies on the way to the server.
    pub proxies: Proxies,
    /// Secrets may be told in the clear.
    pub insecure: bool,
    /// What calls are a part of.
    pub trace: Option<String>,
}

/// What the TOML file may say. A misspelt key is an error instead of a setting that is silently not there.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    server: Option<String>,
    timeout: Option<String>,
    token_file: Option<PathBuf>,
    ca: Option<PathBuf>,
    proxy: Option<String>,
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
        let server = server_url(&server)?;
        let token = token(global.token_file.clone().or(file.token_file), &server)?;
        let ca = global.ca.clone().or(file.ca);
        let proxy = global.proxy.clone().or(file.proxy);
        let proxies = Proxies::of(proxy.as_deref(), |name| std::env::var(name).ok());
        let proxies = proxies.map_err(|error| Failure::usage(error.to_string()))?;
        let (insecure, trace) = (global.insecure, trace::wanted(global));
        let settings = Settings { server, timeout, token, ca, proxies, insecure, trace };
        if settings.token.is_some() {
            settings.secret_may_be_told()?;
        }
        Ok(settings)
    }

    /// A token, or a password.
    pub fn secret_may_be_told(&self) -> Result<()> {
        if self.insecure || !listened_to(&self.server) {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "a token or password would be told to {} in the clear: name the server by https://…, or say --insecure on a \
             network that you trust",
            self.server
        )))
    }
}

fn read(path: &Path) -> Result<File> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("reading settings from {}: {error}", path.display())))?;
    toml::from_str(&text)
        .context(format!("reading settings from {}", path.display()))
        .map_err(|error| Failure::usage(format!("{error:#}")))
}

/// PCFARM_TOKEN, a file, or what `pcfarm login` has kept for this server. Never an argument: those everybody reads.
fn token(file: Option<PathBuf>, server: &str) -> Result<Option<Token>> {
    let variable = std::env::var("PCFARM_TOKEN").unwrap_or_default();
    let (text, from) = match file {
        _ if !variable.is_empty() => (variable, "PCFARM_TOKEN".to_owned()),
        Some(path) => {
            let text = std::fs::read_to_string(&path)
                .map_err(|error| Failure::usage(format!("reading a token from {}: {error}", path.display())))?;
            (text, path.display().to_string())
        }
        None => match kept::of(server)? {
            Some(text) => (text, "what `pcfarm login` has kept".to_owned()),
            None => return Ok(None),
        },
    };
    let token = text.trim().parse().map_err(|wrong| Failure::usage(format!("{from}: {wrong}")))?;
    Ok(Some(token))
}

/// Whether others may hear what is said to a server.
fn listened_to(server: &str) -> bool {
    let uri = server.parse::<tonic::codegen::http::Uri>().ok();
    let host = uri.as_ref().and_then(|uri| uri.host()).unwrap_or_default().trim_matches(['[', ']']);
    let is_here = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    server.starts_with("http://") && !is_here
}

/// Tokens by server, in a file that nobody else reads.
pub mod kept {
    use super::{Failure, Path, PathBuf, Result, configuration, platform};
    use std::collections::BTreeMap;
    use std::fs;
    use std::io::Write;

    const FILE: &str = "tokens.toml";

    fn file() -> Result<PathBuf> {
        configuration().map(|directory| directory.join(FILE)).ok_or_else(|| {
            Failure::usage("there is no home directory to keep a token in: set PCFARM_TOKEN or --token-file")
        })
    }

    fn all(file: &Path) -> Result<BTreeMap<String, String>> {
        match fs::read_to_string(file) {
            Ok(text) => {
                toml::from_str(&text).map_err(|_| Failure::usage(format!("{} is spoilt: remove it", file.display())))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(error) => Err(Failure::usage(format!("reading {}: {error}", file.display()))),
        }
    }

    pub fn of(server: &str) -> Result<Option<String>> {
        match configuration() {
            None => Ok(None),
            Some(directory) => Ok(all(&directory.join(FILE))?.remove(server)),
        }
    }

    /// None: it is forgotten. Returns where it is kept.
    pub fn keep(server: &str, token: Option<&str>) -> Result<PathBuf> {
        let file = file()?;
        let mut tokens = all(&file)?;
        match token {
            Some(token) => tokens.insert(server.to_owned(), token.to_owned()),
            None => tokens.remove(server),
        };
        let text = toml::to_string(&tokens)?;
        if let Some(directory) = file.parent() {
            platform::make_private_dir(directory)?;
        }
        let aside = file.with_extension("new");
        match fs::remove_file(&aside) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
        let mut to = platform::create_private(&aside)?;
        to.write_all(text.as_bytes())?;
        to.sync_all()?;
        fs::rename(&aside, &file)?;
        Ok(file)
    }
}

/// `$XDG_CONFIG_HOME/pcfarm/pcfarm.toml`, and `~/.config` where that is not set.
fn default_file() -> Option<PathBuf> {
    Some(configuration()?.join("pcfarm.toml"))
}

fn configuration() -> Option<PathBuf> {
    platform::configuration().map(|directory| directory.join("pcfarm"))
}

/// `host:port` and `http://host:port` name the same server.
fn server_url(text: &str) -> Result<String> {
    let text = text.trim();
    let url = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let parsed = url.parse::<tonic::codegen::http::Uri>().ok();
    let is_server = parsed.is_some_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty())
    });
    if !is_server {
        return Err(Failure::usage(format!("`{text}` is not a server: write https://HOST:PORT or http://HOST:PORT")));
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

/// The same, and days: `90d`.
pub fn lifetime(text: &str) -> Result<Duration, String> {
    match text.trim().strip_suffix('d').and_then(|days| days.trim().parse::<u32>().ok()).filter(|days| *days > 0) {
        Some(days) => Ok(Duration::from_secs(u64::from(days) * 24 * 3600)),
        None => duration(text).map_err(|wrong| format!("{wrong}, or 90d")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn global(server: Option<&str>, config: Option<PathBuf>) -> Global {
        Global {
            server: server.map(str::to_owned),
            config,
            timeout: None,
            output: None,
            token_file: None,
            ca: None,
            insecure: false,
            proxy: None,
            trace: false,
        }
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
    fn a_token_is_not_told_to_who_listens_in() {
        for (server, expected) in [
            ("http://farm:7070", true),
            ("http://10.0.0.7:7070", true),
            ("https://farm:7070", false),
            ("http://localhost:7070", false),
            ("http://127.0.0.1:7070", false),
            ("http://[::1]:7070", false),
        ] {
            assert_eq!(listened_to(server), expected, "{server}");
        }
    }

    #[test]
    fn servers_and_lengths_of_time() {
        let servers = [
            ("farm:7070", Some("http://farm:7070")),
            ("http://farm:7070/", Some("http://farm:7070")),
            ("[::1]:7070", Some("http://[::1]:7070")),
            ("https://farm", Some("https://farm")),
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
