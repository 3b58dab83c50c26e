//! Mail, through a relay.

use super::{Failure, text};
use hyper::Uri;
use lettre::address::Envelope;
use lettre::message::header::{ContentType, HeaderName, HeaderValue};
use lettre::message::{Mailbox, Message};
use lettre::transport::smtp::client::{Certificate, Tls, TlsParameters};
use lettre::transport::smtp::extension::ClientId;
use lettre::transport::smtp::response::Severity;
use lettre::{Address, AsyncSmtpTransport, AsyncTransport, Tokio1Executor};
use pcfarm_sql::alerts::Claimed;
use std::fmt;
use std::net::IpAddr;

/// Mailbox unavailable, not here, not allowed: another time it is not there either. Any other refusal may be about us.
const NO_MAILBOX: [u16; 3] = [550, 551, 553];

pub struct Mailer {
    transport: AsyncSmtpTransport<Tokio1Executor>,
    from: Mailbox,
    /// For people: the URL has a password.
    relay: String,
}

impl fmt::Debug for Mailer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", self.from, self.relay)
    }
}

impl Mailer {
    /// What is wrong is said without the URL, for it has a password.
    /// `hello`: the name that the relay is greeted with, the host's own by default. `authorities`: PEM, beside the system's.
    pub fn new(url: &str, from: &str, hello: Option<&str>, authorities: Option<&[u8]>) -> Result<Mailer, String> {
        let from: Mailbox = from.parse().map_err(|_| format!("mail_from: {from:?} is not an address of mail"))?;
        let wrong = "smtp_url: it is like smtp://user:password@mail.example.org:587, or smtps://";
        let uri: Uri = url.parse().map_err(|_| wrong)?;
        let host = uri.host().ok_or(wrong)?;
        if !matches!(uri.scheme_str(), Some("smtp" | "smtps")) {
            return Err(wrong.to_owned());
        }
        let encrypted = with_encryption(url, &uri);
        let mut transport = AsyncSmtpTransport::<Tokio1Executor>::from_url(&encrypted).map_err(|_| {
            format!(
                "{wrong}; it may end in ?tls=required, ?tls=opportunistic or ?tls=none, and this one is none of these"
            )
        })?;
        if let Some(name) = hello {
            transport = transport.hello_name(client(name)?);
        }
        if let Some(tls) = authorities.map(|pem| trusting(host, pem)).transpose()? {
            // The same choice as in `from_url`.
            transport = match (uri.scheme_str(), encrypted.split_once("?tls=").map(|(_, tls)| tls)) {
                (Some("smtps"), _) => transport.tls(Tls::Wrapper(tls)),
                (_, Some("required")) => transport.tls(Tls::Required(tls)),
                (_, Some("opportunistic")) => transport.tls(Tls::Opportunistic(tls)),
                _ => transport,
            };
        }
        Ok(Mailer { transport: transport.build(), from, relay: host.to_owned() })
    }

    pub(super) async fn send(&self, alert: &Claimed) -> Result<(), Failure> {
        let message = self.message(alert).map_err(Failure::InVain)?;
        let envelope: &Envelope = message.envelope();
        match self.transport.send_raw(envelope, &message.formatted()).await {
            Ok(_) => Ok(()),
            Err(error) => {
                let refused = error.status().is_some_and(|code| {
                    code.severity == Severity::PermanentNegativeCompletion && NO_MAILBOX.contains(&code.into())
                });
                let said = format!("{}: {}", self.relay, chain(&error));
                Err(if refused { Failure::InVain(said) } else { Failure::Again(said) })
            }
        }
    }

    fn message(&self, alert: &Claimed) -> Result<Message, String> {
        let to: Address = alert.target.parse().map_err(|error| format!("its target is no address: {error}"))?;
        let body = serde_json::from_slice(&alert.body.0).map_err(|error| format!("its body: {error}"))?;
        let id = format!("<{}@{}>", alert.message_id, self.from.email.domain());
        let mut message = Message::builder()
            .from(self.from.clone())
            .to(Mailbox::new(None, to))
            .subject(text::subject(&alert.what, &body))
            .message_id(Some(id))
            .header(ContentType::TEXT_PLAIN)
            .body(text::mail(&alert.what, &body, alert.created_at))
            .map_err(|error| format!("it cannot be mailed: {error}"))?;
        // Lest holiday notices answer.
        let automatic = HeaderName::new_from_ascii_str("Auto-Submitted");
        message.headers_mut().insert_raw(HeaderValue::new(automatic, "auto-generated".to_owned()));
        Ok(message)
    }
}

