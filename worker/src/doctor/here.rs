//! What is on this machine: settings, state, the service, and whoever watches for the person.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use uuid::Uuid;

use super::{Finding, Step};
use pcfarm_proto::secrets::JoinToken;

use crate::credentials::{Anchors, Credentials};
use crate::doctor::reach::{Visitor, visit};
use crate::doctor::witness::Trust;
use crate::local::message::Explanation;
use crate::machine::{self, fingerprint::Fingerprint};
use crate::presence::hours::gaps;
use crate::presence::{Presence, Start};
use crate::service::system::{self, Places};
use crate::settings::{Asked, Settings, SettingsError};
use crate::state_dir::StateDir;
use crate::state_dir::binding;

/// All steps, of an agent with these settings. `explained` is what one that runs says.
pub async fn look(asked: &Asked, explained: Option<&Explanation>) -> Vec<Finding> {
    let from = asked
        .config
        .as_ref()
        .map_or_else(|| "no file: flags, variables and defaults".to_owned(), |file| file.display().to_string());
    let settings = match &asked.settings {
        Ok(settings) => settings,
        Err(error @ (SettingsError::JoinToken(_) | SettingsError::JoinTokenFile { .. })) => {
            let advice = "the file, or PCFARM_JOIN_TOKEN, has what `pcfarm join-token create` writes, and nothing else. One that \
                          has joined needs none: take it out of the settings";
            let token = Finding::failed(Step::Token, crate::agent::chain(error), advice);
            return vec![Finding::ok(Step::Settings, from), token];
        }
        Err(error) => {
            let advice = "correct it; what may be in it is in the file that `pcfarm-worker install` writes, and in \
                          docs/workstations.md. If it may not be read: ask as root";
            return vec![Finding::failed(Step::Settings, crate::agent::chain(error), advice)];
        }
    };
    let places = Places::of_system();
    let gap = gaps::warning(&settings.presence.policy.hours).unwrap_or_default();
    let mut findings = vec![Finding { advice: gap, ..Finding::ok(Step::Settings, from) }];
    let token = settings.join_token.as_ref();
    let (state, identity) = state(&settings.state_dir, &places, token);
    findings.push(state);
    findings.push(service(&places));
    // One that may not be looked at, or is nobody's yet, is nobody.
    let credentials = settings.credentials(identity.unwrap_or_default());
    match visitor(&credentials, identity.unwrap_or_default(), token) {
        Ok(visitor) => {
            for endpoint in settings.endpoints().unwrap_or_default() {
                findings.extend(visit(&endpoint, &visitor).await);
            }
        }
        Err(error) => {
            let advice = "the file must be there and readable; of the agent's own, join anew";
            findings.push(Finding::failed(Step::Credentials, format!("{error:#}"), advice));
        }
    }
    findings.push(presence(settings, explained));
    findings.extend(gpus(settings, explained));
    findings.extend(super::programs::programs(settings));
    findings
}

/// What an agent would go to a server with. Its token matters as long as it has not joined.
pub fn visitor(credentials: &Credentials, identity: Uuid, token: Option<&JoinToken>) -> anyhow::Result<Visitor> {
    if let Some(token) = token.filter(|_| !credentials.are_there()) {
        return Ok(Visitor::with_token(token.clone(), identity));
    }
    let Anchors { authorities, identity: shown } = credentials.anchors()?;
    Ok(Visitor { trust: Trust::of(&authorities)?, credentials: shown, token: None, identity })
}

fn state(dir: &Path, places: &Places, token: Option<&JoinToken>) -> (Finding, Option<Uuid>) {
    let shown = dir.display();
    // Who is about to join has none yet, and makes it.
    let newcomer =
        |says: String| (Finding::skipped(Step::State, format!("{says}, and will with its join token")), None);
    let failed = |says: String, advice: &str| (Finding::failed(Step::State, says, advice), None);
    let metadata = match fs::metadata(dir) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && token.is_some() => {
            return newcomer(format!("{shown} is not there: no agent has run yet"));
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return failed(
                format!("{shown} is not there: no agent has run yet"),
                "pcfarm-worker install, or run an agent once",
            );
        }
        Err(error) => return failed(format!("{shown}: {error}"), "ask as root, or as the agent's user"),
    };
    let identity = match StateDir::peek(dir) {
        Ok(identity) => identity,
        Err(error) => {
            return failed(crate::agent::chain(&error), "ask as root, or as the agent's user; see the message");
        }
    };
    let Some(identity) = identity else {
        if token.is_some() {
            return newcomer(format!("{shown} has no identity yet"));
        }
        return failed(format!("{shown} has no identity yet"), "pcfarm-worker install, or run an agent once");
    };
    let is_services = dir == Path::new(crate::platform::SYSTEM_STATE_DIR) && places.unit().is_some();
    let expected = if is_services { places.user().map(|(uid, _)| uid) } else { None };
    if let Some(uid) = expected.filter(|uid| *uid != metadata.uid()) {
        let says = format!("{shown} belongs to user {} and not to {} ({uid})", metadata.uid(), system::USER);
        let advice = format!("chown -R {0}:{0} {shown}", system::USER);
        return (Finding::failed(Step::State, says, advice), Some(identity));
    }
    if expected.is_none()
        && let Err(error) = access(dir, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK)
    {
        let finding =
            Finding::failed(Step::State, format!("{shown}: {error}"), "the agent must be able to write there");
        return (finding, Some(identity));
    }
    if let Ok(Some(why)) = binding::difference(dir, &Fingerprint::of_this_machine()) {
        let says = format!("{shown} was copied from another machine: {why}");
        let advice = "the agent makes an identity of its own at its next start; if the hardware was replaced: pcfarm-worker identity keep";
        return (Finding::failed(Step::State, says, advice), Some(identity));
    }
    (Finding::ok(Step::State, format!("{shown}, identity {identity}")), Some(identity))
}

