//! What the farm wants of a desk, and what of it holds.
//!
//! Owns that the farm makes an agent more careful and never less so, but for what its owner allows: a pure function of the owner's
//! settings, the owner's limits and the farm's wishes.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::cores::{self, Cores};
use super::hours::{Hours, Window};
use super::policy::{OnReturn, Policy};

const WEEK: f64 = 7.0 * 86_400.0;

/// How far the farm may go, where that is further than the owner's own settings: the table `[presence.limits]` of the file.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    start_after: Option<f64>,
    resume_after: Option<f64>,
    give_back_after: Option<f64>,
    on_return: Option<OnReturn>,
    load: Option<f64>,
    free_memory: Option<f64>,
    memory_limit_mib: Option<u64>,
    cores: Option<usize>,
    on_battery: Option<bool>,
    on_metered: Option<bool>,
    beside_full_screen: Option<bool>,
    hours: Option<Vec<String>>,
}

impl Limits {
    /// The first that makes no sense.
    pub fn wrong(&self) -> Option<&'static str> {
        let checks = [
            ("limits.start_after", self.start_after.is_none_or(|seconds| is_time(&seconds))),
            ("limits.resume_after", self.resume_after.is_none_or(|seconds| is_time(&seconds))),
            ("limits.give_back_after", self.give_back_after.is_none_or(|seconds| is_time(&seconds))),
            ("limits.load", self.load.is_none_or(|load| is_load(&load))),
            ("limits.free_memory", self.free_memory.is_none_or(|part| is_part(&part))),
            ("limits.cores", self.cores.is_none_or(|cores| cores::are_sensible(&cores))),
            ("limits.hours", self.hours.as_ref().is_none_or(|hours| windows(hours).is_ok())),
        ];
        checks.into_iter().find(|(_, is_good)| !is_good).map(|(name, _)| name)
    }
}

/// Who has said what holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum By {
    Default,
    Owner,
    Farm,
}

impl By {
    pub fn name(self) -> &'static str {
        match self {
            By::Default => "default",
            By::Owner => "owner",
            By::Farm => "farm",
        }
    }
}

/// A setting as it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    pub name: String,
    /// As it would be in the agent's file.
    pub value: String,
    pub by: By,
    /// Why what the farm wants does not hold, or not wholly. Empty: it does, or it wants nothing.
    pub refused: String,
}

/// The owner's side of it.
pub struct Owner<'a> {
    pub policy: &'a Policy,
    /// What its owner has said, and is no default.
    pub named: &'a BTreeSet<&'static str>,
    pub limits: &'a Limits,
    pub cores: Cores,
    /// The farm may wake the PC.
    pub may_be_woken: bool,
}

/// What holds.
pub struct Settled {
    pub policy: Policy,
    /// As many as a process begins with from now on.
    pub cores: usize,
    /// Where each of it is from.
    pub settings: Vec<Setting>,
}

