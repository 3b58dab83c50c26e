//! Calls that last: streams, uploads, long waits. Who calls is found out at the beginning of each; of those that go on, it is
//! looked at again every second, all of them with one statement, and when a notification says that something changed. One
//! whose token was revoked or has expired, whose account was disabled or has another role, ends.

use super::{Access, Caller, Kind, Refusal, Scope, Scopes, caller_of, table};
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use pcfarm_sql::access;
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{MissedTickBehavior, Sleep, interval, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::Status;

/// A call that is shorter has ended by itself: one that revokes its own token still gets its answer, and most calls are
/// never noted here.
const BRIEF: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_secs(1);

/// By whom, and with which rights.
type Key = (Kind, Scopes);

/// Those that are watched, by who made them.
#[derive(Default)]
pub struct Lasting {
    calls: Mutex<HashMap<Key, Watched>>,
    pub(super) changed: tokio::sync::Notify,
}

struct Watched {
    calls: usize,
    over: CancellationToken,
}

impl Lasting {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Watched>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, key: Key) -> CancellationToken {
        let mut calls = self.lock();
        let watched = calls.entry(key).or_insert_with(|| Watched { calls: 0, over: CancellationToken::new() });
        watched.calls += 1;
        watched.over.clone()
    }

    fn leave(&self, key: Key) {
        let mut calls = self.lock();
        if let Some(watched) = calls.get_mut(&key) {
            watched.calls -= 1;
            if watched.calls == 0 {
                calls.remove(&key);
            }
        }
    }

    /// Those that are over stay until their calls have seen it.
    fn all(&self) -> Vec<Key> {
        self.lock().iter().filter(|(_, watched)| !watched.over.is_cancelled()).map(|(key, _)| *key).collect()
    }

    fn end(&self, key: Key) {
        if let Some(watched) = self.lock().get(&key) {
            watched.over.cancel();
        }
    }
}

/// Comes when a call is to end, because its caller may not make it any more.
pub struct Over {
    access: Arc<Access>,
    key: Key,
    state: State,
}

enum State {
    /// Nothing is asked again.
    Never,
    Brief(Pin<Box<Sleep>>),
    Watched(Pin<Box<WaitForCancellationFutureOwned>>),
}

impl Over {
    pub fn of(access: &Arc<Access>, caller: &Caller, need: table::Need) -> Over {
        let state = match (caller.kind(), need) {
            // Sessions of workstations with certificates are looked after where they are (`crate::watch`).
            (Kind::Workstation(_), _) | (_, table::Need::Nothing) => State::Never,
            // Whoever may work without showing anything still may when there are accounts.
            (Kind::Anonymous, table::Need::Scope(Scope::Work)) => State::Never,
            (Kind::Token(_) | Kind::Anonymous, _) => State::Brief(Box::pin(sleep(BRIEF))),
        };
        Over { access: access.clone(), key: (caller.kind(), caller.scopes()), state }
    }
}

impl Future for Over {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        loop {
            match &mut self.state {
                State::Never => return Poll::Pending,
                State::Brief(while_brief) => {
                    std::task::ready!(while_brief.as_mut().poll(context));
                    let over = self.access.lasting.enter(self.key);
                    self.state = State::Watched(Box::pin(over.cancelled_owned()));
                }
                State::Watched(over) => return over.as_mut().poll(context),
            }
        }
    }
}

impl Drop for Over {
    fn drop(&mut self) {
        if matches!(self.state, State::Watched(_)) {
            self.access.lasting.leave(self.key);
        }
    }
}

/// Why a call ended that had begun.
pub fn ended() -> Status {
    Status::unauthenticated("who made this call may not go on with it: what was not answered may be done or not")
}

/// How what is on its way ends before its end.
#[derive(Clone, Copy, Debug)]
pub enum Ending {
    /// As gRPC says it.
    Trailers,
    /// The connection is cut, so that half of it does not look like all.
    Cut,
}

/// An answer on its way, until its caller may have it no more. It may keep what belongs to the call, such as its place.
pub struct Going<B, P> {
    body: B,
    /// None: it is over.
    over: Option<Over>,
    ending: Ending,
    _keeps: P,
}

impl<B, P> Going<B, P> {
    pub fn new(body: B, over: Over, ending: Ending, keeps: P) -> Going<B, P> {
        Going { body, over: Some(over), ending, _keeps: keeps }
    }
}

impl<B, P> Body for Going<B, P>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    P: Unpin,
{
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Some(over) = &mut self.over else { return Poll::Ready(None) };
        if Pin::new(over).poll(context).is_ready() {
            self.over = None;
            return Poll::Ready(Some(match self.ending {
                Ending::Cut => Err(ended().into()),
                Ending::Trailers => {
                    let mut trailers = tonic::codegen::http::HeaderMap::new();
                    ended().add_header(&mut trailers).map(|()| Frame::trailers(trailers)).map_err(Into::into)
                }
            }));
        }
        Pin::new(&mut self.body).poll_frame(context).map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.over.is_none() || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Looks at calls that last, until the server stops.
pub async fn watch(access: Arc<Access>, stopping: CancellationToken) {
    let mut tick = interval(LOOK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stopping.cancelled() => return,
            _ = tick.tick() => {}
            () = access.lasting.changed.notified() => {}
        }
        // What they read comes from the same database.
        if let Err(refusal) = look(&access).await {
            tracing::debug!(%refusal, "calls that last were not looked at: again in a second");
        }
    }
}

async fn look(access: &Access) -> Result<(), Refusal> {
    let calls = access.lasting.all();
    if calls.is_empty() {
        return Ok(());
    }
    let tokens: Vec<i64> = calls.iter().filter_map(|(kind, _)| token_of(*kind)).collect();
    let client = access.client().await?;
    let holders = access::token_holders(&client, &tokens).await.map_err(super::unavailable)?;
    let doors = access::doors(&client).await.map_err(super::unavailable)?;
    let now: HashMap<i64, Scopes> =
        holders.iter().filter_map(|holder| Some((holder.token_id, caller_of(holder)?.scopes()))).collect();
    for (kind, scopes) in calls {
        let has = match token_of(kind) {
            Some(token) => now.get(&token).copied(),
            None => Some(super::anonymous_scopes(doors)),
        };
        if !has.is_some_and(|has| scopes.within(has) == scopes) {
            access.lasting.end((kind, scopes));
        }
    }
    Ok(())
}

fn token_of(kind: Kind) -> Option<i64> {
    match kind {
        Kind::Token(id) => Some(id),
        Kind::Workstation(_) | Kind::Anonymous => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_watched_while_it_lasts() {
        let lasting = Lasting::default();
        let key = (Kind::Token(1), Scopes::NONE);
        let (first, second) = (lasting.enter(key), lasting.enter(key));
        assert_eq!(lasting.all(), [key]);
        lasting.leave(key);
        lasting.end(key);
        assert!(first.is_cancelled() && second.is_cancelled());
        assert!(lasting.all().is_empty(), "it is not looked at again");
        lasting.leave(key);
        lasting.leave(key); // there is none
        assert!(!lasting.enter(key).is_cancelled(), "another one has not ended");
    }
}