fn service(places: &Places) -> Finding {
    let Some(unit) = places.unit() else {
        return Finding::skipped(Step::Service, "it is no service of this system");
    };
    if !system::is_run_by_systemd() {
        return Finding::skipped(Step::Service, format!("{} is there, and systemd does not run", unit.display()));
    }
    match system::states() {
        Ok((active, enabled)) if active == "active" => Finding::ok(Step::Service, format!("{active}, {enabled}")),
        Ok((active, enabled)) => {
            let advice = format!("systemctl enable --now {0}; journalctl -u {0} says why it stopped", system::UNIT);
            Finding::failed(Step::Service, format!("{active}, {enabled}"), advice)
        }
        Err(error) => Finding::failed(Step::Service, format!("{error:#}"), ""),
    }
}

/// The agent's own word, since this process may be allowed more or less than the agent is.
fn gpus(settings: &Settings, explained: Option<&Explanation>) -> Vec<Finding> {
    let of_agent = explained.and_then(|explained| explained.agent.as_ref());
    let (gpus, who) = match of_agent {
        Some(agent) => (agent.gpus.clone(), ""),
        None => {
            (machine::gpus_explained(Path::new("/"), settings.gpu), " (by what this user may do: no agent answers)")
        }
    };
    let finding = |says: String| {
        let advice = match says.contains("not told") {
            true if !settings.gpu => "gpu = true in the settings lets programs use it",
            true => {
                "the drop-in gpu.conf lets the service open it, and `pcfarm-worker install` puts it in place; the driver makes the \
                 device, for NVIDIA's by `nvidia-modprobe -c 0 -u` at boot. See docs/workstations.md"
            }
            false => "",
        };
        let finding = Finding::ok(Step::Gpu, format!("{says}{who}"));
        // With gpu = true the owner wants it.
        if settings.gpu && !advice.is_empty() {
            return Finding::failed(Step::Gpu, finding.says, advice);
        }
        Finding { advice: advice.to_owned(), ..finding }
    };
    match gpus.is_empty() {
        true if settings.gpu => {
            vec![Finding::failed(Step::Gpu, "no GPU that computes is known to the kernel", "is its driver loaded?")]
        }
        true => Vec::new(),
        false => gpus.into_iter().map(finding).collect(),
    }
}

fn presence(settings: &Settings, explained: Option<&Explanation>) -> Finding {
    if settings.presence.policy.unattended {
        return Finding::skipped(Step::Presence, "unattended: nobody is looked for");
    }
    let alone;
    let (explanation, who) = match explained {
        Some(explanation) => (explanation, "the agent"),
        None => match Presence::start(settings.presence.clone(), &PathBuf::from("/nonexistent"), Start::Fresh) {
            Ok(presence) => {
                alone = Explanation::of(&presence.desk);
                (&alone, "an agent of this user")
            }
            Err(error) => return Finding::failed(Step::Presence, error.to_string(), ""),
        },
    };
    sources(explanation, who)
}

/// Finding about the sources of an agent that looks for a person.
fn sources(explanation: &Explanation, who: &str) -> Finding {
    let inputs = explanation.signals.iter().filter(|signal| signal.signal == "input");
    let inputs: Vec<String> = inputs.map(|signal| format!("{}: {}", signal.source, signal.says)).collect();
    let says = format!("{who} sees {}", if inputs.is_empty() { "nothing".to_owned() } else { inputs.join("; ") });
    if let Some(why) = &explanation.unanswered {
        let advice = "it does not work until that source answers again: `pcfarm-worker explain` shows all of them. A session helper that \
                      hangs begins anew with the session";
        return Finding::failed(
            Step::Presence,
            format!("{says}; it cannot tell whether a person is present: {why}"),
            advice,
        );
    }
    if explanation.blind {
        let advice = "it does not work while no source can tell whether somebody is there: put its user into group input, or \
                      set trust_terminals on a PC without a desktop, or unattended where nobody ever sits";
        return Finding::failed(Step::Presence, says, advice);
    }
    Finding::ok(Step::Presence, says)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Outcome;

    #[test]
    fn an_agent_that_cannot_tell_is_a_failure_whichever_source_is_missing() {
        let about = |blind: bool, unanswered: serde_json::Value| -> Explanation {
            serde_json::from_value(serde_json::json!({
                "activity": "rests", "since_seconds": 1, "reasons": [], "policy": [], "holds": [], "blind": blind,
                "unanswered": unanswered,
                "signals": [{"signal": "input", "source": "evdev", "age_seconds": 1.0, "says": "last 2 h ago"}],
            }))
            .expect("an explanation")
        };
        let fine = sources(&about(false, serde_json::Value::Null), "the agent");
        assert_eq!((fine.outcome, fine.says.as_str()), (Outcome::Ok, "the agent sees evdev: last 2 h ago"));
        let none = sources(&about(true, serde_json::Value::Null), "the agent");
        assert!(none.has_failed() && none.advice.contains("group input"), "{none:?}");
        let hangs = sources(&about(true, "no answer for more than 10 s from x11".into()), "the agent");
        assert!(
            hangs.has_failed() && hangs.says.ends_with("present: no answer for more than 10 s from x11"),
            "{hangs:?}"
        );
        assert!(!hangs.advice.contains("group input"), "its user may see the devices already: {hangs:?}");
    }
}
