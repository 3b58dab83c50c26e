//! Who calls, and what that caller may do: the one place for gRPC and REST alike.
//!
//! [`Access::authenticate`] makes a [`Caller`] of what a call brings; [`table`] says which scope a method or a route needs, and
//! whatever is not in it is refused; [`gate`] does both before a gRPC call reaches its service, and leaves the caller in the
//! request's extensions. What belongs to whom is decided in the services, which find it there: what is not the caller's own
//! is, to that caller, not there.
//!
//! Owns no truth: what it remembers of the database is a second old at most.

pub mod gate;
pub mod lasting;
pub mod places;
pub mod table;

pub(crate) mod password;

mod brake;
mod remember;

use crate::grpc::status_code;
use brake::{Brake, network};
use deadpool_postgres::{Object, Pool};
use lasting::Lasting;
use pcfarm_proto::ids::JobId;
use pcfarm_proto::secrets::Token;
use pcfarm_sql::access::{self, Doors, Rights, TokenHolder};
use remember::Remembered;
use sha2::{Digest, Sha256};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tonic::Status;
use uuid::Uuid;

/// What may be done, by people or by programs. Each includes the one before it, but for the work of agents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// One's own jobs, problems, results, schedules and subscriptions; and a look at the farm.
    Submit,
    /// Everybody's, workstations, and what is handed out at all.
    Operate,
    /// Users, their limits and tokens, and the farm's settings.
    Administer,
    /// The agents' service, and nothing else.
    Work,
}

impl Scope {
    pub const ALL: [Scope; 4] = [Scope::Submit, Scope::Operate, Scope::Administer, Scope::Work];

    pub fn name(self) -> &'static str {
        match self {
            Scope::Submit => "submit",
            Scope::Operate => "operate",
            Scope::Administer => "administer",
            Scope::Work => "work",
        }
    }

    pub fn from_name(name: &str) -> Option<Scope> {
        Scope::ALL.into_iter().find(|scope| scope.name() == name)
    }

    fn bits(self) -> u8 {
        match self {
            Scope::Submit => 0b0001,
            Scope::Operate => 0b0011,
            Scope::Administer => 0b0111,
            Scope::Work => 0b1000,
        }
    }
}

/// A set of scopes, each with those that it includes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Scopes(u8);

impl Scopes {
    pub const NONE: Scopes = Scopes(0);
    pub const ALL: Scopes = Scopes(0b1111);

    pub fn with(self, scope: Scope) -> Scopes {
        Scopes(self.0 | scope.bits())
    }

    pub fn includes(self, scope: Scope) -> bool {
        self.0 & scope.bits() == scope.bits()
    }

    /// What both have.
    pub fn within(self, other: Scopes) -> Scopes {
        Scopes(self.0 & other.0)
    }

    /// Of names as the database has them; what this build does not know is nothing.
    pub fn of_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Scopes {
        names.into_iter().filter_map(Scope::from_name).fold(Scopes::NONE, Scopes::with)
    }

    /// The fewest that say it.
    pub fn names(self) -> Vec<&'static str> {
        let people = [Scope::Administer, Scope::Operate, Scope::Submit].into_iter().find(|scope| self.includes(*scope));
        people.into_iter().chain(self.includes(Scope::Work).then_some(Scope::Work)).map(Scope::name).collect()
    }
}

/// What an account is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    User,
    Operator,
    Administrator,
}

impl Role {
    pub fn name(self) -> &'static str {
        match self {
            Role::User => "user",
            Role::Operator => "operator",
            Role::Administrator => "administrator",
        }
    }

    pub fn from_name(name: &str) -> Option<Role> {
        [Role::User, Role::Operator, Role::Administrator].into_iter().find(|role| role.name() == name)
    }

    /// What its tokens have unless they are made for less.
    pub fn scopes(self) -> Scopes {
        Scopes::NONE.with(match self {
            Role::User => Scope::Submit,
            Role::Operator => Scope::Operate,
            Role::Administrator => Scope::Administer,
        })
    }

    /// What its tokens may have at most.
    pub fn most(self) -> Scopes {
        match self {
            Role::User | Role::Operator => self.scopes(),
            Role::Administrator => Scopes::ALL,
        }
    }
}

