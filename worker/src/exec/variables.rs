//! Variables of a program: those that the owner sets, those that it passes on, and a few that programs expect. Pure.

use std::collections::BTreeMap;

/// The locale of programs, so that text has one encoding and numbers one form on all workstations.
const LOCALE: &str = "C.UTF-8";

/// Search path of programs, unless the owner names another.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The owner's settings of a program's environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variables {
    /// Names of variables of the agent that the program has, too.
    passed: Vec<String>,
    set: BTreeMap<String, String>,
}

impl Variables {
    /// Every program has the agent's time zone.
    pub fn new(passed: &[String], set: &BTreeMap<String, String>) -> Variables {
        let passed = std::iter::once("TZ").chain(passed.iter().map(String::as_str)).map(str::to_owned).collect();
        Variables { passed, set: set.clone() }
    }

    /// Environment of the program under an agent whose variables `of_agent` looks up. The locale is the same on all workstations
    /// unless the settings name another, so that a program's output does not depend on the agent's own environment.
    pub fn environment(&self, of_agent: impl Fn(&str) -> Option<String>) -> Vec<(String, String)> {
        let passed = self.passed.iter().filter_map(|name| Some((name.clone(), of_agent(name)?)));
        let mut environment: BTreeMap<String, String> = passed.collect();
        environment.entry("PATH".to_owned()).or_insert_with(|| PATH.to_owned());
        environment.extend(self.set.clone());
        // LC_ALL overrides every category that the settings name.
        if !environment.keys().any(|name| name == "LANG" || name.starts_with("LC_")) {
            environment.insert("LC_ALL".to_owned(), LOCALE.to_owned());
        }
        environment.entry("LANG".to_owned()).or_insert_with(|| LOCALE.to_owned());
        environment.into_iter().collect()
    }
}
