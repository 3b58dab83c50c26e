//! Attempts of an agent without a certificate to get into a farm that demands one.
//!
//! The agent joins as soon as its settings have a token: the file is read again at each attempt. A copy of another machine's disk has
//! that machine's certificate, which it must not use for work. It shows it only to report itself: the server refuses it, and tells
//! the administrator.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use pcfarm_proto::PROTOCOL_VERSION;
use pcfarm_proto::secrets::JoinToken;
use pcfarm_proto::v1::agent_message::Message;
use pcfarm_proto::v1::agent_service_client::AgentServiceClient;
use pcfarm_proto::v1::{self, WorkstationState};
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tonic::Code;
use tonic::transport::Endpoint;
use tracing::{error, info, warn};
use uuid::Uuid;

use crate::credentials::Credentials;
use crate::settings::Settings;
use crate::state_dir::StateDir;

const REPORT_WAIT: Duration = Duration::from_secs(10);

/// Outcome of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    Joined,
    /// A server has heard that this is a copy. Only a token helps.
    Reported,
    /// There is neither a token nor a copied certificate, or no server took either.
    Nothing,
}

pub struct Entrance {
    credentials: Arc<Credentials>,
    token: Option<JoinToken>,
    token_file: Option<PathBuf>,
    copied: Option<Copied>,
}

/// Identity and certificate of another machine that were found in the state directory.
struct Copied {
    credentials: Credentials,
    identity: Uuid,
    hostname: String,
    /// Digest of this machine.
    machine: Vec<u8>,
}

impl Entrance {
    pub fn new(settings: &Settings, state_dir: &StateDir, credentials: Arc<Credentials>) -> Entrance {
        let binding = &state_dir.binding;
        let copied = binding.cloned_from.zip(binding.machine.digest()).and_then(|(identity, machine)| {
            let credentials = settings.credentials(identity).of_copy(&state_dir.copied());
            let hostname = settings.hostname.clone();
            credentials.are_there().then(|| Copied { credentials, identity, hostname, machine: machine.to_vec() })
        });
        let (token, token_file) = (settings.join_token.clone(), settings.join_token_file.clone());
        Entrance { credentials, token, token_file, copied }
    }

    /// Tries after this server has refused the agent for want of a certificate.
    pub async fn attempt(&self, server: &Endpoint) -> Attempt {
        if self.credentials.are_there() || server.uri().scheme_str() != Some("https") {
            return Attempt::Nothing;
        }
        if let Some(token) = self.token() {
            match self.credentials.join_once(server, &token).await {
                Ok(()) => {
                    info!(server = %server.uri(), "joined the farm");
                    return Attempt::Joined;
                }
                Err(error) => warn!(server = %server.uri(), error = format!("{error:#}"), "cannot join the farm"),
            }
        }
        let Some(copied) = &self.copied else { return Attempt::Nothing };
        match copied.report(server).await {
            Ok(()) => {
                error!(
                    server = %server.uri(), cloned_from = %copied.identity,
                    "this agent is a copy and has no certificate of its own: name a join token in its settings (join_token_file), \
                     or `pcfarm-worker install --token-file FILE`"
                );
                Attempt::Reported
            }
            Err(error) => {
                warn!(server = %server.uri(), error = format!("{error:#}"), "cannot report that this agent is a copy");
                Attempt::Nothing
            }
        }
    }

    /// The token as its file has it now.
    fn token(&self) -> Option<JoinToken> {
        let of_file = |file: &Path| std::fs::read_to_string(file).ok()?.trim().parse().ok();
        self.token_file.as_deref().and_then(of_file).or_else(|| self.token.clone())
    }
}

impl Copied {
    /// Names the copied identity and this machine. A server that takes them for more than a report is not let go on.
    async fn report(&self, server: &Endpoint) -> anyhow::Result<()> {
        let hello = v1::Hello {
            protocol_version: PROTOCOL_VERSION,
            identity: self.identity.to_string(),
            instance: Uuid::new_v4().to_string(),
            hostname: self.hostname.clone(),
            cores: 1,
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            machine: self.machine.clone().into(),
            state: WorkstationState::Suspended.into(),
            rebinding: Some(v1::Rebinding { cloned_from: self.identity.to_string(), ..v1::Rebinding::default() }),
            ..v1::Hello::default()
        };
        let hello = v1::AgentMessage { message: Some(Message::Hello(hello)) };
        let asked = async {
            let channel = self.credentials.tune(server.clone())?.connect().await.context("connecting")?;
            let requests = tokio_stream::once(hello).chain(tokio_stream::pending());
            let mut answer = match AgentServiceClient::new(channel).work(requests).await {
                Ok(answer) => answer.into_inner(),
                Err(status) => return anyhow::Ok(Err(status)),
            };
            Ok(answer.message().await)
        };
        let answer = timeout(REPORT_WAIT, asked).await.context("no answer")??;
        match answer {
            Ok(_) => bail!("the server did not refuse the copied identity"),
            Err(status) => {
                ensure!(status.code() == Code::AlreadyExists, "{}", status.message());
                Ok(())
            }
        }
    }
}
