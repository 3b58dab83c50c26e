//! The public protocol `pcfarm.v1` and the ids that every crate shares.
//!
//! - [`v1`]: messages and services, generated from `proto/pcfarm/v1/*.proto`.
//! - [`files`]: files by the hashes of their content.
//! - [`hours`]: hours of the week, and gaps that were probably not intended.
//! - [`ids`]: one type per kind of id. Raw integers exist only in messages and rows.
//! - [`labels`]: what owners may say of their workstations.
//! - [`secrets`]: the forms of tokens.
//! - [`version`]: versions of programs, to be compared.

use std::time::Duration;

pub mod files;
pub mod hours;
pub mod ids;
pub mod labels;
pub mod secrets;
pub mod version;

/// Messages, clients and servers of `pcfarm.v1`.
pub mod v1 {
    tonic::include_proto!("pcfarm.v1");
}

impl v1::Problem {
    /// Its key. An error if it is not UTF-8, which is not looked at when a message is decoded.
    pub fn key_text(&self) -> Result<&str, std::str::Utf8Error> {
        std::str::from_utf8(&self.key)
    }
}

/// The encoded `FileDescriptorSet` of `pcfarm.v1`, for the reflection service.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pcfarm.v1.bin"));

/// The version of the agents' protocol that this build speaks.
pub const PROTOCOL_VERSION: u32 = 1;

/// In the metadata of a status: the server cannot reach its database.
pub const OUTAGE: &str = "pcfarm-outage";

/// How often an agent says that it lives while it holds nothing: half as often as while it does, but at least
/// twice in a lease, and no more often than while it does.
pub fn idle_heartbeat(heartbeat: Duration, lease: Duration) -> Duration {
    (heartbeat * 2).min(lease / 2).max(heartbeat)
}

/// Most bytes of a problem's payload. The database's CHECK says the same.
pub const PAYLOAD_BYTES_LIMIT: usize = 1 << 20;

/// Most bytes of a problem's solution.
pub const SOLUTION_BYTES_LIMIT: usize = 1 << 20;

/// Most bytes of an encoded result: the solution and all that it brings, within the limit of a solution, and their frames.
pub const RESULT_BYTES_LIMIT: usize = SOLUTION_BYTES_LIMIT + (1 << 10);

/// Most problems that one solved problem enqueues.
pub const ENQUEUE_LIMIT: usize = 10_000;

/// Most bytes of one gRPC message either way; larger checkouts and deliveries go in parts.
pub const MESSAGE_BYTES_LIMIT: usize = 4 << 20;

/// What a sender aims at for one part of a checkout or one delivery.
pub const PART_BYTES_TARGET: usize = 1 << 20;

/// Most unbegun problems that a server asks one agent for at a time, and that one part of a delivery returns: each becomes a row of
/// a retry lane, in one transaction.
pub const RETURNED_LIMIT: usize = 10_000;

#[cfg(test)]
mod tests {
    use prost::Message;
    use prost_types::field_descriptor_proto::Type;

    #[test]
    fn others_see_a_key_as_the_text_that_it_is() {
        let files = prost_types::FileDescriptorSet::decode(super::DESCRIPTORS).expect("built with it").file;
        let problem = files.iter().flat_map(|file| &file.message_type).find(|message| message.name() == "Problem");
        let key = problem.and_then(|problem| problem.field.iter().find(|field| field.name() == "key"));
        assert_eq!(key.expect("a problem has a key").r#type(), Type::String);
    }
}
