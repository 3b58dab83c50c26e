//! How workstations come to have certificates. An agent checks the authority against its join token, and the server's
//! certificate against the authority, before it tells its secret; its key stays where it was made.

use super::access::no_authority;
use super::status_code;
use crate::access::Peer;
use crate::authority::{IssueError, Issued, Tls};
use crate::farm::Farm;
use deadpool_postgres::Object;
use pcfarm_proto::secrets::JoinToken;
use pcfarm_proto::v1::join_service_server::JoinService;
use pcfarm_proto::v1::{
    Certificate, CheckJoinTokenRequest, CheckJoinTokenResponse, GetAuthorityRequest, GetAuthorityResponse, JoinRequest,
    RenewRequest,
};
use pcfarm_sql::access::{self, JoinTokenFate};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::time::SystemTime;
use tonic::{Request, Response, Status};
use tracing::{error, info, warn};
use uuid::Uuid;

/// Longest name that a workstation says it has; it is shown to people.
const TEXT_LIMIT: usize = 255;

pub struct JoinApi {
    farm: Arc<Farm>,
}

impl JoinApi {
    pub fn new(farm: Arc<Farm>) -> JoinApi {
        JoinApi { farm }
    }

    fn tls(&self) -> Result<&Arc<Tls>, Status> {
        self.farm.tls.as_ref().ok_or_else(no_authority)
    }

    async fn client(&self) -> Result<Object, Status> {
        self.farm.pool.get().await.map_err(status_code::of_pool)
    }

    async fn joined(&self, peer: Peer, asked: JoinRequest) -> Result<Response<Certificate>, Status> {
        let JoinRequest { join_token, identity, hostname, request } = asked;
        self.farm.access.brake().check(None, peer.address)?;
        let refused = || {
            self.farm.access.brake().failed(None, peer.address);
            Status::unauthenticated(
                "this join token is not known, has expired, was used up or revoked, or this workstation was cut off: \
                 `pcfarm join-token create` makes another",
            )
        };
        let token: JoinToken = join_token.parse().map_err(|_| refused())?;
        let identity = uuid(&identity)?;
        let hostname: String = hostname.replace('\0', "").chars().take(TEXT_LIMIT).collect();
        let tls = self.tls()?;
        let issued = issue(tls, &request, identity)?;
        let client = self.client().await?;
        let recorded = recorded(identity, &issued);
        let hash = Sha256::digest(token.secret);
        if !access::join(&client, &hash, &hostname, &recorded).await.map_err(status_code::of)? {
            warn!(%identity, hostname, address = ?peer.address, "a workstation may not join");
            return Err(refused());
        }
        info!(%identity, hostname, address = ?peer.address, "a workstation has joined");
        Ok(Response::new(certificate(tls, issued)))
    }

    /// Whoever guesses is slowed down as by joining. What is no token at all is no guess, and neither is one that was good once:
    /// they may be asked about again.
    async fn token_checked(
        &self,
        peer: Peer,
        asked: CheckJoinTokenRequest,
    ) -> Result<Response<CheckJoinTokenResponse>, Status> {
        self.farm.access.brake().check(None, peer.address)?;
        let refused = |why: &str| {
            Status::unauthenticated(format!("this join token {why}: `pcfarm join-token create` makes another"))
        };
        let token: JoinToken = asked.join_token.parse().map_err(|_| refused("is none"))?;
        let client = self.client().await?;
        let hash = Sha256::digest(token.secret);
        match access::join_token_fate(&client, &hash).await.map_err(status_code::of)? {
            None => {
                self.farm.access.brake().failed(None, peer.address);
                Err(refused("is not known to this farm"))
            }
            Some(JoinTokenFate::Revoked) => Err(refused("was revoked")),
            Some(JoinTokenFate::Expired) => Err(refused("has expired")),
            Some(JoinTokenFate::UsedUp) => Err(refused("was used up")),
            Some(JoinTokenFate::LetsIn { uses_left, expires_at }) => Ok(Response::new(CheckJoinTokenResponse {
                uses_left: uses_left.cast_unsigned(),
                expires_at: Some(expires_at.into()),
            })),
        }
    }

    /// By a key, which nobody guesses: no brake, or one workstation that was cut off would stop its neighbours.
    async fn renewed(&self, asked: RenewRequest) -> Result<Response<Certificate>, Status> {
        let identity = uuid(&asked.identity)?;
        let tls = self.tls()?;
        let issued = issue(tls, &asked.request, identity)?;
        let client = self.client().await?;
        if !access::renew(&client, &recorded(identity, &issued)).await.map_err(status_code::of)? {
            return Err(Status::unauthenticated(
                "this workstation has not joined with this key, was away for more than thirty days, or was cut off: join \
                 the farm again, by a token of `pcfarm join-token create`",
            ));
        }
        info!(%identity, "a workstation has renewed its certificate");
        Ok(Response::new(certificate(tls, issued)))
    }
}

#[tonic::async_trait]
impl JoinService for JoinApi {
    async fn get_authority(&self, _: Request<GetAuthorityRequest>) -> Result<Response<GetAuthorityResponse>, Status> {
        Ok(Response::new(GetAuthorityResponse { authority: self.tls()?.authorities() }))
    }

    async fn check_join_token(
        &self,
        request: Request<CheckJoinTokenRequest>,
    ) -> Result<Response<CheckJoinTokenResponse>, Status> {
        self.token_checked(Peer::of(&request), request.into_inner()).await
    }

    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<Certificate>, Status> {
        self.joined(Peer::of(&request), request.into_inner()).await
    }

    async fn renew(&self, request: Request<RenewRequest>) -> Result<Response<Certificate>, Status> {
        self.renewed(request.into_inner()).await
    }
}

fn recorded(identity: Uuid, issued: &Issued) -> access::Issued<'_> {
    access::Issued { identity, serial: &issued.serial, key: &issued.key, expires_at: issued.not_after }
}

fn uuid(text: &str) -> Result<Uuid, Status> {
    text.parse().map_err(|_| Status::invalid_argument(format!("not a UUID: {text:?}")))
}

fn issue(tls: &Tls, request: &str, identity: Uuid) -> Result<Issued, Status> {
    tls.issue(request, identity).map_err(|failed| match failed {
        IssueError::NoKey => Status::failed_precondition(failed.to_string()),
        IssueError::Request(_) => Status::invalid_argument(failed.to_string()),
        IssueError::Sign(_) => {
            error!(error = ?failed, "a certificate was not signed");
            Status::internal("this failed for a reason of the server's own: its log says more")
        }
    })
}

fn certificate(tls: &Tls, issued: Issued) -> Certificate {
    let left = issued.not_after.duration_since(SystemTime::now()).unwrap_or_default();
    Certificate {
        certificate: issued.certificate,
        authority: tls.authorities(),
        not_after: Some(issued.not_after.into()),
        renew_in: prost_types::Duration::try_from(left * 2 / 3).ok(),
    }
}
