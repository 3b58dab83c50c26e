//! Objects in an S3-compatible store, of a server that was built without the feature `object-store`: there are none, and a setting
//! that names such a store is refused.

use crate::missing::OBJECT_STORE;
use crate::outward::Outward;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

pub const OBJECT_BYTES_LIMIT: usize = 0;

/// No value exists: a setting that needs a store is refused.
pub struct Keys(Infallible);

impl Keys {
    pub fn find(_file: Option<PathBuf>) -> Result<Keys, String> {
        Err(OBJECT_STORE.to_string())
    }
}

/// No value exists: a setting that needs a store is refused.
#[derive(Clone, Debug)]
pub struct Place(Infallible);

impl Place {
    pub fn parse(_address: &str, _endpoint: Option<&str>, _region: Option<&str>, keys: Keys) -> Result<Place, String> {
        match keys.0 {}
    }

    pub fn is_overheard(&self) -> bool {
        match self.0 {}
    }
}

impl fmt::Display for Place {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {}
    }
}

/// No value exists: a setting that needs a store is refused.
#[derive(Debug)]
pub struct Store(Infallible);

impl Store {
    pub fn new(place: Place, _: &Outward) -> Arc<Store> {
        match place.0 {}
    }

    pub async fn check(&self) -> Result<(), Failure> {
        match self.0 {}
    }

    pub fn advice(&self, _: &Failure) -> String {
        match self.0 {}
    }

    pub async fn remove(&self, _name: &str) -> Result<(), Failure> {
        match self.0 {}
    }

    pub fn read(self: &Arc<Store>, _name: &str) -> BoxStream<'static, io::Result<Bytes>> {
        match self.0 {}
    }

    pub fn write(self: &Arc<Store>, _name: String) -> Writing {
        match self.0 {}
    }
}

/// No value exists: a setting that needs a store is refused.
pub struct Writing(Infallible);

impl Writing {
    pub async fn write(&mut self, _piece: &[u8]) -> Result<(), Failure> {
        match self.0 {}
    }

    pub async fn finish(self) -> Result<(), Failure> {
        match self.0 {}
    }
}

/// No value exists.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Failure(Infallible);

impl Failure {
    pub fn may_pass(&self) -> bool {
        match self.0 {}
    }
}
