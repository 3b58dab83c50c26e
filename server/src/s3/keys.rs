//! Who may: an access key and its secret, of the environment or of a file as Amazon's own tools write it. A file is read for
//! each request, so that new keys need no restart.

use super::Failure;
use rusty_s3::Credentials;
use std::fmt;
use std::path::PathBuf;

#[derive(Clone)]
pub enum Keys {
    OfEnvironment(Credentials),
    InFile(PathBuf),
}

impl Keys {
    /// What is in the environment goes for whoever names no file.
    pub fn find(file: Option<PathBuf>) -> Result<Keys, String> {
        match file {
            Some(file) => Ok(Keys::InFile(file)),
            None => Credentials::from_env().map(Keys::OfEnvironment).ok_or_else(|| {
                "it needs keys: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a file with s3_credentials"
                    .to_owned()
            }),
        }
    }

    pub(super) async fn now(&self) -> Result<Credentials, Failure> {
        match self {
            Keys::OfEnvironment(keys) => Ok(keys.clone()),
            Keys::InFile(file) => {
                let text = tokio::fs::read_to_string(file).await;
                let text = text.map_err(|error| Failure::NoKeys(format!("{}: {error}", file.display())))?;
                parse(&text).map_err(|wrong| Failure::NoKeys(format!("{}: {wrong}", file.display())))
            }
        }
    }
}

/// Where they are, and not what they are.
impl fmt::Display for Keys {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Keys::OfEnvironment(_) => to.write_str("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
            Keys::InFile(file) => write!(to, "the keys in {}", file.display()),
        }
    }
}

/// Of the profile `default`, or of no profile.
fn parse(text: &str) -> Result<Credentials, String> {
    let (mut key, mut secret, mut token, mut is_ours) = (None, None, None, true);
    for line in text.lines().map(str::trim) {
        if let Some(profile) = line.strip_prefix('[') {
            is_ours = profile.trim_end_matches(']').trim() == "default";
        } else if let Some((name, value)) = line.split_once('=').filter(|_| is_ours && !line.starts_with(['#', ';'])) {
            let value = Some(value.trim().to_owned()).filter(|value| !value.is_empty());
            match name.trim().to_ascii_lowercase().as_str() {
                "aws_access_key_id" => key = value,
                "aws_secret_access_key" => secret = value,
                "aws_session_token" => token = value,
                _ => {}
            }
        }
    }
    let (Some(key), Some(secret)) = (key, secret) else {
        return Err("aws_access_key_id and aws_secret_access_key are to be there, in [default]".to_owned());
    };
    Ok(match token {
        Some(token) => Credentials::new_with_token(key, secret, token),
        None => Credentials::new(key, secret),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_as_amazons_tools_write_it() {
        let file = "# ours\n[other]\naws_access_key_id = no\naws_secret_access_key = no\n[default]\n\
            aws_access_key_id=AKIA1\r\nAWS_SECRET_ACCESS_KEY = a/b+c==\nregion = x\n";
        let keys = parse(file).expect("good");
        assert_eq!((keys.key(), keys.secret(), keys.token()), ("AKIA1", "a/b+c==", None));
        let keys = parse("aws_access_key_id = a\naws_secret_access_key = b\naws_session_token = c").expect("good");
        assert_eq!(keys.token(), Some("c"));
        for wrong in ["", "[other]\naws_access_key_id = a\naws_secret_access_key = b", "aws_access_key_id = a"] {
            assert!(parse(wrong).is_err_and(|said| said.contains("[default]") && !said.contains('=')), "{wrong}");
        }
    }
}
