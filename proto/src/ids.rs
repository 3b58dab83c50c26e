//! One type per kind of id, with no conversion between kinds.

use sha2::{Digest, Sha256};
use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;
use uuid::{Builder, Uuid};

/// Who a slot of a workstation is: made of the workstation's identity and the slot's name, so that a server can check it.
pub fn slot_identity(workstation: Uuid, slot: &str) -> Uuid {
    let hash = Sha256::new().chain_update(workstation.as_bytes()).chain_update(slot.as_bytes()).finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash[..16]);
    Builder::from_custom_bytes(bytes).into_uuid()
}

/// Defines an id over a 64-bit integer: Display, FromStr and, for rows, ToSql and FromSql.
macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub i64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIntError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map($name)
            }
        }

        #[cfg(feature = "sql")]
        impl<'a> postgres_types::FromSql<'a> for $name {
            fn from_sql(
                ty: &postgres_types::Type,
                raw: &'a [u8],
            ) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
                i64::from_sql(ty, raw).map($name)
            }

            postgres_types::accepts!(INT8);
        }

        #[cfg(feature = "sql")]
        impl postgres_types::ToSql for $name {
            fn to_sql(
                &self,
                ty: &postgres_types::Type,
                out: &mut bytes::BytesMut,
            ) -> Result<postgres_types::IsNull, Box<dyn std::error::Error + Sync + Send>> {
                self.0.to_sql(ty, out)
            }

            postgres_types::accepts!(INT8);
            postgres_types::to_sql_checked!();
        }
    };
}

id!(
    /// A named batch of problems.
    JobId
);
id!(
    /// One sequence of batch orders in a job.
    LaneId
);
id!(
    /// The smallest unit of work: lane times 10^10 plus its number in the lane, so unique on the farm.
    ProblemId
);
id!(
    /// Convoys in one workstation's hands. Only together with its token is it an authority.
    CheckoutId
);
id!(
    /// A PC with an agent.
    WorkstationId
);
id!(
    /// One run of a server program.
    ServerId
);
id!(
    /// The position of a convoy in its lane.
    BatchOrder
);
id!(
    /// Somebody's wish to be told.
    SubscriptionId
);
id!(
    /// Something that somebody is to be told.
    AlertId
);
id!(
    /// A recurrence and what it triggers.
    ScheduleId
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_read_what_they_print() {
        let id = ProblemId(30_000_000_042);
        assert_eq!(id.to_string().parse(), Ok(id));
        assert!("twelve".parse::<JobId>().is_err());
    }

    #[test]
    fn slots_are_told_apart() {
        let one = Uuid::from_u128(1);
        assert_eq!(slot_identity(one, "gpu"), slot_identity(one, "gpu"));
        assert_ne!(slot_identity(one, "gpu"), slot_identity(one, "cpu"));
        assert_ne!(slot_identity(one, "gpu"), slot_identity(Uuid::from_u128(2), "gpu"));
        assert_eq!(slot_identity(one, "gpu").get_version_num(), 8);
    }
}
