//! Features of this crate that an agent may have been built without.
//!
//! Owns the answer to a person who asks for one of them. Features cost build time alone; all of them are in the agent `pcfarm-worker`.

/// A cargo feature that is not in this agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this agent was built without the feature `{0}`; build it with `features = [\"{0}\"]`")]
pub struct MissingFeature(&'static str);

pub const WASM: MissingFeature = MissingFeature("wasm");
#[cfg_attr(feature = "service", allow(dead_code, reason = "it is there"))]
pub const SERVICE: MissingFeature = MissingFeature("service");
pub const DESKTOP: MissingFeature = MissingFeature("desktop");

/// Set where no helper in a session, and nothing else of a desktop, can be asked.
pub fn desktop() -> Option<MissingFeature> {
    cfg!(all(target_os = "linux", not(feature = "desktop"))).then_some(DESKTOP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_feature_says_how_to_add_it() {
        let expected = "this agent was built without the feature `service`; build it with `features = [\"service\"]`";
        assert_eq!(SERVICE.to_string(), expected);
    }
}
