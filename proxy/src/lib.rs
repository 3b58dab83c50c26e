//! HTTP proxies between this host and others: the rules of `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`, a setting that
//! goes before the variables, and a connector for HTTP clients.
//!
//! - [`rules`]: the proxy for a destination. Pure.
//! - [`connector`]: a connection to a destination, direct or through its proxy.
//!
//! **A proxy resolves the destination's name.** A check of resolved addresses on this host therefore says nothing about a request
//! through a proxy: the proxy's own rules decide which addresses can be reached.

pub mod connector;
pub mod rules;

pub use connector::Connector;
pub use rules::{Proxies, ProxyError};