/// What a caller is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// By a token of its user's.
    Token(i64),
    /// By a certificate: the workstation with this identity.
    Workstation(Uuid),
    /// By nothing, on a server that does not ask.
    Anonymous,
}

/// Who calls. In the extensions of every request that reaches a service; a program that calls a service in-process puts
/// it there itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    user: Arc<str>,
    scopes: Scopes,
    kind: Kind,
}

impl Caller {
    pub fn person(user: &str, scopes: Scopes, token: i64) -> Caller {
        Caller { user: user.into(), scopes, kind: Kind::Token(token) }
    }

    pub fn workstation(identity: Uuid) -> Caller {
        Caller {
            user: format!("workstation {identity}").into(),
            scopes: Scopes::NONE.with(Scope::Work),
            kind: Kind::Workstation(identity),
        }
    }

    pub fn anonymous(scopes: Scopes) -> Caller {
        Caller { user: "".into(), scopes, kind: Kind::Anonymous }
    }

    /// Whoever has come through the gate. Without one a request is refused: a service is never served unguarded.
    pub fn of<T>(request: &tonic::Request<T>) -> Result<Caller, Status> {
        let caller = request.extensions().get::<Caller>().cloned();
        caller.ok_or_else(|| Status::permission_denied("nobody has said who calls: this is an error of the server"))
    }

    /// A user's name; empty where nobody was asked for one.
    pub fn user(&self) -> &str {
        &self.user
    }

    pub fn scopes(&self) -> Scopes {
        self.scopes
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    pub fn may(&self, scope: Scope) -> bool {
        self.scopes.includes(scope)
    }

    /// What is made by this call is that user's. None: the server's own database role's, as nobody was asked.
    pub fn acting(&self) -> Option<&str> {
        match self.kind {
            Kind::Token(_) => Some(&self.user),
            Kind::Workstation(_) | Kind::Anonymous => None,
        }
    }

    /// The user to whom all that this caller sees and touches belongs. None: it sees and touches everybody's.
    pub fn only_own(&self) -> Option<&str> {
        if self.may(Scope::Operate) { None } else { Some(&self.user) }
    }

    /// Whether it sees and touches what belongs to this user.
    pub fn sees(&self, owner: &str) -> bool {
        self.only_own().is_none_or(|own| own == owner)
    }

    /// Lets what is done on this connection be done by the caller: for a connection from a pool, which forgets it, or for
    /// one that is closed afterwards.
    pub async fn act(&self, client: &Object) -> Result<(), Status> {
        match self.acting() {
            None => Ok(()),
            Some(user) => access::act_as(client, user, self.rights(), None).await.map(drop).map_err(status_code::of),
        }
    }

    /// The same, and only if this job is there for the caller: somebody else's is as one that never was.
    pub async fn act_on(&self, client: &Object, job: JobId) -> Result<(), Status> {
        let Some(user) = self.acting() else { return Ok(()) };
        let owner = access::act_as(client, user, self.rights(), Some(job)).await.map_err(status_code::of)?;
        if owner.is_some_and(|owner| self.sees(&owner)) { Ok(()) } else { Err(crate::grpc::jobs::not_found(job)) }
    }

    pub fn rights(&self) -> Rights {
        if self.only_own().is_some() { Rights::Own } else { Rights::All }
    }
}

/// Why a call is refused before it reaches its service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("who are you? Show a token: `pcfarm login`, or PCFARM_TOKEN")]
    NobodyKnown,
    #[error("this token is not known, has expired or was revoked: `pcfarm login` gets another")]
    WrongToken,
    #[error("this workstation's certificate was revoked, or its workstation is not known: join the farm again")]
    WrongCertificate,
    #[error("the certificate of this connection has expired: connect again with a new one")]
    OldCertificate,
    #[error("the name or the password is wrong")]
    WrongPassword,
    #[error("too many wrong attempts: try again in {} s", .0.as_secs().max(1))]
    TooManyAttempts(Duration),
    #[error("this needs scope {}, and {who} has {has}", .needs.name())]
    NotAllowed { needs: Scope, who: String, has: String },
    #[error("there is no such method")]
    NoSuchMethod,
    #[error("who calls cannot be looked up, as the database does not answer: try again")]
    Unavailable,
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Status {
        let message = refusal.to_string();
        match refusal {
            Refusal::NobodyKnown | Refusal::WrongToken | Refusal::WrongCertificate | Refusal::WrongPassword => {
                Status::unauthenticated(message)
            }
            Refusal::TooManyAttempts(_) => Status::resource_exhausted(message),
            Refusal::NotAllowed { .. } => Status::permission_denied(message),
            Refusal::NoSuchMethod => Status::unimplemented(message),
            // Another connection may do.
            Refusal::OldCertificate | Refusal::Unavailable => Status::unavailable(message),
        }
    }
}

