//! Mail of a server that was built without the feature `mail`: none is sent, and settings that ask for it are refused.

use super::Failure;
use crate::missing::MAIL;
use pcfarm_sql::alerts::Claimed;
use std::convert::Infallible;

/// No value exists: a setting that needs mail is refused.
#[derive(Debug)]
pub struct Mailer(Infallible);

impl Mailer {
    pub fn new(_url: &str, _from: &str, _hello: Option<&str>, _authorities: Option<&[u8]>) -> Result<Mailer, String> {
        Err(format!("smtp_url: {MAIL}"))
    }

    pub(super) async fn send(&self, _: &Claimed) -> Result<(), Failure> {
        match self.0 {}
    }
}
