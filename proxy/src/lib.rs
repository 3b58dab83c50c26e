//! HTTP proxies between this host and others: the rules of `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`, a setting that
//! goes before the variables, and a connector for HTTP clients.
//!
//! - [`rules`]: the proxy for a destination. Pure.
//! - [`reach`]: the addresses that a request may reach: all, or public ones and networks that an administrator allows. Pure.
//! - [`resolver`]: names, resolved to addresses within reach.
//! - [`connector`]: a connection to a destination, direct or through its proxy.
//!
//! **A proxy resolves the destination's name.** A request through a proxy is therefore checked by its text alone: addresses,
//! and names that mean the proxy's own host. The proxy's rules decide about the addresses of other names.

pub mod connector;
pub mod reach;
mod resolver;
pub mod rules;

pub use connector::{Connector, Limits, PasswordWanted};
pub use reach::{Network, NotPublic, Reach};
pub use rules::{Proxies, ProxyError};