/// From where a call comes, and what its connection has proven.
#[derive(Clone, Copy, Debug, Default)]
pub struct Peer {
    /// None: not known, which is as one from far away.
    pub address: Option<IpAddr>,
    /// Whose certificate was shown on this connection, signed by the farm's authority, and until when it holds.
    pub workstation: Option<(Uuid, SystemTime)>,
}

impl Peer {
    /// As the gate has found it.
    pub fn of<T>(request: &tonic::Request<T>) -> Peer {
        request.extensions().get::<Peer>().copied().unwrap_or_default()
    }

    fn is_here(&self) -> bool {
        self.address.is_some_and(|address| address.to_canonical().is_loopback())
    }
}

/// Whether those who show nothing are let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// Everybody is asked.
    Always,
    /// Until the first account exists, whoever comes from this machine may do everything; then, work as an agent.
    Strangers,
    /// The same wherever somebody comes from, on a network that is trusted.
    Nobody,
}

/// Looks up who calls.
pub struct Access {
    pool: Pool,
    asks: Asks,
    /// Whether people may make themselves accounts.
    pub registration: bool,
    remembered: Remembered,
    brake: Brake,
    lasting: Lasting,
}

impl Access {
    pub fn new(pool: Pool, asks: Asks, registration: bool) -> Access {
        Access {
            pool,
            asks,
            registration,
            remembered: Remembered::default(),
            brake: Brake::default(),
            lasting: Lasting::default(),
        }
    }

    pub(crate) fn brake(&self) -> &Brake {
        &self.brake
    }

    /// Who calls, by what stands behind `Bearer`, or by what its connection has proven. Asks the database once a second
    /// at most for each.
    pub async fn authenticate(&self, bearer: Option<&str>, peer: &Peer) -> Result<Caller, Refusal> {
        match (bearer, peer.workstation) {
            (Some(token), _) => self.by_token(token).await,
            (None, Some((_, until))) if until <= SystemTime::now() => Err(Refusal::OldCertificate),
            (None, Some((identity, _))) => self.by_certificate(identity).await,
            (None, None) => self.by_nothing(peer).await,
        }
    }

    /// Something was changed, here or elsewhere: what is remembered may be wrong.
    pub fn forget(&self) {
        self.remembered.forget();
        self.lasting.changed.notify_one();
    }

    async fn by_token(&self, text: &str) -> Result<Caller, Refusal> {
        let token: Token = text.parse().map_err(|_| Refusal::WrongToken)?;
        let hash: [u8; 32] = Sha256::digest(token.0).into();
        let asked = match self.remembered.token(&hash) {
            Ok(caller) => return Ok(caller),
            Err(asked) => asked,
        };
        // No brake: nobody guesses 256 bits, and an expired token in somebody's loop must not lock out its whole address.
        let client = self.client().await?;
        let found = access::token_holder(&client, &hash).await.map_err(unavailable)?;
        let Some(caller) = found.as_ref().and_then(caller_of) else {
            return Err(Refusal::WrongToken);
        };
        self.remembered.remember_token(hash, caller.clone(), asked);
        Ok(caller)
    }

