//! Labels: what its owner, or an administrator, says that a workstation is or has.

/// Most that a workstation has from its owner.
pub const LIMIT: usize = 64;

/// Most bytes of one.
pub const BYTES_LIMIT: usize = 63;

/// Why an owner's labels cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    #[error("{0} labels: a workstation has at most {LIMIT}")]
    TooMany(usize),
    #[error(
        "label {0:?}: a word such as gpu, or key=value such as room=12, is wanted, of at most {BYTES_LIMIT} letters, digits and \
         _ . : / + @ -"
    )]
    Malformed(String),
}

/// A name that a condition can look at: letters, digits and `_ . : / + @ = -`, at the start a letter, a digit or `_`.
pub fn is_name(text: &str) -> bool {
    let of_start = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let of_rest = |byte: u8| of_start(byte) || b".:/+@=-".contains(&byte);
    let starts_well = text.bytes().next().is_some_and(of_start);
    starts_well && text.len() <= BYTES_LIMIT && text.bytes().all(of_rest)
}

/// A word, or a key and a value.
fn is_label(text: &str) -> bool {
    is_name(text) && !text.ends_with('=')
}

/// Takes away what is no label, or one too many, and returns that. What an agent was started with may be from a time when other
/// labels were good: it is welcome without them.
pub fn take_wrong(labels: &mut Vec<String>) -> Vec<String> {
    let mut wrong: Vec<String> = labels.extract_if(.., |label| !is_label(label)).collect();
    wrong.extend(labels.drain(LIMIT.min(labels.len())..));
    wrong
}

/// All are words, or keys and values, and they are not too many.
pub fn check(labels: &[String]) -> Result<(), LabelError> {
    if labels.len() > LIMIT {
        return Err(LabelError::TooMany(labels.len()));
    }
    match labels.iter().find(|label| !is_label(label)) {
        None => Ok(()),
        Some(label) => Err(LabelError::Malformed(label.chars().take(100).collect())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_goes_and_the_rest_stays() {
        let mut labels = ["gpu", "two words", "room=12", "key="].map(str::to_owned).to_vec();
        assert_eq!(take_wrong(&mut labels), ["two words", "key="]);
        assert_eq!(labels, ["gpu", "room=12"]);
        let mut many: Vec<String> = (0..=LIMIT).map(|n| format!("l{n}")).collect();
        assert_eq!(take_wrong(&mut many), [format!("l{LIMIT}")]);
        assert_eq!(check(&many), Ok(()));
    }

    #[test]
    fn labels_are_words_or_keys_with_values() {
        let check_one = |label: &str| check(&[label.to_owned()]);
        for good in ["gpu", "lab-a", "room=12", "disk=ssd/nvme", "v1.2+x", "_x", &"a".repeat(63)] {
            assert_eq!(check_one(good), Ok(()), "{good}");
        }
        for bad in ["", "=x", "key=", "two words", "a,b", "\u{e4}", "-x", "a\n", &"a".repeat(64)] {
            assert_eq!(check_one(bad), Err(LabelError::Malformed(bad.to_owned())), "{bad}");
        }
        assert_eq!(check(&vec!["a".to_owned(); 65]), Err(LabelError::TooMany(65)));
        assert!(check_one("two words").is_err_and(|wrong| wrong.to_string().contains("room=12")));
    }
}
