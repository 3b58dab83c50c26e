//! How people say which workstations they mean: parsed and matched here, without a farm.

use pcfarm_proto::v1::Workstation;

use crate::exit::{Exit, Failure};
use crate::text::plain;

/// One word of several that together choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    All,
    Id(i64),
    /// Both included.
    Ids(i64, i64),
    /// A host name.
    Host(String),
    /// Of host names, with `*` and `?`.
    Pattern(String),
    /// A label with `=` in it, or `label=` and one.
    Label(String),
}

impl Selector {
    pub fn parse(word: &str) -> anyhow::Result<Selector> {
        let number = |text: &str| text.parse::<i64>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
        if word.is_empty() {
            return Err(Failure::usage("an empty word chooses no workstation"));
        }
        if word == "all" {
            return Ok(Selector::All);
        }
        if let Some(id) = number(word) {
            return Ok(Selector::Id(id));
        }
        if let Some((from, to)) = word.split_once('-').and_then(|(from, to)| Some((number(from)?, number(to)?))) {
            if from > to {
                return Err(Failure::usage(format!("{word}: there is nothing from {from} to {to}")));
            }
            return Ok(Selector::Ids(from, to));
        }
        Ok(match word {
            label if label.contains('=') => Selector::Label(label.to_owned()),
            pattern if pattern.contains(['*', '?']) => Selector::Pattern(pattern.to_owned()),
            host => Selector::Host(host.to_owned()),
        })
    }

    pub fn matches(&self, one: &Workstation) -> bool {
        match self {
            Selector::All => true,
            Selector::Id(id) => one.workstation_id == *id,
            Selector::Ids(from, to) => (*from..=*to).contains(&one.workstation_id),
            Selector::Host(name) => one.hostname == *name,
            Selector::Pattern(pattern) => is_like(&one.hostname, pattern),
            Selector::Label(label) => {
                let wordless = label.strip_prefix("label=");
                one.labels.iter().any(|has| has == label || Some(has.as_str()) == wordless)
            }
        }
    }

    /// Whether it names one workstation.
    pub fn is_single(&self) -> bool {
        matches!(self, Selector::Id(_) | Selector::Host(_))
    }

    fn nothing(&self) -> anyhow::Error {
        let why = match self {
            Selector::All => "the farm knows no workstation yet".to_owned(),
            Selector::Id(id) => format!("there is no workstation {id}"),
            Selector::Ids(from, to) => format!("there is no workstation with an id from {from} to {to}"),
            Selector::Host(name) => {
                format!("no workstation is called `{}`; `pcfarm workstations --all` lists them", plain(name))
            }
            Selector::Pattern(pattern) => format!("no workstation's host name is like `{}`", plain(pattern)),
            Selector::Label(label) => {
                format!("no workstation has label `{}`; `pcfarm workstations --facts` shows them", plain(label))
            }
        };
        Failure::of(Exit::NotFound, why)
    }
}

/// Those of `all` that the words choose, each once, in the order of `all`. A word that chooses none is an error, and so is a host
/// name that several have: they are told apart by their ids.
pub fn chosen(words: &[Selector], all: Vec<Workstation>) -> anyhow::Result<Vec<Workstation>> {
    for word in words {
        let matching: Vec<&Workstation> = all.iter().filter(|one| word.matches(one)).collect();
        match (word, matching.as_slice()) {
            (_, []) => return Err(word.nothing()),
            (Selector::Host(name), [_, _, ..]) => {
                let ids: Vec<String> = matching.iter().map(|one| one.workstation_id.to_string()).collect();
                let (name, ids) = (plain(name), ids.join(" or "));
                return Err(Failure::usage(format!(
                    "several workstations are called `{name}`: name one by its id, {ids}"
                )));
            }
            _ => {}
        }
    }
    Ok(all.into_iter().filter(|one| words.iter().any(|word| word.matches(one))).collect())
}

