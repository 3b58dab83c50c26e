//! What agents go by when they decide whether they may work, and what the farm wants of that.

use anyhow::Result;
use pcfarm_proto::hours::{Hours, gaps};
use pcfarm_proto::v1::{SetPresenceRequest, Workstation};
use serde_json::{Map, Value};

use crate::args::PresenceArgs;
use crate::exit::Failure;
use crate::farm::Farm;
use crate::fleet;
use crate::output::{self, Column, Output};
use crate::text::{cut, plain};
use crate::workstations::{get_all, print_as};

/// Settings that are times.
const TIMES: [&str; 3] = ["start_after", "resume_after", "give_back_after"];

/// `start_after=30m`: the server knows what is wrong with it, but for lengths of time and lists of hours, which are written for
/// people here.
pub fn wish(text: &str) -> Result<(String, Value), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("`{text}` is not SETTING=VALUE"))?;
    let (name, value) = (name.trim(), value.trim());
    let value = match name {
        // None at all is a time here, too.
        _ if TIMES.contains(&name) && value != "0" => crate::settings::duration(value)?.as_secs_f64().into(),
        "hours" | "wake_hours" => value.split(';').map(|window| Value::from(window.trim())).collect(),
        _ => serde_json::from_str(value).unwrap_or_else(|_| Value::from(value)),
    };
    Ok((name.to_owned(), value))
}

pub async fn run(farm: &Farm, args: PresenceArgs, output: Output) -> Result<()> {
    let PresenceArgs { hostnames, set, unset } = args;
    let hostnames = fleet::hostnames(farm, &hostnames, false).await?;
    let mut settings: Map<String, Value> = unset.into_iter().map(|name| (name, Value::Null)).collect();
    for (name, value) in set {
        if settings.insert(name.clone(), value).is_some() {
            return Err(Failure::usage(format!("{name} is said twice")));
        }
    }
    for warning in warnings(&settings) {
        output::note(&format!("warning: {warning}"));
    }
    if !settings.is_empty() {
        let settings = Value::Object(settings).to_string().into();
        let request = SetPresenceRequest { hostnames: hostnames.clone(), settings, version: String::new() };
        let mut client = farm.workstations();
        farm.call("setting what agents go by", client.set_presence(farm.request(request))).await?;
    }
    let mut found = get_all(farm, true, u32::MAX).await?;
    found.retain(|one| hostnames.contains(&one.hostname));
    print_as(&found, output, || table(&found))
}

/// Gaps of hours that were probably not intended. The server refuses hours that cannot be read.
fn warnings(settings: &Map<String, Value>) -> Vec<String> {
    let warning = |name: &&str| {
        let windows = settings.get(*name)?.as_array()?.iter().map(|window| window.as_str()?.parse().ok());
        let hours = Hours(windows.collect::<Option<_>>()?);
        Some(format!("{name}: {}", gaps::warning(&hours)?))
    };
    ["hours", "wake_hours"].iter().filter_map(warning).collect()
}

/// A line for each setting. What is wanted and has not been heard of yet is a remark.
fn table(workstations: &[Workstation]) -> String {
    let columns = [
        Column::Text("WORKSTATION"),
        Column::Text("SETTING"),
        Column::Text("VALUE"),
        Column::Text("BY"),
        Column::Reason("REMARK"),
    ];
    let none = "no workstation of that name has connected yet: it will hear what is wanted when it does";
    output::table(&columns, workstations.iter().flat_map(rows).collect(), none)
}