    async fn by_certificate(&self, identity: Uuid) -> Result<Caller, Refusal> {
        let client = self.client().await?;
        if access::credential_holds(&client, identity).await.map_err(unavailable)? {
            return Ok(Caller::workstation(identity));
        }
        Err(Refusal::WrongCertificate)
    }

    async fn by_nothing(&self, peer: &Peer) -> Result<Caller, Refusal> {
        let is_asked = match self.asks {
            Asks::Always => true,
            Asks::Strangers => !peer.is_here(),
            Asks::Nobody => false,
        };
        if is_asked {
            return Err(Refusal::NobodyKnown);
        }
        Ok(Caller::anonymous(anonymous_scopes(self.doors().await?)))
    }

    /// Whether a workstation may have certificates, and is to be looked for among those.
    pub(crate) async fn has_workstations(&self) -> Result<bool, Refusal> {
        Ok(self.doors().await?.workstations)
    }

    async fn doors(&self) -> Result<Doors, Refusal> {
        let asked = match self.remembered.doors() {
            Ok(known) => return Ok(known),
            Err(asked) => asked,
        };
        let client = self.client().await?;
        let found = access::doors(&client).await.map_err(unavailable)?;
        self.remembered.remember_doors(found, asked);
        Ok(found)
    }

    async fn client(&self) -> Result<Object, Refusal> {
        self.pool.get().await.map_err(|error| {
            tracing::warn!(error = format!("{error:#}"), "who calls cannot be looked up");
            Refusal::Unavailable
        })
    }
}

/// What those may do who show nothing, where they are let in.
fn anonymous_scopes(doors: Doors) -> Scopes {
    if doors.people { Scopes::NONE.with(Scope::Work) } else { Scopes::ALL }
}

fn unavailable(error: tokio_postgres::Error) -> Refusal {
    drop(status_code::of(error)); // which logs it
    Refusal::Unavailable
}

fn caller_of(holder: &TokenHolder) -> Option<Caller> {
    let role = Role::from_name(&holder.role)?;
    let scopes = Scopes::of_names(holder.scopes.iter().map(String::as_str)).within(role.most());
    Some(Caller::person(&holder.user, scopes, holder.token_id))
}

/// Whether this caller may do what needs that: the one decision, behind [`table`].
pub fn may(caller: &Caller, need: table::Need) -> Result<(), Refusal> {
    let needs = match need {
        table::Need::Nothing | table::Need::Caller => return Ok(()),
        table::Need::Scope(scope) => scope,
    };
    if caller.may(needs) {
        return Ok(());
    }
    match caller.kind {
        // It could say who it is, and then it may do.
        Kind::Anonymous => Err(Refusal::NobodyKnown),
        Kind::Token(_) | Kind::Workstation(_) => {
            let (who, has) = (caller.user.to_string(), caller.scopes.names().join(" and "));
            Err(Refusal::NotAllowed { needs, who, has })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_include_those_before_them() {
        let operate = Scopes::NONE.with(Scope::Operate);
        assert!(operate.includes(Scope::Submit) && operate.includes(Scope::Operate));
        assert!(!operate.includes(Scope::Administer) && !operate.includes(Scope::Work));
        assert!(
            !Role::Administrator.scopes().includes(Scope::Work),
            "an administrator's token is no agent's by itself"
        );
        assert_eq!(Scopes::ALL.names(), ["administer", "work"]);
        assert_eq!(Scopes::of_names(["submit", "unheard-of"]), Scopes::NONE.with(Scope::Submit));
        assert_eq!(Scopes::ALL.within(Role::User.most()).names(), ["submit"], "a role that was taken back is gone");
    }

    #[test]
    fn a_user_sees_its_own_and_an_operator_everybodys() {
        let user = Caller::person("ana", Role::User.scopes(), 1);
        assert!(user.sees("ana") && !user.sees("ben"));
        let operator = Caller::person("ops", Role::Operator.scopes(), 2);
        assert!(operator.sees("ana") && operator.only_own().is_none());
        assert!(!Caller::workstation(Uuid::nil()).sees("ana"));
        assert!(Caller::anonymous(Scopes::ALL).sees("ana"));
    }
}
