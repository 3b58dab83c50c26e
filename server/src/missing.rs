//! Cargo features that a server may have been built without. Each has a module in its place that says so.

/// A feature that is not in this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this server was built without the feature `{0}`; build it with `--features {0}`")]
pub struct MissingFeature(&'static str);

pub const TRACES: MissingFeature = MissingFeature("traces");
pub const API_BROWSER: MissingFeature = MissingFeature("api-browser");
pub const OBJECT_STORE: MissingFeature = MissingFeature("object-store");
pub const MAIL: MissingFeature = MissingFeature("mail");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_feature_says_how_to_add_it() {
        let expected =
            "this server was built without the feature `object-store`; build it with `--features object-store`";
        assert_eq!(OBJECT_STORE.to_string(), expected);
    }
}
