//! JSON values that pass through: read from and written to `jsonb` as the bytes they are, never parsed.

use bytes::{BufMut, Bytes, BytesMut};
use postgres_types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};
use std::error::Error;

/// The text of one JSON value. PostgreSQL checks it when it is written, or, sent as text, when it is cast.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RawJson(pub Bytes);

/// The version number that leads the binary form of `jsonb`.
const JSONB_VERSION: u8 = 1;

impl ToSql for RawJson {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        if *ty == Type::JSONB {
            out.put_u8(JSONB_VERSION);
        }
        out.put_slice(&self.0);
        Ok(IsNull::No)
    }

    accepts!(JSON, JSONB, TEXT);
    to_sql_checked!();
}

/// The same, still in the row that it came in.
#[derive(Clone, Copy, Debug)]
pub struct JsonSlice<'a>(pub &'a [u8]);

impl<'a> FromSql<'a> for JsonSlice<'a> {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        match (*ty == Type::JSONB, raw.split_first()) {
            (false, _) => Ok(JsonSlice(raw)),
            (true, Some((&JSONB_VERSION, text))) => Ok(JsonSlice(text)),
            (true, _) => Err("jsonb in a form that this build does not know".into()),
        }
    }

    accepts!(JSON, JSONB);
}

impl<'a> FromSql<'a> for RawJson {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        JsonSlice::from_sql(ty, raw).map(|slice| RawJson(Bytes::copy_from_slice(slice.0)))
    }

    accepts!(JSON, JSONB);
}
