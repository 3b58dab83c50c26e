//! Passwords at rest: Argon2id, away from the threads that serve, and a few at a time, since each costs 19 MiB and some
//! hundredths of a second.

use argon2::Argon2;
use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use std::sync::{Arc, OnceLock};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;

/// At a time; others wait.
const AT_ONCE: usize = 2;

/// Shorter ones are guessed; longer ones would only cost time.
pub const SHORTEST: usize = 10;
pub const LONGEST: usize = 1024;

#[derive(Debug)]
pub struct Passwords(Arc<Semaphore>);

impl Default for Passwords {
    fn default() -> Passwords {
        Passwords(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

/// What is wrong with a new one.
pub fn wrong(password: &str) -> Option<String> {
    let length = password.chars().count();
    (length < SHORTEST || password.len() > LONGEST)
        .then(|| format!("a password has from {SHORTEST} to {LONGEST} characters: this one has {length}"))
}

impl Passwords {
    /// In the form that names its own parameters.
    pub async fn hash(&self, password: String) -> anyhow::Result<String> {
        self.in_turn(move || hash(&password)).await?
    }

    /// Whether it is this one, if it may be tried when its turn has come. Without a hash it takes as long, and is not.
    pub async fn is<E>(
        &self,
        password: String,
        hash: Option<String>,
        may: impl FnOnce() -> Result<(), E>,
    ) -> anyhow::Result<Result<bool, E>> {
        if password.len() > LONGEST {
            return Ok(Ok(false));
        }
        let turn = self.0.clone().acquire_owned().await?;
        if let Err(refusal) = may() {
            return Ok(Err(refusal));
        }
        Self::work(turn, move || is(&password, hash.as_deref())).await.map(Ok)
    }

    async fn in_turn<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> anyhow::Result<T> {
        Self::work(self.0.clone().acquire_owned().await?, work).await
    }

    /// The turn is owned by the work: a call that is cancelled leaves it running, and it still counts.
    async fn work<T: Send + 'static>(
        turn: OwnedSemaphorePermit,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> anyhow::Result<T> {
        let worked = spawn_blocking(move || {
            let done = work();
            drop(turn);
            done
        });
        Ok(worked.await?)
    }
}

fn hash(password: &str) -> anyhow::Result<String> {
    let hashed = Argon2::default().hash_password(password.as_bytes());
    Ok(hashed.map_err(|error| anyhow::anyhow!("hashing a password: {error}"))?.to_string())
}

fn is(password: &str, hashed: Option<&str>) -> bool {
    /// Of nobody's password.
    static NOBODYS: OnceLock<Option<String>> = OnceLock::new();
    let Some(against) = hashed.or_else(|| NOBODYS.get_or_init(|| hash("nobody's password").ok()).as_deref()) else {
        return false;
    };
    let same = PasswordHash::new(against)
        .is_ok_and(|against| Argon2::default().verify_password(password.as_bytes(), &against).is_ok());
    same && hashed.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_password_is_known_by_its_hash_alone() {
        let passwords = Passwords::default();
        let hash = passwords.hash("correct horse".into()).await.expect("hashed");
        assert!(hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{hash}");
        let is = async |password: &str, hash: Option<String>| {
            passwords.is(password.into(), hash, || Ok::<_, ()>(())).await.expect("compared")
        };
        assert_eq!(is("correct horse", Some(hash.clone())).await, Ok(true));
        assert_eq!(is("battery staple", Some(hash.clone())).await, Ok(false));
        assert_eq!(is("nobody's password", None).await, Ok(false));
        assert_eq!(is("x", Some("$argon2id$rubbish".into())).await, Ok(false));
        let braked = passwords.is("correct horse".into(), Some(hash), || Err("braked")).await.expect("told");
        assert_eq!(braked, Err("braked"), "when its turn has come");
    }

    #[test]
    fn short_passwords_are_refused() {
        assert!(wrong("short").expect("refused").contains("10"));
        assert!(wrong(&"x".repeat(LONGEST + 1)).is_some());
        assert_eq!(wrong("long enough"), None);
    }
}