/// `wanted` is a JSON object, as `pcfarm.set_presence` keeps it.
pub fn settle(owner: &Owner<'_>, wanted: &Map<String, Value>) -> Settled {
    let Owner { policy, limits, .. } = owner;
    let mut settling = Settling { owner, wanted, settled: Vec::new() };
    let seconds = |time: Duration| time.as_secs_f64();
    let later = Kind { is_good: is_time, says: f64::to_string, careful: |a: &f64, b: &f64| a.max(*b) };
    let sooner = Kind { careful: |a: &f64, b: &f64| a.min(*b), ..later };
    let start_after = settling.settle("start_after", seconds(policy.start_after), limits.start_after, &later);
    let resume_after = settling.settle("resume_after", seconds(policy.resume_after), limits.resume_after, &later);
    let give_back_after =
        settling.settle("give_back_after", seconds(policy.give_back_after), limits.give_back_after, &sooner);
    let kind = Kind {
        is_good: |_| true,
        says: OnReturn::to_string,
        careful: |a, b| if effort(*a) < effort(*b) { *a } else { *b },
    };
    let on_return = settling.settle("on_return", policy.on_return, limits.on_return, &kind);
    let kind = Kind { is_good: is_load, says: f64::to_string, careful: |a: &f64, b: &f64| a.min(*b) };
    let load = settling.settle("load", policy.load.unwrap_or(f64::INFINITY), limits.load, &kind);
    let kind = Kind { is_good: is_part, says: f64::to_string, careful: |a: &f64, b: &f64| a.max(*b) };
    let free_memory = settling.settle("free_memory", policy.free_memory.unwrap_or(0.0), limits.free_memory, &kind);
    let says_memory = |mib: &u64| if *mib == u64::MAX { "any".to_owned() } else { mib.to_string() };
    let kind = Kind { is_good: |_| true, says: says_memory, careful: |a, b| *a.min(b) };
    let owners = policy.memory_limit.map_or(u64::MAX, |bytes| bytes >> 20);
    let memory_limit_mib = settling.settle("memory_limit_mib", owners, limits.memory_limit_mib, &kind);
    let cores = settling.cores();
    let kind = Kind { is_good: |_| true, says: bool::to_string, careful: |a, b| *a && *b };
    let on_battery = settling.settle("on_battery", policy.on_battery, limits.on_battery, &kind);
    let on_metered = settling.settle("on_metered", policy.on_metered, limits.on_metered, &kind);
    let beside_full_screen =
        settling.settle("beside_full_screen", policy.beside_full_screen, limits.beside_full_screen, &kind);
    let (hours, farm_hours) = settling.hours();
    settling.waking();
    settling.unknown();
    let effective = Policy {
        start_after: Duration::from_secs_f64(start_after),
        resume_after: Duration::from_secs_f64(resume_after),
        give_back_after: Duration::from_secs_f64(give_back_after),
        on_return,
        load: Some(load).filter(|load| load.is_finite()),
        free_memory: Some(free_memory).filter(|part| *part > 0.0),
        memory_limit: Some(memory_limit_mib).filter(|mib| *mib < u64::MAX).map(|mib| mib.saturating_mul(1 << 20)),
        on_battery,
        on_metered,
        beside_full_screen,
        hours,
        farm_hours,
        ..(*policy).clone()
    };
    Settled { policy: effective, cores, settings: settling.settled }
}

/// How a kind of value is judged, said and compared.
#[derive(Clone, Copy)]
struct Kind<T> {
    is_good: fn(&T) -> bool,
    says: fn(&T) -> String,
    /// The one of two with which an agent is less in the way.
    careful: fn(&T, &T) -> T,
}

struct Settling<'a> {
    owner: &'a Owner<'a>,
    wanted: &'a Map<String, Value>,
    settled: Vec<Setting>,
}

