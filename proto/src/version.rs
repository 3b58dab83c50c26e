//! Versions of programs, to be compared. The database reads them alike (`pcfarm.version_parts`).

/// Numbers between dots; zeros at the end say nothing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(Vec<u64>);

/// Most numbers.
const PARTS_LIMIT: usize = 6;

impl Version {
    /// None: it is not like 2.8.5.
    pub fn of(text: &str) -> Option<Version> {
        let number = |part: &str| {
            let digits = (1..=9).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| part.parse().ok()).flatten()
        };
        let mut parts: Vec<u64> = text.split('.').map(number).collect::<Option<_>>()?;
        if parts.len() > PARTS_LIMIT {
            return None;
        }
        while parts.len() > 1 && parts.last() == Some(&0) {
            parts.pop();
        }
        Some(Version(parts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_number_by_number() {
        let of = |text: &str| Version::of(text).expect("a version");
        assert!(of("2.8.5") < of("2.10") && of("2.8") < of("2.8.1") && of("3") > of("2.99.99"));
        assert_eq!(of("2.8"), of("2.8.0.0"));
        for wrong in ["", "v2", "2.", ".2", "2..8", "2.8-rc1", "1.2.3.4.5.6.7", "1234567890"] {
            assert_eq!(Version::of(wrong), None, "{wrong}");
        }
    }
}
