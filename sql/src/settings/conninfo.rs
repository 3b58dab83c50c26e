//! Reads libpq's two forms of a connection string, `postgresql://…` and `host=… dbname=…`, into parameters by libpq's
//! names. tokio-postgres has parsers of its own, but they refuse what every libpq program takes (`sslmode=allow`,
//! `passfile`, `service`, `keepalives_count`) and cannot tell "not given" from "default", which merging needs.
//! An error never quotes the text: it may hold a password.

use std::collections::BTreeMap;

/// Parameters by libpq's names; an empty value is the same as none and is not kept.
pub(super) type Parameters = BTreeMap<String, String>;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConninfoError {
    #[error("it is neither a postgresql:// URL nor libpq's key=value form: a `=` is missing")]
    MissingEquals,
    #[error("no parameter follows the password: put a password with spaces into single quotes")]
    AfterPassword,
    #[error("the quoted value of {key:?} does not end: close it with a single quote")]
    UnclosedQuote { key: String },
    #[error("the IPv6 address does not end: close it with `]`")]
    UnclosedBracket,
    #[error("after the `]` of an IPv6 address only `:port`, `,` or `/` may follow")]
    AfterBracket,
    #[error("{place} has a `%` that is not followed by two hexadecimal digits: write a `%` itself as %25")]
    Percent { place: &'static str },
    #[error("{place} is not UTF-8 without NUL")]
    Text { place: &'static str },
    #[error("the URL has no parameter {key:?}: PostgreSQL's own programs know none of that name either")]
    UnknownParameter { key: String },
    #[error("{key:?} is not a connection parameter: PostgreSQL's own programs know none of that name either")]
    UnknownKey { key: String },
    #[error("the parameter {key:?} has no `=`")]
    ParameterWithoutValue { key: String },
}

/// Every name libpq (up to 18) knows. What has no meaning here is listed too, so that a string which works with psql is
/// not refused because of it; what we would have to obey and cannot is refused in `settings`.
const KNOWN: &str = "application_name channel_binding client_encoding connect_timeout dbname fallback_application_name gssdelegation \
    gssencmode gsslib host hostaddr keepalives keepalives_count keepalives_idle keepalives_interval krbsrvname \
    load_balance_hosts max_protocol_version min_protocol_version oauth_client_id oauth_client_secret oauth_issuer \
    oauth_scope options passfile password port replication require_auth requirepeer scram_client_key \
    scram_server_key service servicefile sslcert sslcertmode sslcompression sslcrl sslcrldir sslkey sslkeylogfile \
    sslmode sslnegotiation sslpassword sslrootcert sslsni ssl_max_protocol_version ssl_min_protocol_version \
    target_session_attrs tcp_user_timeout user";

pub(super) fn is_known(key: &str) -> bool {
    KNOWN.split(' ').any(|known| known == key)
}

pub(super) fn parse(text: &str) -> Result<Parameters, ConninfoError> {
    let text = text.trim_start();
    let url = ["postgresql://", "postgres://"].iter().find_map(|prefix| text.strip_prefix(prefix));
    match url {
        Some(rest) => parse_url(rest),
        None => parse_pairs(text),
    }
}

/// `[user[:password]@][host[:port][,…]][/dbname][?key=value[&…]]`, as libpq reads it.
fn parse_url(rest: &str) -> Result<Parameters, ConninfoError> {
    let mut parameters = Parameters::new();
    // Like libpq, look for the `@` only before the first `/`: a password with either must be percent-encoded.
    let authority_end = rest.find(['/', '?']).unwrap_or(rest.len());
    let at = rest[..authority_end].find('@');
    let rest = match at {
        None => rest,
        Some(at) => {
            let (user, password) = match rest[..at].split_once(':') {
                Some((user, password)) => (user, Some(password)),
                None => (&rest[..at], None),
            };
            keep(&mut parameters, "user", decode(user, "the user")?);
            if let Some(password) = password {
                keep(&mut parameters, "password", decode(password, "the password")?);
            }
            &rest[at + 1..]
        }
    };
    let hosts_end = rest.find(['/', '?']).unwrap_or(rest.len());
    parse_hosts(&rest[..hosts_end], &mut parameters)?;

    let mut rest = &rest[hosts_end..];
    if let Some(path) = rest.strip_prefix('/') {
        let end = path.find('?').unwrap_or(path.len());
        keep(&mut parameters, "dbname", decode(&path[..end], "the database name")?);
        rest = &path[end..];
    }
    for pair in rest.strip_prefix('?').unwrap_or("").split('&') {
        if pair.is_empty() {
            continue;
        }
        let (key, value) =
            pair.split_once('=').ok_or_else(|| ConninfoError::ParameterWithoutValue { key: shown(pair) })?;
        let key = decode(key, "a parameter's name")?;
        let value = decode(value, "a parameter's value")?;
        if key == "ssl" && value == "true" {
            keep(&mut parameters, "sslmode", "require".to_owned()); // libpq takes JDBC's spelling
            continue;
        }
        if !is_known(&key) {
            return Err(ConninfoError::UnknownParameter { key: shown(&key) });
        }
        keep(&mut parameters, &key, value);
    }
    Ok(parameters)
}

/// The comma list of a URL becomes libpq's two parallel lists, `host` and `port`.
fn parse_hosts(text: &str, parameters: &mut Parameters) -> Result<(), ConninfoError> {
    let mut hosts = Vec::new();
    let mut ports = Vec::new();
    for one in text.split(',') {
        let (host, port) = match one.strip_prefix('[') {
            Some(bracketed) => {
                let (host, after) = bracketed.split_once(']').ok_or(ConninfoError::UnclosedBracket)?;
                match after.strip_prefix(':') {
                    Some(port) => (host, port),
                    None if after.is_empty() => (host, ""),
                    None => return Err(ConninfoError::AfterBracket),
                }
            }
            None => one.split_once(':').unwrap_or((one, "")),
        };
        hosts.push(decode(host, "the host")?);
        ports.push(decode(port, "the port")?);
    }
    let hosts = hosts.join(",");
    if !hosts.is_empty() {
        keep(parameters, "host", hosts);
    }
    if ports.iter().any(|port| !port.is_empty()) {
        keep(parameters, "port", ports.join(","));
    }
    Ok(())
}

/// `key = value …`; values with spaces stand in single quotes, and a backslash takes the next character as it is.
fn parse_pairs(text: &str) -> Result<Parameters, ConninfoError> {
    let mut parameters = Parameters::new();
    let mut rest = text.trim_start();
    let mut previous = "";
    while !rest.is_empty() {
        let end = rest.find(|c: char| c == '=' || c.is_whitespace()).unwrap_or(rest.len());
        let key = &rest[..end];
        let after = rest[end..].trim_start().strip_prefix('=');
        let Some(after) = after.filter(|_| is_known(key)) else {
            // A "key" after a password may be the rest of one that was not quoted.
            return Err(match (previous, after) {
                ("password", _) => ConninfoError::AfterPassword,
                (_, None) => ConninfoError::MissingEquals,
                // Most likely a URL of which something is missing, and it may hold a password.
                _ if !key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') => ConninfoError::MissingEquals,
                (_, Some(_)) => ConninfoError::UnknownKey { key: key.to_owned() },
            });
        };
        previous = key;
        let (value, after) = take_value(key, after.trim_start())?;
        keep(&mut parameters, key, value);
        rest = after.trim_start();
    }
    Ok(parameters)
}

fn take_value<'a>(key: &str, text: &'a str) -> Result<(String, &'a str), ConninfoError> {
    let quoted = text.starts_with('\'');
    let mut value = String::new();
    let mut characters = text.char_indices().skip(usize::from(quoted));
    while let Some((index, character)) = characters.next() {
        match character {
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            '\'' if quoted => return Ok((value, &text[index + 1..])),
            c if !quoted && c.is_whitespace() => return Ok((value, &text[index..])),
            c => value.push(c),
        }
    }
    if quoted {
        return Err(ConninfoError::UnclosedQuote { key: key.to_owned() });
    }
    Ok((value, ""))
}

/// A name that somebody may be told. Anything else may hold a password.
fn shown(key: &str) -> String {
    let is_name = key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if is_name { key.to_owned() } else { "…".to_owned() }
}

fn keep(parameters: &mut Parameters, key: &str, value: String) {
    if value.is_empty() {
        parameters.remove(key);
    } else {
        parameters.insert(key.to_owned(), value);
    }
}

fn decode(text: &str, place: &'static str) -> Result<String, ConninfoError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        match (digit(), digit()) {
            (Some(high), Some(low)) => bytes.push((high * 16 + low) as u8),
            _ => return Err(ConninfoError::Percent { place }),
        }
    }
    match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text),
        _ => Err(ConninfoError::Text { place }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(expected: &[(&str, &str)]) -> Parameters {
        expected.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    #[test]
    fn connection_strings_are_read_as_libpq_reads_them() {
        let table: &[(&str, &[(&str, &str)])] = &[
            ("postgresql://", &[]),
            ("postgres://localhost", &[("host", "localhost")]),
            ("postgresql:///mydb", &[("dbname", "mydb")]),
            (
                "postgresql://ann:s%40%3Ac%2Fret@db:5433/farm",
                &[("user", "ann"), ("password", "s@:c/ret"), ("host", "db"), ("port", "5433"), ("dbname", "farm")],
            ),
            ("postgresql://ann:@db", &[("user", "ann"), ("host", "db")]),
            (
                "postgresql://ann@one:1,two,[::1]:3/x",
                &[("user", "ann"), ("host", "one,two,::1"), ("port", "1,,3"), ("dbname", "x")],
            ),
            ("postgresql://%2Frun%2Fpg/x", &[("host", "/run/pg"), ("dbname", "x")]),
            (
                "postgresql:///x?host=/tmp&port=6&options=-c%20a%3Db",
                &[("dbname", "x"), ("host", "/tmp"), ("port", "6"), ("options", "-c a=b")],
            ),
            ("postgresql://db?ssl=true", &[("host", "db"), ("sslmode", "require")]),
            ("postgresql://db/x?user=a@b", &[("host", "db"), ("dbname", "x"), ("user", "a@b")]),
            ("", &[]),
            (" host = /tmp  user=ann ", &[("host", "/tmp"), ("user", "ann")]),
            (r"password='it\'s \\ here' dbname=a\ b port=''", &[("password", r"it's \ here"), ("dbname", "a b")]),
        ];
        for (text, expected) in table {
            assert_eq!(parse(text), Ok(pairs(expected)), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_named_without_secrets() {
        let table = [
            ("postgresql://a:hush%zz@db", "%25"),
            ("postgresql://a:hush%00@db", "the password is not UTF-8"),
            ("postgresql://[::1/x", "]"),
            ("postgresql://[::1]x/y", "]"),
            ("postgresql://db/x?colour=1", "colour"),
            ("postgresql://db/x?dbname", "dbname"),
            ("password=a hush", "single quotes"),
            ("password=a hush=x", "single quotes"),
            ("password='hush", "single quote"),
            ("/some/where", "postgresql://"),
            ("colour=blue", "colour"),
        ];
        for (text, expected) in table {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(expected) && !error.contains("hush"), "{text}: {error}");
        }
    }
}
