//! Resolves names to addresses within a [`Reach`]. The connection goes to one of the addresses that were checked, so a name that
//! resolves differently a moment later gains nothing.

use std::error::Error;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use tower::Service;

use crate::reach::{NotPublic, Reach};

type Failed = Box<dyn Error + Send + Sync>;

#[derive(Clone, Debug)]
pub struct Resolver {
    inner: GaiResolver,
    reach: Reach,
}

impl Resolver {
    pub fn new(reach: Reach) -> Resolver {
        Resolver { inner: GaiResolver::new(), reach }
    }
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = Failed;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Failed>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (host, reach) = (name.as_str().to_owned(), self.reach.clone());
        let resolving = self.inner.call(name);
        Box::pin(async move {
            let found: Vec<SocketAddr> = resolving.await?.collect();
            let allowed: Vec<SocketAddr> =
                found.iter().copied().filter(|address| reach.permits(address.ip())).collect();
            if allowed.is_empty() && !found.is_empty() {
                return Err(NotPublic { host }.into());
            }
            Ok(allowed.into_iter())
        })
    }
}