fn rows(one: &Workstation) -> Vec<Vec<String>> {
    let wanted: Map<String, Value> = serde_json::from_slice(&one.presence_wanted).unwrap_or_default();
    let host = cut(&one.hostname, 30);
    let mut rows: Vec<Vec<String>> = Vec::new();
    for setting in &one.presence {
        let is_unheard = wanted.contains_key(&setting.name) && setting.by != "farm" && setting.refused.is_empty();
        let differs = wanted.get(&setting.name).is_some_and(|wanted| said(wanted) != setting.value);
        let remark = match &setting.refused {
            refused if !refused.is_empty() => plain(refused),
            _ if is_unheard && differs => format!("the farm wants {}", plain(&said(&wanted[&setting.name]))),
            _ => String::new(),
        };
        rows.push(vec![host.clone(), cut(&setting.name, 20), cut(&setting.value, 40), cut(&setting.by, 8), remark]);
    }
    if rows.is_empty() {
        let remark = match wanted.is_empty() {
            true => "its agent has not said what it goes by".to_owned(),
            false => {
                format!("the farm wants {}; its agent has not said so yet", plain(&Value::Object(wanted).to_string()))
            }
        };
        rows.push(vec![host, String::new(), String::new(), String::new(), remark]);
    }
    rows
}

/// As agents say it.
fn said(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.as_f64().map_or_else(|| number.to_string(), |number| number.to_string()),
        Value::Array(all) => all.iter().map(said).collect::<Vec<_>>().join("; "),
        Value::Null | Value::Bool(_) | Value::Object(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use pcfarm_proto::v1::PresenceSetting;
    use serde_json::json;

    use super::*;

    #[test]
    fn wishes_are_written_for_people() {
        for (text, name, value) in [
            ("start_after=30m", "start_after", json!(1800.0)),
            ("resume_after=0", "resume_after", json!(0)),
            ("load = 0.1", "load", json!(0.1)),
            ("on_battery=false", "on_battery", json!(false)),
            ("on_return=freeze", "on_return", json!("freeze")),
            ("hours=mon-fri 18:00-07:00; sat,sun", "hours", json!(["mon-fri 18:00-07:00", "sat,sun"])),
        ] {
            assert_eq!(wish(text), Ok((name.to_owned(), value)), "{text}");
        }
        assert!(wish("start_after=soon").is_err() && wish("load").is_err());
    }

    #[test]
    fn gaps_of_hours_are_warned_of() {
        let of = |text: &str| warnings(&Map::from_iter([wish(text).expect("a wish")]));
        for name in ["hours", "wake_hours"] {
            let said = of(&format!("{name}=mon-fri 18:00-07:00; sat,sun"));
            assert!(
                said.len() == 1 && said[0].starts_with(&format!("{name}: hours leave out \"mon 0:00-7:00\"")),
                "{said:?}"
            );
            for good in ["18:00-07:00; sat,sun", "monday", "null"] {
                assert_eq!(of(&format!("{name}={good}")), [""; 0], "{good}");
            }
        }
        assert_eq!(of("load=0.1"), [""; 0]);
        assert_eq!(warnings(&Map::from_iter([("hours".to_owned(), Value::Null)])), [""; 0]);
    }

    #[test]
    fn what_is_wanted_and_not_heard_of_is_said() {
        let setting = |name: &str, value: &str, by: &str, refused: &str| PresenceSetting {
            name: name.to_owned(),
            value: value.to_owned(),
            by: by.to_owned(),
            refused: refused.to_owned(),
        };
        let one = Workstation {
            hostname: "pc1".to_owned(),
            presence: vec![
                setting("start_after", "1800", "farm", ""),
                setting("load", "0.3", "owner", "the farm wants 4; its owner lets it go as far as 0.3"),
                setting("on_battery", "false", "default", ""),
                setting("free_memory", "0.1", "default", ""),
            ],
            presence_wanted: r#"{"start_after": 1800, "load": 4, "on_battery": false, "free_memory": 0.5}"#.into(),
            ..Workstation::default()
        };
        let remarks: Vec<String> = rows(&one).into_iter().map(|mut row| row.remove(4)).collect();
        let refused = "the farm wants 4; its owner lets it go as far as 0.3";
        assert_eq!(remarks, ["", refused, "", "the farm wants 0.5"]);
        let silent = Workstation { hostname: "pc2".to_owned(), ..Workstation::default() };
        assert!(table(&[one, silent]).contains("has not said what it goes by"));
    }
}
