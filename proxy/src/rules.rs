//! The proxy for a destination, by a setting or by the variables that most programs share.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use hyper::Uri;
use hyper::header::HeaderValue;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};

/// Setting that switches proxies off, also those of the environment variables.
pub const NONE: &str = "none";

/// A proxy that cannot be used. The text never shows the address: it may have a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    #[error("{0}: not the address of an HTTP proxy: write http://proxy.example.org:3128")]
    Address(String),
    #[error("{0}: {1} proxies are not supported: write http://proxy.example.org:3128")]
    Scheme(String, String),
}

/// Address of the entry for a variable that cannot be used, so that `NO_PROXY` holds for it. It is never connected to.
const UNUSABLE: &str = "http://unusable.invalid";

/// Proxies by destination.
#[derive(Clone)]
pub struct Proxies {
    matcher: Arc<Matcher>,
    origin: String,
    /// Variables that cannot be used, by the scheme of destinations. Desktops export `ALL_PROXY=socks://…`, also to programs that
    /// connect to this host alone: only a destination that needs the variable is refused.
    unusable: Unusable,
}

#[derive(Clone, Default)]
struct Unusable {
    https: Option<ProxyError>,
    http: Option<ProxyError>,
}

impl fmt::Debug for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.origin)
    }
}

impl Default for Proxies {
    /// Every destination is reached directly.
    fn default() -> Proxies {
        Proxies {
            matcher: Arc::new(Matcher::builder().build()),
            origin: NONE.to_owned(),
            unusable: Unusable::default(),
        }
    }
}

impl Proxies {
    /// `setting`: an address for all destinations, or `none`. Without a setting the variables decide. `NO_PROXY` holds in both cases.
    /// A setting that cannot be used is an error. A variable that cannot be used is one for its destinations.
    pub fn of(setting: Option<&str>, variable: impl Fn(&str) -> Option<String>) -> Result<Proxies, ProxyError> {
        let first = |name: &str| {
            let both = [name.to_owned(), name.to_lowercase()];
            both.into_iter()
                .find_map(|name| variable(&name).map(|value| value.trim().to_owned()).filter(|v| !v.is_empty()))
        };
        let no_proxy = first("NO_PROXY").unwrap_or_default();
        let setting = setting.map(str::trim).filter(|setting| !setting.is_empty());
        if setting == Some(NONE) {
            return Ok(Proxies::default());
        }
        if let Some(address) = setting {
            let all = checked("proxy", address)?;
            let matcher = Matcher::builder().all(all).no(no_proxy).build();
            let origin = "by the setting".to_owned();
            return Ok(Proxies { matcher: Arc::new(matcher), origin, unusable: Unusable::default() });
        }
        let deciding = |name: &'static str| {
            let all = "ALL_PROXY";
            first(name).map(|address| (name, address)).or_else(|| first(all).map(|address| (all, address)))
        };
        let (https, http) = (deciding("HTTPS_PROXY"), deciding("HTTP_PROXY"));
        let mut origin: Vec<&str> = [&https, &http].into_iter().flatten().map(|(name, _)| *name).collect();
        origin.dedup();
        if origin.is_empty() {
            return Ok(Proxies::default());
        }
        let origin = format!("by {}", origin.join(", "));
        let ((https, of_https), (http, of_http)) = (usable(https), usable(http));
        let matcher = Matcher::builder().https(https).http(http).no(no_proxy).build();
        Ok(Proxies { matcher: Arc::new(matcher), origin, unusable: Unusable { https: of_https, http: of_http } })
    }

    /// The proxy that a connection goes through; `None`: a direct connection. This host is always reached directly.
    pub fn proxy_of(&self, destination: &Uri) -> Result<Option<Intercept>, ProxyError> {
        let host = destination.host().unwrap_or_default().trim_matches(['[', ']']);
        let is_here = host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        if is_here {
            return Ok(None);
        }
        let Some(proxy) = self.matcher.intercept(destination) else { return Ok(None) };
        let https = destination.scheme_str() == Some("https");
        match if https { &self.unusable.https } else { &self.unusable.http } {
            Some(error) => Err(error.clone()),
            None => Ok(Some(proxy)),
        }
    }

    /// Host and port of the proxy, for messages; `None`: a direct connection.
    pub fn name_of(&self, destination: &Uri) -> Option<String> {
        self.proxy_of(destination).ok()?.map(|proxy| name(&proxy))
    }

    /// Variables that cannot be used, for a warning.
    pub fn unusable(&self) -> impl Iterator<Item = &ProxyError> {
        let Unusable { https, http } = &self.unusable;
        https.iter().chain(http.iter().filter(move |http| Some(*http) != https.as_ref()))
    }

    /// The value of `Proxy-Authorization` in a request that is not sent through a tunnel.
    pub fn authorization(&self, destination: &Uri) -> Option<HeaderValue> {
        if destination.scheme_str() != Some("http") {
            return None;
        }
        self.proxy_of(destination).ok()??.basic_auth().cloned()
    }
}

/// Host and port, without a password.
pub(crate) fn name(proxy: &Intercept) -> String {
    proxy.uri().authority().map(ToString::to_string).unwrap_or_default()
}

/// Address of the proxy that a variable names, empty without a variable; and the error that its destinations get.
fn usable(variable: Option<(&str, String)>) -> (String, Option<ProxyError>) {
    let Some((name, address)) = variable else { return (String::new(), None) };
    match checked(name, &address) {
        Ok(address) => (address, None),
        Err(error) => (UNUSABLE.to_owned(), Some(error)),
    }
}