impl Settling<'_> {
    fn by_owner(&self, name: &str) -> By {
        if self.owner.named.contains(name) { By::Owner } else { By::Default }
    }

    fn add(&mut self, name: &str, value: String, by: By, refused: String) {
        self.settled.push(Setting { name: name.to_owned(), value, by, refused });
    }

    fn settle<T>(&mut self, name: &str, owners: T, limit: Option<T>, kind: &Kind<T>) -> T
    where
        T: Clone + PartialEq + DeserializeOwned,
    {
        let mut by = self.by_owner(name);
        let mut refused = String::new();
        let mut value = owners.clone();
        if let Some(given) = self.wanted.get(name) {
            match serde_json::from_value::<T>(given.clone()).ok().filter(kind.is_good) {
                None => refused = format!("the farm wants {given}, which this agent does not understand"),
                Some(wanted) => {
                    // The farm may go as far as the less careful of the two.
                    let limit = limit.unwrap_or_else(|| owners.clone());
                    let least = if (kind.careful)(&limit, &owners) == limit { owners.clone() } else { limit };
                    value = (kind.careful)(&wanted, &least);
                    if value != wanted {
                        let (wanted, least) = ((kind.says)(&wanted), (kind.says)(&least));
                        refused = format!("the farm wants {wanted}; its owner lets it go as far as {least}");
                    }
                    if value != owners {
                        by = By::Farm;
                    }
                }
            }
        }
        self.add(name, (kind.says)(&value), by, refused);
        value
    }

    /// Those of a process stay as they are.
    fn cores(&mut self) -> usize {
        let Cores { owners, used } = self.owner.cores;
        let kind = Kind { is_good: cores::are_sensible, says: usize::to_string, careful: |a, b| *a.min(b) };
        let cores = self.settle("cores", owners, self.owner.limits.cores, &kind);
        if cores != used {
            let by = if used == owners { self.by_owner("cores") } else { By::Farm };
            self.settled.pop();
            self.add("cores", used.to_string(), by, format!("{cores} from its next start on"));
        }
        cores
    }

    /// The owner's, and those that the farm wants beside them.
    fn hours(&mut self) -> (Hours, Hours) {
        let owners = self.owner.policy.hours.clone();
        let by = self.by_owner("hours");
        let Some(given) = self.wanted.get("hours") else {
            self.add("hours", said(&owners), by, String::new());
            return (owners, Hours::default());
        };
        let wanted = serde_json::from_value::<Vec<String>>(given.clone()).ok().and_then(|texts| windows(&texts).ok());
        let Some(wanted) = wanted else {
            let refused = format!("the farm wants {given}, which this agent does not understand");
            self.add("hours", said(&owners), by, refused);
            return (owners, Hours::default());
        };
        let allowed = self.owner.limits.hours.as_ref().and_then(|texts| windows(texts).ok());
        let owners = allowed.unwrap_or(owners);
        let value =
            if owners.0.is_empty() { said(&wanted) } else { format!("{} within {}", said(&wanted), said(&owners)) };
        self.add("hours", value, By::Farm, String::new());
        (owners, wanted)
    }

    /// When and where to it is woken is the servers' to know; whether it may be, its owner's to say.
    fn waking(&mut self) {
        for name in ["wake_hours", "wake_time_zone", "wake_address"] {
            let Some(given) = self.wanted.get(name) else { continue };
            let refused = if self.owner.may_be_woken { "" } else { "its owner does not let the farm wake it" };
            let value = match given {
                Value::String(text) => text.clone(),
                Value::Array(all) => {
                    all.iter().map(|one| one.as_str().unwrap_or_default()).collect::<Vec<_>>().join("; ")
                }
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => given.to_string(),
            };
            self.add(name, value, By::Farm, refused.to_owned());
        }
    }

    /// What other versions know.
    fn unknown(&mut self) {
        for (name, value) in self.wanted {
            if !self.settled.iter().any(|setting| setting.name == *name) {
                let refused = "this agent does not know it".to_owned();
                self.settled.push(Setting { name: name.clone(), value: value.to_string(), by: By::Farm, refused });
            }
        }
    }
}

fn is_time(seconds: &f64) -> bool {
    (0.0..=WEEK).contains(seconds)
}

fn is_load(load: &f64) -> bool {
    *load > 0.0
}

fn is_part(part: &f64) -> bool {
    (0.0..=0.9).contains(part)
}

/// For how long the person's return is not obeyed.
fn effort(on_return: OnReturn) -> u8 {
    match on_return {
        OnReturn::GiveBack => 0,
        OnReturn::Freeze => 1,
        OnReturn::Finish => 2,
    }
}

fn windows(texts: &[String]) -> Result<Hours, super::hours::NoHours> {
    texts.iter().map(|text| text.parse::<Window>()).collect::<Result<Vec<Window>, _>>().map(Hours)
}

