//! What becomes of the service, in a few lines: for whoever administers it, and for the person whose PC it is.

use std::fmt::Write;

use serde::Serialize;

use super::system::{self, Places};
use crate::local::message::{About, Explanation};
use crate::settings::Asked;
use crate::state_dir::StateDir;

/// All of it.
#[derive(Debug, Serialize)]
pub struct Status {
    /// In systemd's words; or why they are not known.
    pub service: String,
    pub settings: Option<String>,
    pub identity: Option<String>,
    pub hostname: Option<String>,
    pub version: Option<String>,
    pub servers: Vec<String>,
    /// The server that it has a session with, and its number there.
    pub session: Option<crate::local::message::Session>,
    /// What the agent says of itself; nothing, if none answers.
    pub explanation: Option<Explanation>,
}

impl Status {
    pub fn of(asked: &Asked, explanation: Option<Explanation>) -> Status {
        let places = Places::of_system();
        let service = match places.unit() {
            None => "not installed as a service of this system".to_owned(),
            Some(_) if !system::is_run_by_systemd() => "installed; systemd does not run here".to_owned(),
            Some(_) => system::states()
                .map_or_else(|error| format!("{error:#}"), |(active, enabled)| format!("{active}, {enabled}")),
        };
        let settings = asked.settings.as_ref().ok();
        let agent = explanation.as_ref().and_then(|explanation| explanation.agent.clone());
        let agent = agent.unwrap_or_else(|| About {
            // May be hidden from whoever asks.
            identity: settings
                .and_then(|settings| StateDir::peek(&settings.state_dir).ok().flatten())
                .map_or_else(String::new, |identity| identity.to_string()),
            hostname: settings.map_or_else(String::new, |settings| settings.hostname.clone()),
            version: String::new(),
            servers: settings.map_or_else(Vec::new, |settings| settings.servers.clone()),
            gpu: false,
            gpus: Vec::new(),
            session: None,
        });
        let known = |text: String| Some(text).filter(|text| !text.is_empty());
        Status {
            service,
            settings: asked.config.as_ref().map(|file| file.display().to_string()),
            identity: known(agent.identity),
            hostname: known(agent.hostname),
            version: known(agent.version),
            servers: agent.servers,
            session: agent.session,
            explanation,
        }
    }

    /// `headline`: what the agent says first.
    pub fn text(&self, headline: impl Fn(&Explanation) -> String) -> String {
        let unknown = || "not known".to_owned();
        let server = match &self.session {
            Some(session) => format!("{}, as workstation {}", session.server, session.workstation_id),
            None if self.servers.is_empty() => unknown(),
            None => format!("none has welcomed it: {}", self.servers.join(", ")),
        };
        let rows = [
            ("service", self.service.clone()),
            ("workstation", self.hostname.clone().unwrap_or_else(unknown)),
            ("identity", self.identity.clone().unwrap_or_else(unknown)),
            ("server", server),
            ("settings", self.settings.clone().unwrap_or_else(unknown)),
            ("version", self.version.clone().unwrap_or_else(|| "no agent answers".to_owned())),
        ];
        let mut text = String::new();
        for (name, says) in rows {
            let _ = writeln!(text, "{name:12} {says}");
        }
        match &self.explanation {
            Some(explanation) => text.push_str(&headline(explanation)),
            None => text.push_str(
                "No agent runs, or none that can be asked here. pcfarm-worker doctor says which step fails.\n",
            ),
        }
        text
    }
}
