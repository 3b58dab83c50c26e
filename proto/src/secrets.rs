//! The forms of secrets that people and agents carry: recognisable by a scanner, read strictly, never printed by `Debug`.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::fmt;
use std::str::FromStr;

/// Nobody guesses so many random bytes, so that a plain hash of them is enough at rest.
pub const SECRET_BYTES: usize = 32;

/// SHA-256 of a certificate, as its DER.
const FINGERPRINT_BYTES: usize = 32;

const TOKEN_PREFIX: &str = "pcft_";
const JOIN_PREFIX: &str = "pcfj_";

/// It is not what it was taken for. What it is instead is not told: it may be somebody's password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("this is not a token: one begins with {TOKEN_PREFIX} and has 43 characters more")]
    Token,
    #[error("this is not a join token: one begins with {JOIN_PREFIX} and has 86 characters more")]
    JoinToken,
}

/// What a person's program shows with every call.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(pub [u8; SECRET_BYTES]);

/// What makes a workstation one of the farm's: it knows the farm's authority by its fingerprint before it tells its secret.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    pub authority: [u8; FINGERPRINT_BYTES],
    pub secret: [u8; SECRET_BYTES],
}

impl Token {
    /// In full, for whoever is to have it.
    pub fn reveal(&self) -> String {
        format!("{TOKEN_PREFIX}{}", URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl JoinToken {
    /// In full, for whoever is to have it.
    pub fn reveal(&self) -> String {
        let bytes = [self.authority, self.secret].concat();
        format!("{JOIN_PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
    }
}

fn decoded(text: &str, prefix: &str) -> Option<Vec<u8>> {
    // Strict: of several spellings of the same bytes, one is taken.
    URL_SAFE_NO_PAD.decode(text.strip_prefix(prefix)?).ok()
}

impl FromStr for Token {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Token, Malformed> {
        let bytes = decoded(text, TOKEN_PREFIX).and_then(|bytes| bytes.try_into().ok());
        bytes.map(Token).ok_or(Malformed::Token)
    }
}

impl FromStr for JoinToken {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<JoinToken, Malformed> {
        let bytes = decoded(text, JOIN_PREFIX).ok_or(Malformed::JoinToken)?;
        let (authority, secret) = bytes.split_at_checked(FINGERPRINT_BYTES).ok_or(Malformed::JoinToken)?;
        match (authority.try_into(), secret.try_into()) {
            (Ok(authority), Ok(secret)) => Ok(JoinToken { authority, secret }),
            _ => Err(Malformed::JoinToken),
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinToken(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_read_what_they_reveal_and_nothing_else() {
        let token = Token([7; SECRET_BYTES]);
        let join = JoinToken { authority: [1; 32], secret: [2; 32] };
        assert_eq!(token.reveal().parse(), Ok(token.clone()));
        assert_eq!(join.reveal().parse(), Ok(join.clone()));
        assert_eq!((token.reveal().len(), join.reveal().len()), (48, 91));
        let revealed = token.reveal();
        for wrong in
            ["", "pcft_", &revealed[..47], &format!("{revealed}A"), &revealed.replace("pcft", "pcfj"), &join.reveal()]
        {
            assert_eq!(wrong.parse::<Token>(), Err(Malformed::Token), "{wrong}");
        }
        assert_eq!(revealed.parse::<JoinToken>(), Err(Malformed::JoinToken));
        assert!(!format!("{token:?}{join:?}").contains("BwcH"));
    }

    mod fuzz {
        use super::*;

        /// Whatever is taken for a secret is written the one way in which it is revealed.
        #[test]
        fn a_secret() {
            bolero::check!().for_each(|bytes: &[u8]| {
                let Ok(text) = std::str::from_utf8(bytes) else { return };
                // Most inputs would only be refused for the prefix.
                for text in [text.to_owned(), format!("{TOKEN_PREFIX}{text}"), format!("{JOIN_PREFIX}{text}")] {
                    if let Ok(token) = text.parse::<Token>() {
                        assert_eq!(token.reveal(), text);
                    }
                    if let Ok(join) = text.parse::<JoinToken>() {
                        assert_eq!(join.reveal(), text);
                    }
                }
            });
        }
    }
}