/// As a URL with its scheme.
fn checked(name: &str, address: &str) -> Result<String, ProxyError> {
    let wrong = || ProxyError::Address(name.to_owned());
    let address = if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
    let uri: Uri = address.parse().map_err(|_| wrong())?;
    match uri.scheme_str() {
        Some("http" | "https") => {}
        Some(other) => return Err(ProxyError::Scheme(name.to_owned(), other.to_owned())),
        None => return Err(wrong()),
    }
    if uri.host().is_none_or(str::is_empty) || !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        return Err(wrong());
    }
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(setting: Option<&str>, variables: &[(&str, &str)]) -> Result<Proxies, ProxyError> {
        let variable =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        Proxies::of(setting, variable)
    }

    fn proxy(proxies: &Proxies, destination: &str) -> String {
        match proxies.proxy_of(&destination.parse().expect("a URL")) {
            Ok(proxy) => proxy.map_or_else(|| "direct".to_owned(), |proxy| name(&proxy)),
            Err(ProxyError::Address(variable) | ProxyError::Scheme(variable, _)) => format!("{variable} is wrong"),
        }
    }

    #[test]
    fn each_destination_has_its_proxy() {
        let secure = ("HTTPS_PROXY", "http://secure:3128");
        let plain = ("http_proxy", "plain:3128");
        let all = ("ALL_PROXY", "http://all:3128/");
        let socks = ("all_proxy", "socks://127.0.0.1:1080");
        let except = ("NO_PROXY", "inside.example, .lab.example,10.0.0.0/8, 192.0.2.7");
        for (setting, variables, destination, expected) in [
            (None, &[][..], "https://hooks.example/x", "direct"),
            (None, &[secure, plain], "https://hooks.example/x", "secure:3128"),
            (None, &[secure, plain], "http://hooks.example:8080/x", "plain:3128"),
            (None, &[secure], "http://hooks.example/x", "direct"),
            (None, &[secure, all], "http://hooks.example/x", "all:3128"),
            (None, &[all, except], "https://inside.example/x", "direct"),
            (None, &[all, except], "https://store.lab.example/x", "direct"),
            (None, &[all, except], "http://10.1.2.3:9000/x", "direct"),
            (None, &[all, except], "http://192.0.2.7/x", "direct"),
            (None, &[all, except], "http://192.0.2.8/x", "all:3128"),
            (None, &[("HTTPS_PROXY", " ")], "https://hooks.example/x", "direct"),
            (Some("http://set:8080"), &[secure], "https://hooks.example/x", "set:8080"),
            (Some("set:8080"), &[secure, except], "https://inside.example/x", "direct"),
            (Some("none"), &[secure, all], "https://hooks.example/x", "direct"),
            (Some(""), &[secure], "https://hooks.example/x", "secure:3128"),
            // Desktops export SOCKS proxies to all programs.
            (None, &[socks], "http://127.0.0.1:7070", "direct"),
            (None, &[socks], "http://hooks.example/x", "ALL_PROXY is wrong"),
            (None, &[socks, except], "http://inside.example/x", "direct"),
            (None, &[socks, except], "http://10.1.2.3/x", "direct"),
            (None, &[socks, secure], "https://hooks.example/x", "secure:3128"),
            (None, &[socks, secure], "http://hooks.example/x", "ALL_PROXY is wrong"),
            (None, &[socks, secure, plain], "http://hooks.example/x", "plain:3128"),
            (None, &[("HTTPS_PROXY", "ftp://old"), all], "https://hooks.example/x", "HTTPS_PROXY is wrong"),
            (None, &[("HTTPS_PROXY", "ftp://old"), all], "http://hooks.example/x", "all:3128"),
            (Some("http://set:8080"), &[socks], "http://hooks.example/x", "set:8080"),
            (Some("none"), &[socks], "http://hooks.example/x", "direct"),
            // Programs on this host are never asked for through a proxy.
            (Some("http://set:8080"), &[], "http://127.0.0.1:7070", "direct"),
            (Some("http://set:8080"), &[], "http://localhost:7070", "direct"),
            (Some("http://set:8080"), &[], "http://[::1]:7070", "direct"),
        ] {
            let proxies = of(setting, variables).expect("sensible");
            assert_eq!(proxy(&proxies, destination), expected, "{setting:?} {variables:?} {destination}");
        }
    }

    #[test]
    fn passwords_are_sent_and_never_shown() {
        let proxies = of(Some("http://me:hidden@proxy:3128"), &[]).expect("sensible");
        let plain = "http://hooks.example/x".parse().expect("a URL");
        assert_eq!(proxies.authorization(&plain).expect("it is sent"), "Basic bWU6aGlkZGVu");
        assert_eq!(proxies.authorization(&"https://hooks.example/x".parse().expect("a URL")), None);
        assert!(!format!("{proxies:?}").contains("hidden"));
        for wrong in ["socks5://me:hidden@proxy:1080", "http://", "http://me:hid den@proxy", "http://me:hidden@proxy/x"]
        {
            let error = of(Some(wrong), &[]).expect_err(wrong).to_string();
            assert!(error.starts_with("proxy: ") && !error.contains("hid"), "{error}");
        }
        let proxies =
            of(None, &[("HTTPS_PROXY", "ftp://me:hidden@proxy"), ("ALL_PROXY", "proxy/hidden")]).expect("kept");
        let errors: Vec<String> = proxies.unusable().map(ToString::to_string).collect();
        assert!(errors[0].starts_with("HTTPS_PROXY: ftp proxies are not supported"), "{errors:?}");
        assert!(errors[1].starts_with("ALL_PROXY: not the address"), "{errors:?}");
        assert!(errors.iter().all(|error| !error.contains("hidden")) && errors.len() == 2, "{errors:?}");
        let both = of(None, &[("ALL_PROXY", "socks5://proxy")]).expect("kept");
        assert_eq!(both.unusable().count(), 1, "a warning for each variable");
    }
}