fn said(hours: &Hours) -> String {
    if hours.0.is_empty() { "always".to_owned() } else { hours.to_string() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::presence::settings::Settings;

    /// Of a desk with these limits: the setting by name, and the policy.
    fn settled(limits: &str, wanted: Value) -> (Policy, impl Fn(&str) -> (String, By, String)) {
        let desk = Settings::of_a_desk();
        let limits: Limits = toml::from_str(limits).expect("limits");
        assert_eq!(limits.wrong(), None);
        let Value::Object(wanted) = wanted else { panic!("no object") };
        let named = &BTreeSet::from(["load"]);
        let cores = Cores::of(4);
        let owner = Owner { policy: &desk.policy, named, limits: &limits, cores, may_be_woken: false };
        let Settled { policy, settings: all, .. } = settle(&owner, &wanted);
        let of = move |name: &str| {
            let setting = all.iter().find(|setting| setting.name == name).unwrap_or_else(|| panic!("no {name}"));
            (setting.value.clone(), setting.by, setting.refused.clone())
        };
        (policy, of)
    }

    #[test]
    fn without_wishes_all_is_the_owners() {
        let (policy, of) = settled("start_after = 60", json!({}));
        assert_eq!(policy, Settings::of_a_desk().policy);
        assert_eq!(of("start_after"), ("900".to_owned(), By::Default, String::new()));
        assert_eq!(of("load"), ("0.3".to_owned(), By::Owner, String::new()));
        assert_eq!((of("memory_limit_mib").0.as_str(), of("hours").0.as_str()), ("any", "always"));
    }

    #[test]
    fn the_farm_makes_an_agent_more_careful_and_never_less() {
        for (name, careful, careless, holds) in [
            ("start_after", json!(1800), json!(60), "900"),
            ("resume_after", json!(301.5), json!(0), "300"),
            ("give_back_after", json!(1), json!(601), "600"),
            ("load", json!(0.1), json!(4), "0.3"),
            ("free_memory", json!(0.5), json!(0.01), "0.1"),
        ] {
            let (_, of) = settled("", json!({name: careful}));
            assert_eq!(of(name), (careful.to_string(), By::Farm, String::new()), "{name}");
            let (policy, of) = settled("", json!({name: careless}));
            let (value, by, refused) = of(name);
            assert!(value == holds && by != By::Farm && refused.contains(holds), "{name}: {value} {refused}");
            assert_eq!(policy, Settings::of_a_desk().policy, "{name}");
        }
        let (policy, of) = settled("", json!({"on_battery": true, "on_return": "finish", "memory_limit_mib": 100}));
        assert_eq!(
            (policy.on_battery, policy.on_return, policy.memory_limit),
            (false, OnReturn::GiveBack, Some(100 << 20))
        );
        assert!(of("on_battery").2.contains("as far as false") && of("on_return").2.contains("give-back"));
    }

    #[test]
    fn an_owner_may_let_it_go_further() {
        let limits = "start_after = 60\non_return = \"finish\"\non_battery = true\nhours = [\"mon-fri\"]\nload = inf";
        let wanted =
            json!({"start_after": 10, "on_return": "freeze", "on_battery": true, "hours": ["22:00-06:00"], "load": 7});
        let (policy, of) = settled(limits, wanted);
        assert_eq!((policy.start_after, policy.load), (Duration::from_secs(60), Some(7.0)));
        assert_eq!((policy.on_return, policy.on_battery), (OnReturn::Freeze, true));
        assert_eq!(
            of("start_after"),
            ("60".to_owned(), By::Farm, "the farm wants 10; its owner lets it go as far as 60".to_owned())
        );
        assert_eq!(of("hours"), ("22:00-06:00 within mon-fri".to_owned(), By::Farm, String::new()));
        assert_eq!((policy.hours.to_string(), policy.farm_hours.to_string()), ("mon-fri".into(), "22:00-06:00".into()));
    }

    #[test]
    fn it_begins_with_as_many_cores_as_the_farm_wants_and_its_owner_allows() {
        let later = |cores: usize| format!("{cores} from its next start on");
        let beyond =
            |wanted: usize, least: usize| format!("the farm wants {wanted}; its owner lets it go as far as {least}");
        let unknown = |given: &str| format!("the farm wants {given}, which this agent does not understand");
        for (wanted, limit, used, begins, says) in [
            (Value::Null, None, 4, 4, ("4", By::Owner, String::new())),
            (json!(2), None, 2, 2, ("2", By::Farm, String::new())),
            (json!(2), None, 4, 2, ("4", By::Owner, later(2))),
            (json!(3), None, 2, 3, ("2", By::Farm, later(3))),
            (Value::Null, None, 2, 4, ("2", By::Farm, later(4))),
            (json!(4), None, 4, 4, ("4", By::Owner, String::new())),
            (json!(5), None, 4, 4, ("4", By::Owner, beyond(5, 4))),
            (json!(5), Some(6), 5, 5, ("5", By::Farm, String::new())),
            (json!(9), Some(6), 6, 6, ("6", By::Farm, beyond(9, 6))),
            (json!(3), Some(2), 3, 3, ("3", By::Farm, String::new())),
            (json!(0), None, 4, 4, ("4", By::Owner, unknown("0"))),
            (json!(1.5), None, 4, 4, ("4", By::Owner, unknown("1.5"))),
            (json!("all"), None, 4, 4, ("4", By::Owner, unknown("\"all\""))),
        ] {
            let desk = Settings::of_a_desk();
            let owner = Owner {
                policy: &desk.policy,
                named: &BTreeSet::from(["cores"]),
                limits: &Limits { cores: limit, ..Limits::default() },
                cores: Cores { owners: 4, used },
                may_be_woken: false,
            };
            let wishes = Some(wanted.clone()).filter(|wanted| !wanted.is_null());
            let settled = settle(&owner, &wishes.into_iter().map(|wanted| ("cores".to_owned(), wanted)).collect());
            let setting = settled.settings.into_iter().find(|setting| setting.name == "cores").expect("it is there");
            assert_eq!(settled.cores, begins, "{wanted}");
            assert_eq!((setting.value.as_str(), setting.by, setting.refused), says, "{wanted} {limit:?}");
        }
    }

    #[test]
    fn whether_it_is_woken_is_its_owners_to_say() {
        let Value::Object(wanted) = json!({"wake_hours": ["sat", "22:00-06:00"], "wake_address": "192.0.2.255"}) else {
            panic!("no object")
        };
        let desk = Settings::of_a_desk();
        for may_be_woken in [false, true] {
            let owner = Owner {
                policy: &desk.policy,
                named: &desk.named,
                limits: &desk.limits,
                cores: desk.cores,
                may_be_woken,
            };
            let Settled { policy, settings: all, .. } = settle(&owner, &wanted);
            assert_eq!(policy, desk.policy);
            let said = |name: &str| all.iter().find(|setting| setting.name == name).expect(name);
            assert_eq!((said("wake_hours").value.as_str(), said("wake_hours").by), ("sat; 22:00-06:00", By::Farm));
            assert_eq!(said("wake_address").refused.is_empty(), may_be_woken);
        }
    }

    #[test]
    fn what_is_not_understood_is_said_and_changes_nothing() {
        let wanted = json!({"start_after": "soon", "load": -1, "hours": ["always"], "on_return": "run", "colour": 7});
        let (policy, of) = settled("", wanted);
        assert_eq!(policy, Settings::of_a_desk().policy);
        for name in ["start_after", "load", "hours", "on_return"] {
            assert!(of(name).2.contains("does not understand"), "{name}: {:?}", of(name));
        }
        assert_eq!(of("colour"), ("7".to_owned(), By::Farm, "this agent does not know it".to_owned()));
        for (text, wrong) in [
            ("load = 0", "limits.load"),
            ("hours = [\"x\"]", "limits.hours"),
            ("cores = 0", "limits.cores"),
            ("start_after = nan", "limits.start_after"),
        ] {
            assert_eq!(toml::from_str::<Limits>(text).expect("a table").wrong(), Some(wrong));
        }
    }
}
