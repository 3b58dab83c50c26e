//! Reads libpq's `ssl*` parameters into an [`Encryption`], by libpq's rules and defaults.

use std::path::{Path, PathBuf};

use rustls::SupportedProtocolVersion;
use rustls::version::{TLS12, TLS13};
use tokio_postgres::config::Host;

use super::conninfo::Parameters;
use super::places::Place;
use super::{Environment, SettingsError, wrong};
use crate::tls::{Encryption, Identity, Mode, Roots};

/// Parameters that ask for protection which is not there are refused, not ignored.
const REFUSED: &[&str] = &["sslcrl", "sslcrldir", "sslpassword", "require_auth", "requirepeer", "replication"];

pub(super) fn encryption(
    parameters: &Parameters,
    places: &[Place],
    environment: &Environment,
) -> Result<Encryption, SettingsError> {
    let get = |key: &str| parameters.get(key).map(String::as_str);
    for name in REFUSED {
        if let Some(value) = get(name) {
            // An option's password must not be shown.
            let value = if *name == "sslpassword" { "…" } else { value };
            return Err(SettingsError::Unsupported { name, value: value.to_owned() });
        }
    }
    let mode = mode(parameters)?;
    let over_network = places.iter().any(|place| matches!(place.host, Host::Tcp(_)));
    if let (true, Some("require")) = (over_network, get("gssencmode")) {
        return Err(SettingsError::Unsupported { name: "gssencmode", value: "require".to_owned() });
    }
    if get("sslnegotiation") == Some("direct") && over_network && mode < Mode::Require {
        return Err(SettingsError::Weak { mode, strong: "sslnegotiation=direct", wanted: "require" });
    }
    // As in libpq, TLS does not concern Unix sockets.
    if mode == Mode::Disable || !over_network {
        return Ok(Encryption::off());
    }
    if mode >= Mode::Require && places.iter().any(|place| !matches!(place.host, Host::Tcp(_))) {
        return Err(SettingsError::SocketAndTls(mode));
    }
    let default = |name: &str| environment.home.as_ref().map(|home| home.join(".postgresql").join(name));
    // libpq reads this file without being told. Below `require` it protects nothing.
    if let Some(path) = default("root.crl").filter(|path| mode >= Mode::Require && path.exists()) {
        return Err(SettingsError::Revocations(path));
    }
    let roots = match (get("sslrootcert"), default("root.crt")) {
        (Some("system"), _) => Roots::System,
        (Some(path), _) => Roots::File(PathBuf::from(path)),
        (None, Some(path)) => Roots::Default(path),
        (None, None) => Roots::None,
    };
    let encryption = Encryption {
        mode,
        roots,
        identity: identity(parameters, default("postgresql.crt").as_deref())?,
        sni: get("sslsni") != Some("0"),
        versions: versions(parameters)?,
    };
    Ok(encryption)
}

fn mode(parameters: &Parameters) -> Result<Mode, SettingsError> {
    let is_system = parameters.get("sslrootcert").is_some_and(|roots| roots == "system");
    let mode = match parameters.get("sslmode") {
        None if is_system => Mode::VerifyFull,
        None => Mode::Prefer,
        Some(mode) => Mode::parse(mode)
            .ok_or_else(|| wrong("sslmode", "one of disable, allow, prefer, require, verify-ca, verify-full"))?,
    };
    // A public authority issues certificates to everyone, so without the name one proves nothing.
    if is_system && mode != Mode::VerifyFull {
        return Err(SettingsError::Weak { mode, strong: "sslrootcert=system", wanted: "verify-full" });
    }
    Ok(mode)
}

fn identity(parameters: &Parameters, default: Option<&Path>) -> Result<Option<Identity>, SettingsError> {
    match parameters.get("sslcertmode").map(String::as_str) {
        Some("disable") => return Ok(None),
        None | Some("allow") => (),
        Some("require") => {
            return Err(SettingsError::Unsupported { name: "sslcertmode", value: "require".to_owned() });
        }
        Some(_) => return Err(wrong("sslcertmode", "disable or allow")),
    }
    let given = parameters.get("sslcert").map(PathBuf::from);
    let by_default = given.is_none();
    let Some(certificate) = given.or(default.map(Path::to_owned)) else { return Ok(None) };
    let key = match (parameters.get("sslkey"), default) {
        (Some(key), _) => PathBuf::from(key),
        (None, Some(default)) => default.with_extension("key"),
        (None, None) => certificate.with_extension("key"),
    };
    Ok(Some(Identity { certificate, key, by_default }))
}

static ONLY_TLS12: &[&SupportedProtocolVersion] = &[&TLS12];
static ONLY_TLS13: &[&SupportedProtocolVersion] = &[&TLS13];

/// TLS 1.2 and 1.3 within the limits that are given.
fn versions(parameters: &Parameters) -> Result<&'static [&'static SupportedProtocolVersion], SettingsError> {
    const NAMES: [&str; 4] = ["TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"];
    let number = |key: &'static str, default: usize| match parameters.get(key) {
        None => Ok(default),
        Some(name) => NAMES
            .iter()
            .position(|known| known.eq_ignore_ascii_case(name))
            .ok_or_else(|| wrong(key, "TLSv1, TLSv1.1, TLSv1.2 or TLSv1.3")),
    };
    match (number("ssl_min_protocol_version", 2)?, number("ssl_max_protocol_version", 3)?) {
        (minimum, maximum) if maximum < 2 || minimum > maximum => {
            Err(wrong("ssl_max_protocol_version", "TLSv1.2 or TLSv1.3, and not below ssl_min_protocol_version"))
        }
        (3, _) => Ok(ONLY_TLS13),
        (_, 2) => Ok(ONLY_TLS12),
        _ => Ok(rustls::ALL_VERSIONS),
    }
}