/// A name or an address in the greeting of a relay.
fn client(name: &str) -> Result<ClientId, String> {
    let is_name = |name: &str| {
        let label =
            |label: &str| !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
        name.len() <= 253 && name.split('.').all(label)
    };
    match name.trim_matches(['[', ']']).parse() {
        Ok(IpAddr::V4(address)) => Ok(ClientId::Ipv4(address)),
        Ok(IpAddr::V6(address)) => Ok(ClientId::Ipv6(address)),
        Err(_) if is_name(name) => Ok(ClientId::Domain(name.to_owned())),
        Err(_) => Err(format!("mail_hello: {name:?} is not a host name such as farm.example.org, nor an address")),
    }
}

/// TLS to a relay that one of these authorities, or of the system's, vouches for.
fn trusting(host: &str, authorities: &[u8]) -> Result<TlsParameters, String> {
    let wrong = |error| format!("outgoing_ca: {error}");
    let authorities = Certificate::from_pem(authorities).map_err(wrong)?;
    let host = host.trim_matches(['[', ']']).to_owned();
    TlsParameters::builder(host).add_root_certificate(authorities).build_rustls().map_err(wrong)
}

/// What leaves this machine is encrypted, unless the URL says otherwise.
fn with_encryption(url: &str, uri: &Uri) -> String {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let here = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    match uri.query() {
        Some("tls=none") => url.replace("?tls=none", ""),
        Some(_) => url.to_owned(),
        None if here || uri.scheme_str() == Some("smtps") => url.to_owned(),
        None => format!("{url}?tls=required"),
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leaves_the_machine_is_encrypted() {
        let cases = [
            ("smtp://mail.example.org", "smtp://mail.example.org?tls=required"),
            ("smtp://me:pass@mail.example.org:587", "smtp://me:pass@mail.example.org:587?tls=required"),
            ("smtp://mail.example.org?tls=opportunistic", "smtp://mail.example.org?tls=opportunistic"),
            ("smtp://10.0.0.1:25?tls=none", "smtp://10.0.0.1:25"),
            ("smtps://mail.example.org", "smtps://mail.example.org"),
            ("smtp://localhost:25", "smtp://localhost:25"),
            ("smtp://127.0.0.1:25", "smtp://127.0.0.1:25"),
            ("smtp://[::1]:25", "smtp://[::1]:25"),
        ];
        for (url, expected) in cases {
            assert_eq!(with_encryption(url, &url.parse().expect("a URL")), expected);
        }
    }

    #[test]
    fn relays_are_greeted_with_a_name_or_an_address() {
        let domain = |name: &str| ClientId::Domain(name.to_owned());
        for (name, expected) in [
            ("farm.example.org", domain("farm.example.org")),
            ("farm", domain("farm")),
            ("192.0.2.1", ClientId::Ipv4([192, 0, 2, 1].into())),
            ("[2001:db8::1]", ClientId::Ipv6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into())),
        ] {
            assert_eq!(client(name), Ok(expected));
        }
        for name in ["", "two words", "farm..org", "a\r\nMAIL", "färm.example.org"] {
            assert!(client(name).expect_err(name).starts_with("mail_hello: "), "{name}");
        }
    }

    #[test]
    fn no_password_is_shown() {
        let mailer = Mailer::new("smtps://me:hidden@mail.example.org", "PC Farm <farm@example.org>", None, None)
            .expect("sensible");
        let shown = format!("{mailer:?}");
        assert!(shown.contains("mail.example.org") && !shown.contains("hidden"), "{shown}");
        for url in ["mail:hidden", "http://me:hidden@host", "smtp://me:hidden@host?tls=maybe", "smtp://me:hid den@host"]
        {
            let wrong = Mailer::new(url, "farm@example.org", None, None).expect_err(url);
            assert!(wrong.starts_with("smtp_url") && !wrong.contains("hid"), "{wrong}");
        }
        assert!(Mailer::new("smtp://localhost", "nobody", None, None).expect_err("no address").contains("nobody"));
    }
}
