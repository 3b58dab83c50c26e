//! What a gRPC call passes before it reaches its service: it is found out who calls, and whether that caller may.

use super::lasting::{self, Ending, Going, Over};
use super::{Access, Caller, Peer, Refusal, Scopes, may, table};
use crate::accept::ConnectInfo;
use crate::traces::{self, Traces, calls};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{HeaderMap, Request, Response, header::AUTHORIZATION};
use tower_layer::Layer;

/// Before all services.
#[derive(Clone)]
pub struct Gate {
    access: Arc<Access>,
    traces: Traces,
}

impl Gate {
    pub fn new(access: Arc<Access>, traces: Traces) -> Gate {
        Gate { access, traces }
    }
}

impl<S> Layer<S> for Gate {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded { access: self.access.clone(), traces: self.traces.clone(), inner }
    }
}

/// Services behind the gate.
#[derive(Clone)]
pub struct Guarded<S> {
    access: Arc<Access>,
    traces: Traces,
    inner: S,
}

impl<S> Service<Request<Body>> for Guarded<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        // The one that is ready is called; its copy takes its place.
        let copy = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, copy);
        let access = self.access.clone();
        let peer = request.extensions().get::<ConnectInfo>().map(ConnectInfo::peer).unwrap_or_default();
        request.extensions_mut().insert(peer);
        let shown = shown(&request);
        let mut span = calls::of_method(&self.traces, request.uri().path(), request.headers());
        let answered = async move {
            match admitted(&access, shown, &peer).await {
                Ok((caller, need)) => {
                    let mut over = Over::of(&access, &caller, need);
                    request.extensions_mut().insert(caller);
                    tokio::select! {
                        biased;
                        answer = inner.call(request) => {
                            Ok(answer?.map(|body| Body::new(Going::new(body, over, Ending::Trailers, ()))))
                        }
                        () = &mut over => Ok(lasting::ended().into_http()),
                    }
                }
                Err(refusal) => Ok(Status::from(refusal).into_http()),
            }
        };
        if span.place().is_none() {
            return Box::pin(answered);
        }
        Box::pin(async move {
            let answer: Result<Response<Body>, S::Error> = traces::within(&mut span, answered).await;
            if let Ok(answer) = &answer {
                calls::answered(&mut span, answer.headers());
            }
            answer
        })
    }
}

/// What a call needs, and what it shows.
type Shown = (table::Need, Option<String>);

fn shown(request: &Request<Body>) -> Result<Shown, Refusal> {
    let need = table::of_method(request.uri().path()).ok_or(Refusal::NoSuchMethod)?;
    Ok((need, bearer(request.headers())?.map(ToOwned::to_owned)))
}

async fn admitted(
    access: &Access,
    shown: Result<Shown, Refusal>,
    peer: &Peer,
) -> Result<(Caller, table::Need), Refusal> {
    let (need, token) = shown?;
    if need == table::Need::Nothing {
        return Ok((Caller::anonymous(Scopes::NONE), need));
    }
    let caller = access.authenticate(token.as_deref(), peer).await?;
    may(&caller, need)?;
    Ok((caller, need))
}

/// What stands behind `Bearer` in the one `Authorization` header, for REST as well.
pub fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Refusal::WrongToken);
    }
    let text = value.to_str().map_err(|_| Refusal::WrongToken)?;
    let (scheme, token) = text.split_once(' ').ok_or(Refusal::WrongToken)?;
    if scheme.eq_ignore_ascii_case("bearer") { Ok(Some(token.trim())) } else { Err(Refusal::WrongToken) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::codegen::http::HeaderValue;

    fn headers(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, HeaderValue::from_str(value).expect("a value"));
        }
        headers
    }

    #[test]
    fn a_header_holds_one_token_or_is_refused() {
        assert_eq!(bearer(&headers(&[])), Ok(None));
        assert_eq!(bearer(&headers(&["Bearer abc"])), Ok(Some("abc")));
        assert_eq!(bearer(&headers(&["bearer  abc"])), Ok(Some("abc")));
        for wrong in [&["abc"][..], &["Basic abc"], &["Bearer a", "Bearer b"], &["Bearer\u{e4} a"]] {
            assert_eq!(bearer(&headers(wrong)), Err(Refusal::WrongToken), "{wrong:?}");
        }
    }
}