/// Without recursion, so that no pattern takes long: on a mismatch the last `*` takes one character more.
fn is_like(text: &str, pattern: &str) -> bool {
    let (text, pattern): (Vec<char>, Vec<char>) = (text.chars().collect(), pattern.chars().collect());
    let (mut at, mut wants) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while at < text.len() {
        match pattern.get(wants) {
            Some('*') => {
                star = Some((wants, at));
                wants += 1;
            }
            Some('?') => (at, wants) = (at + 1, wants + 1),
            Some(wanted) if *wanted == text[at] => (at, wants) = (at + 1, wants + 1),
            _ => {
                let Some((place, taken)) = star else { return false };
                star = Some((place, taken + 1));
                (at, wants) = (taken + 1, place + 1);
            }
        }
    }
    pattern[wants..].iter().all(|rest| *rest == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn farm() -> Vec<Workstation> {
        let labels = ["room=B12", "big", "room=B12,big", "", "label=odd"];
        let hosts = ["lab-1", "lab-2", "office-7", "twin", "twin"];
        (1..)
            .zip(hosts.iter().zip(labels))
            .map(|(workstation_id, (host, labels))| Workstation {
                workstation_id,
                hostname: (*host).to_owned(),
                labels: labels.split(',').filter(|label| !label.is_empty()).map(str::to_owned).collect(),
                ..Workstation::default()
            })
            .collect()
    }

    /// Words, and the ids that they choose or why they choose none.
    type Case<'a> = (&'a [&'a str], Result<&'a [i64], &'a str>);

    #[test]
    fn words_choose_or_say_what_they_miss() {
        let cases: &[Case<'_>] = &[
            (&["3"], Ok(&[3])),
            (&["2-4"], Ok(&[2, 3, 4])),
            (&["4-99"], Ok(&[4, 5])),
            (&["lab-1"], Ok(&[1])),
            (&["lab-*"], Ok(&[1, 2])),
            (&["*-?"], Ok(&[1, 2, 3])),
            (&["tw*", "1", "lab-*"], Ok(&[1, 2, 4, 5])),
            (&["room=B12"], Ok(&[1, 3])),
            (&["label=big"], Ok(&[2, 3])),
            (&["label=odd"], Ok(&[5])),
            (&["all"], Ok(&[1, 2, 3, 4, 5])),
            (&["6"], Err("there is no workstation 6")),
            (&["1", "7-9"], Err("there is no workstation with an id from 7 to 9")),
            (&["9-7"], Err("9-7: there is nothing from 9 to 7")),
            (&["lab"], Err("no workstation is called `lab`; `pcfarm workstations --all` lists them")),
            (&["lab-?-?"], Err("no workstation's host name is like `lab-?-?`")),
            (&["room=B"], Err("no workstation has label `room=B`; `pcfarm workstations --facts` shows them")),
            (&["twin"], Err("several workstations are called `twin`: name one by its id, 4 or 5")),
            (&[""], Err("an empty word chooses no workstation")),
        ];
        for (words, expected) in cases {
            let parsed: anyhow::Result<Vec<Selector>> = words.iter().map(|word| Selector::parse(word)).collect();
            let found = parsed.and_then(|words| chosen(&words, farm()));
            let found = found.map(|found| found.iter().map(|one| one.workstation_id).collect::<Vec<_>>());
            let found = found.map_err(|error| error.to_string());
            assert_eq!(found.as_deref().map_err(String::as_str), *expected, "{words:?}");
        }
    }

    #[test]
    fn patterns_are_of_whole_names() {
        let cases = [
            ("lab-12", "lab-*", true),
            ("lab-12", "*", true),
            ("lab-12", "*1*2*", true),
            ("lab-12", "lab-?", false),
            ("lab-12", "ab-*", false),
            ("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", "*a*a*a*a*a*a*a*a*a*c", false),
            ("", "*", true),
            ("", "?", false),
        ];
        for (text, pattern, expected) in cases {
            assert_eq!(is_like(text, pattern), expected, "{text} {pattern}");
        }
    }
}
