//! The SMTP relay, as the owner of the workstation has named it.

use anyhow::{Context, ensure};
use lettre::message::header::ContentType;
use lettre::message::{Mailbox, Message};
use lettre::transport::smtp::Error;
use lettre::{Address, SmtpTransport, Transport};
use std::fmt;
use std::time::Duration;

pub const SMTP_URL: &str = "OFFICE_SMTP_URL";
pub const MAIL_FROM: &str = "OFFICE_MAIL_FROM";

/// For each answer of the relay.
const PATIENCE: Duration = Duration::from_secs(20);

/// More would be a mailing, which enqueues messages.
pub const RECIPIENTS_LIMIT: usize = 20;

/// A relay and a sender. Each mail has a connection of its own.
#[derive(Clone)]
pub struct Post {
    transport: SmtpTransport,
    from: Mailbox,
}

impl fmt::Debug for Post {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mail from {}", self.from)
    }
}

/// What is to be sent. Its id is the same each time it is tried.
#[derive(Clone, Copy, Debug)]
pub struct Mail<'a> {
    pub id: &'a str,
    pub to: &'a [String],
    pub subject: &'a str,
    pub body: &'a str,
}

/// Why a mail was not sent, in the relay's words.
#[derive(Debug, thiserror::Error)]
pub enum NotSent {
    /// It will never be, as it is: nobody has got it.
    #[error("the relay refused it: {0}")]
    Refused(String),
    #[error("the relay did not take it: {0}")]
    Later(String),
    #[error("it is no mail: {0:#}")]
    NoMail(anyhow::Error),
}

impl Post {
    /// From `OFFICE_SMTP_URL` and `OFFICE_MAIL_FROM`; nothing without the former.
    pub fn from_environment() -> anyhow::Result<Option<Post>> {
        let Ok(url) = std::env::var(SMTP_URL) else { return Ok(None) };
        let from = std::env::var(MAIL_FROM).with_context(|| format!("{MAIL_FROM} is not set, and {SMTP_URL} is"))?;
        Post::new(&url, &from).map(Some)
    }

    /// The URL, which may have a password, is not in the error.
    pub fn new(url: &str, from: &str) -> anyhow::Result<Post> {
        let transport = SmtpTransport::from_url(&encrypted(url)).ok();
        let transport = transport.with_context(|| format!("{SMTP_URL} is not like smtp://user:password@relay:587"))?;
        let from = from.parse().with_context(|| format!("{MAIL_FROM}: {from:?} is not an address of mail"))?;
        Ok(Post { transport: transport.timeout(Some(PATIENCE)).build(), from })
    }

    pub fn send(&self, mail: &Mail<'_>) -> Result<(), NotSent> {
        let message = self.message(mail).map_err(NotSent::NoMail)?;
        self.transport.send(&message).map(drop).map_err(|error| match error.is_permanent() {
            true => NotSent::Refused(words(&error)),
            false => NotSent::Later(words(&error)),
        })
    }

    /// Several recipients do not see each other.
    fn message(&self, mail: &Mail<'_>) -> anyhow::Result<Message> {
        ensure!((1..=RECIPIENTS_LIMIT).contains(&mail.to.len()), "{} recipients", mail.to.len());
        let mut message = Message::builder().from(self.from.clone()).subject(mail.subject).message_id(Some(format!(
            "<{}@{}>",
            mail.id,
            self.from.email.domain()
        )));
        for to in mail.to {
            let address: Address = to.parse().with_context(|| format!("{to:?} is no address"))?;
            let to = Mailbox::new(None, address);
            message = if mail.to.len() == 1 { message.to(to) } else { message.bcc(to) };
        }
        Ok(message.header(ContentType::TEXT_PLAIN).body(mail.body.to_owned())?)
    }
}

/// What leaves this machine is encrypted, unless the URL says otherwise (`?tls=none`).
fn encrypted(url: &str) -> String {
    if let Some(url) = url.strip_suffix("?tls=none") {
        return url.to_owned();
    }
    let host = url.strip_prefix("smtp://").map(|rest| rest.rsplit('@').next().unwrap_or_default());
    let here = |host: &str| ["localhost", "127.0.0.1", "[::1]"].iter().any(|local| host.starts_with(local));
    match host {
        Some(host) if !url.contains('?') && !here(host) => format!("{url}?tls=required"),
        _ => url.to_owned(),
    }
}

fn words(error: &Error) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leaves_the_machine_is_encrypted() {
        for (url, expected) in [
            ("smtp://me:pass@mail.example.org:587", "smtp://me:pass@mail.example.org:587?tls=required"),
            ("smtp://10.0.0.1:25?tls=none", "smtp://10.0.0.1:25"),
            ("smtp://127.0.0.1:25", "smtp://127.0.0.1:25"),
            ("smtps://mail.example.org", "smtps://mail.example.org"),
        ] {
            assert_eq!(encrypted(url), expected);
        }
        let wrong = format!("{:#}", Post::new("http://me:hidden@host", "a@example.org").expect_err("no mail"));
        assert!(wrong.starts_with(SMTP_URL) && !wrong.contains("hidden"), "{wrong}");
    }

    #[test]
    fn recipients_do_not_see_each_other() {
        let post = Post::new("smtp://localhost", "Office <office@example.org>").expect("sensible");
        let to = ["a@example.org".to_owned(), "b@example.org".to_owned()];
        let mail = Mail { id: "7.9", to: &to, subject: "News", body: "None." };
        let message = post.message(&mail).expect("a mail");
        let text = String::from_utf8(message.formatted()).expect("text");
        assert!(text.contains("Message-ID: <7.9@example.org>\r\n") && !text.contains("b@example.org"), "{text}");
        assert_eq!(message.envelope().to().len(), 2);
        let wrong = post.message(&Mail { to: &["nobody".to_owned()], ..mail }).expect_err("no address");
        assert!(wrong.to_string().contains("nobody"), "{wrong}");
        assert!(post.message(&Mail { to: &[], ..mail }).is_err());
    }
}
