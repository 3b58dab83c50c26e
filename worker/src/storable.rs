//! Whether a value can be stored as JSON by the farm.
//!
//! serde_json writes a number that is not finite as `null`, silently, and PostgreSQL cannot hold NUL
//! characters. This serializer writes nothing: it only looks for both.

use serde::ser::{self, Serialize};

/// Why a value cannot be stored.
#[derive(Debug, thiserror::Error)]
pub enum Unstorable {
    #[error("it contains a number that is not finite ({0})")]
    NotFinite(f64),
    #[error("it contains a NUL character")]
    Nul,
    #[error("{0}")]
    Other(String),
}

impl ser::Error for Unstorable {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        Unstorable::Other(message.to_string())
    }
}

/// Looks at every number and text of `value`.
pub fn check<T: Serialize + ?Sized>(value: &T) -> Result<(), Unstorable> {
    value.serialize(Look)
}

/// The value as JSON, if it can be stored.
pub fn json<T: Serialize + ?Sized>(value: &T) -> anyhow::Result<Vec<u8>> {
    check(value)?;
    Ok(serde_json::to_vec(value)?)
}

#[derive(Clone, Copy)]
struct Look;

macro_rules! accept {
    ($($method:ident($($argument:ty),*);)*) => {
        $(fn $method(self, $(_: $argument),*) -> Result<(), Unstorable> {
            Ok(())
        })*
    };
}

impl ser::Serializer for Look {
    type Ok = ();
    type Error = Unstorable;
    type SerializeSeq = Look;
    type SerializeTuple = Look;
    type SerializeTupleStruct = Look;
    type SerializeTupleVariant = Look;
    type SerializeMap = Look;
    type SerializeStruct = Look;
    type SerializeStructVariant = Look;

    accept! {
        serialize_bool(bool);
        serialize_i8(i8);
        serialize_i16(i16);
        serialize_i32(i32);
        serialize_i64(i64);
        serialize_i128(i128);
        serialize_u8(u8);
        serialize_u16(u16);
        serialize_u32(u32);
        serialize_u64(u64);
        serialize_u128(u128);
        serialize_bytes(&[u8]);
        serialize_none();
        serialize_unit();
        serialize_unit_struct(&'static str);
        serialize_unit_variant(&'static str, u32, &'static str);
    }

    fn serialize_f32(self, value: f32) -> Result<(), Unstorable> {
        self.serialize_f64(f64::from(value))
    }

    fn serialize_f64(self, value: f64) -> Result<(), Unstorable> {
        if value.is_finite() { Ok(()) } else { Err(Unstorable::NotFinite(value)) }
    }

    fn serialize_char(self, value: char) -> Result<(), Unstorable> {
        if value == '\0' { Err(Unstorable::Nul) } else { Ok(()) }
    }

    fn serialize_str(self, value: &str) -> Result<(), Unstorable> {
        if value.as_bytes().contains(&0) { Err(Unstorable::Nul) } else { Ok(()) }
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Unstorable> {
        check(value)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<(), Unstorable> {
        check(value)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        value: &T,
    ) -> Result<(), Unstorable> {
        check(value)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Look, Unstorable> {
        Ok(Look)
    }

    fn serialize_tuple(self, _: usize) -> Result<Look, Unstorable> {
        Ok(Look)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Look, Unstorable> {
        Ok(Look)
    }

    fn serialize_tuple_variant(self, _: &'static str, _: u32, _: &'static str, _: usize) -> Result<Look, Unstorable> {
        Ok(Look)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Look, Unstorable> {
        Ok(Look)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Look, Unstorable> {
        Ok(Look)
    }

    fn serialize_struct_variant(self, _: &'static str, _: u32, _: &'static str, _: usize) -> Result<Look, Unstorable> {
        Ok(Look)
    }

    fn collect_str<T: std::fmt::Display + ?Sized>(self, value: &T) -> Result<(), Unstorable> {
        self.serialize_str(&value.to_string())
    }
}

/// The compound kinds: each looks at its elements and ends without more.
macro_rules! look_inside {
    ($($kind:ident: $method:ident($($name:ty)?);)*) => {
        $(impl ser::$kind for Look {
            type Ok = ();
            type Error = Unstorable;

            fn $method<T: Serialize + ?Sized>(&mut self, $(_: $name,)? value: &T) -> Result<(), Unstorable> {
                check(value)
            }

            fn end(self) -> Result<(), Unstorable> {
                Ok(())
            }
        })*
    };
}

look_inside! {
    SerializeSeq: serialize_element();
    SerializeTuple: serialize_element();
    SerializeTupleStruct: serialize_field();
    SerializeTupleVariant: serialize_field();
    SerializeStruct: serialize_field(&'static str);
    SerializeStructVariant: serialize_field(&'static str);
}

impl ser::SerializeMap for Look {
    type Ok = ();
    type Error = Unstorable;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Unstorable> {
        check(key)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Unstorable> {
        check(value)
    }

    fn end(self) -> Result<(), Unstorable> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(serde::Serialize)]
    struct Prices {
        name: &'static str,
        bids: Vec<Option<f64>>,
        by_class: BTreeMap<String, (f32, char)>,
    }

    fn prices() -> Prices {
        Prices { name: "Q", bids: vec![Some(1.0), None], by_class: BTreeMap::from([("Y".to_owned(), (2.0, 'x'))]) }
    }

    #[test]
    fn what_cannot_be_stored_is_found_wherever_it_is() {
        let nul_key = BTreeMap::from([("a\0".to_owned(), (0.0, 'x'))]);
        let nan_inside = BTreeMap::from([("a".to_owned(), (f32::NAN, 'x'))]);
        for (case, value, expected) in [
            ("good", prices(), None),
            (
                "nan",
                Prices { bids: vec![Some(f64::NAN)], ..prices() },
                Some("it contains a number that is not finite (NaN)"),
            ),
            (
                "inner nan",
                Prices { by_class: nan_inside, ..prices() },
                Some("it contains a number that is not finite (NaN)"),
            ),
            ("nul", Prices { name: "\0", ..prices() }, Some("it contains a NUL character")),
            ("nul key", Prices { by_class: nul_key, ..prices() }, Some("it contains a NUL character")),
        ] {
            assert_eq!(check(&value).err().map(|e| e.to_string()).as_deref(), expected, "{case}");
        }
    }
}
