//! Objects in an S3-compatible store: put in parts, read from any place on, listed and removed. What may pass is tried again
//! for a while ([`request`]); who may is in files or the environment ([`keys`]). Neither keys nor signed addresses are logged.

mod keys;
mod request;

pub use keys::Keys;
pub use request::Failure;

use crate::outward::Outward;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, ETAG};
use instant_xml::FromXml;
use request::{Call, Client, Tries};
use rusty_s3::actions::{CompleteMultipartUpload, CompleteMultipartUploadResponse, CreateMultipartUpload};
use rusty_s3::{Bucket, Method, UrlStyle};
use std::fmt;
use std::io;
use std::mem;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Of all parts but the last: stores want 5 MiB at least, some want them all alike, and as much memory each upload takes.
const PART_BYTES: usize = 8 << 20;
/// S3's own limit.
const PARTS: usize = 10_000;
/// What one object can have.
pub const OBJECT_BYTES_LIMIT: usize = PART_BYTES * PARTS;

/// An object of which nothing more comes for so long is asked for anew.
const SILENCE: Duration = Duration::from_secs(30);

/// The region of stores that have none.
const ANY_REGION: &str = "us-east-1";

/// Where objects are, and who may.
#[derive(Clone)]
pub struct Place {
    bucket: Bucket,
    /// Empty, or with a slash at its end.
    prefix: String,
    keys: Keys,
}

impl Place {
    /// `s3://bucket/prefix`, at Amazon's or at an endpoint of one's own.
    pub fn parse(address: &str, endpoint: Option<&str>, region: Option<&str>, keys: Keys) -> Result<Place, String> {
        let path = address.strip_prefix("s3://").ok_or("it does not begin with s3://")?;
        let (bucket, prefix) = path.split_once('/').unwrap_or((path, ""));
        let prefix = prefix.trim_end_matches('/');
        let is_plain = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        if bucket.is_empty() || !is_plain(bucket) {
            return Err(format!("{bucket:?} is no name of a bucket: write s3://BUCKET/PREFIX"));
        }
        if !prefix.is_empty() && prefix.split('/').any(|part| part.trim_matches('.').is_empty() || !is_plain(part)) {
            return Err(format!("the prefix {prefix:?}: let it be of letters, digits, - _ . and single slashes"));
        }
        let (endpoint, region, style) = match (endpoint, region) {
            (Some(endpoint), region) => (endpoint.to_owned(), region.unwrap_or(ANY_REGION), UrlStyle::Path),
            (None, Some(region)) => {
                // Amazon's certificates hold for one label before its own.
                let style = if bucket.contains('.') { UrlStyle::Path } else { UrlStyle::VirtualHost };
                (format!("https://s3.{region}.amazonaws.com"), region, style)
            }
            (None, None) => return Err("say s3_region (Amazon's), or s3_endpoint (another store's URL)".to_owned()),
        };
        let Ok(url) = endpoint.parse() else { return Err(format!("s3_endpoint: {endpoint:?} is no URL")) };
        let bucket = Bucket::new(url, style, bucket.to_owned(), region.to_owned());
        let bucket = bucket.map_err(|error| format!("s3_endpoint: {endpoint:?}: {error}"))?;
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        Ok(Place { bucket, prefix, keys })
    }

    /// What is said there can be heard by others.
    pub fn is_overheard(&self) -> bool {
        let url = self.bucket.base_url();
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let is_here =
            host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
        url.scheme() == "http" && !is_here
    }
}

impl fmt::Display for Place {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = self.bucket.base_url().origin().ascii_serialization();
        write!(to, "s3://{}/{} at {origin} ({})", self.bucket.name(), self.prefix, self.bucket.region())
    }
}

/// Without keys.
impl fmt::Debug for Place {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, to)
    }
}

/// A store that is spoken with.
pub struct Store {
    place: Place,
    client: Client,
    outward: Outward,
}

impl fmt::Debug for Store {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.place, to)
    }
}

#[derive(Debug, FromXml)]
#[xml(rename = "ListMultipartUploadsResult", ns("http://s3.amazonaws.com/doc/2006-03-01/"))]
struct Uploads {
    uploads: Vec<BegunUpload>,
}

#[derive(Debug, FromXml)]
#[xml(rename = "Upload", ns("http://s3.amazonaws.com/doc/2006-03-01/"))]
struct BegunUpload {
    #[xml(rename = "Key")]
    key: String,
    #[xml(rename = "UploadId")]
    upload_id: String,
}

impl Store {
    pub fn new(place: Place, outward: &Outward) -> Arc<Store> {
        Arc::new(Store { place, client: request::client(outward), outward: outward.clone() })
    }

    /// Does once all that is done later, so that what is missing is known at start and not at night.
    pub async fn check(&self) -> Result<(), Failure> {
        // Of a check that is cut off the next one removes what it has left. Of two at a time one may find that it is gone.
        let name = "check";
        self.put(name, Bytes::from_static(b"pcfarm-server looks whether it may")).await?;
        let read =
            found(self.call(&Call { method: Method::Get, ..Call::of(&self.key(name)) }, Bytes::new()).await.map(drop));
        self.remove(name).await?;
        read
    }

    /// What to do about it, for people.
    pub fn advice(&self, failure: &Failure) -> String {
        let bucket = self.place.bucket.name();
        let code = failure.code().unwrap_or_default();
        let advice = match code {
            "NoSuchBucket" => {
                format!("make the bucket {bucket}, or name another one with --originals s3://BUCKET/PREFIX")
            }
            "SignatureDoesNotMatch" | "InvalidAccessKeyId" | "InvalidToken" | "ExpiredToken" => {
                format!("check {}", self.place.keys)
            }
            "AccessDenied" | "Forbidden" => format!(
                "let these keys do s3:PutObject, s3:GetObject, s3:DeleteObject, s3:AbortMultipartUpload and, of the bucket \
                 {bucket}, s3:ListBucketMultipartUploads; or check {}",
                self.place.keys
            ),
            "AuthorizationHeaderMalformed" | "AuthorizationQueryParametersError" | "PermanentRedirect" => {
                "check --s3-region (AWS_REGION) and --s3-endpoint (AWS_ENDPOINT_URL)".to_owned()
            }
            "RequestTimeTooSkewed" => "set this machine's clock".to_owned(),
            _ => format!("check --s3-endpoint, the bucket {bucket} and {}", self.place.keys),
        };
        format!("{}: {failure}; {advice}", self.place)
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.place.prefix)
    }

    async fn put(&self, name: &str, content: Bytes) -> Result<(), Failure> {
        let key = self.key(name);
        self.call(&Call { method: Method::Put, ..Call::of(&key) }, content).await.map(drop)
    }

    /// How long it is, if it is there.
    async fn length(&self, name: &str) -> Result<Option<u64>, Failure> {
        let key = self.key(name);
        match self.call(&Call { method: Method::Head, ..Call::of(&key) }, Bytes::new()).await {
            Ok(answer) => {
                let length = answer.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
                length.map(Some).ok_or_else(|| Failure::Strange("it has no length".to_owned()))
            }
            Err(failure) if failure.is_not_found() => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// The object, and the parts of one that has not come to its end. It may be gone, or never have been there.
    pub async fn remove(&self, name: &str) -> Result<(), Failure> {
        let key = self.key(name);
        let query = [("prefix", key.as_str()), ("uploads", "")];
        let listed = self.call(&Call { method: Method::Get, query: &query, ..Call::of("") }, Bytes::new()).await?;
        let begun: Uploads = instant_xml::from_str(listed.text()?).map_err(request::strange)?;
        for upload in begun.uploads.iter().filter(|upload| upload.key == key) {
            self.abort(name, &upload.upload_id).await?;
        }
        let removed = self.call(&Call { method: Method::Delete, ..Call::of(&key) }, Bytes::new()).await;
        found(removed.map(drop))
    }

    async fn abort(&self, name: &str, upload_id: &str) -> Result<(), Failure> {
        let key = self.key(name);
        let query = [("uploadId", upload_id)];
        let call = Call { method: Method::Delete, query: &query, ..Call::of(&key) };
        found(self.call(&call, Bytes::new()).await.map(drop))
    }

    /// All of an object, as it comes. Where it breaks off it goes on.
    pub fn read(self: &Arc<Store>, name: &str) -> stream::BoxStream<'static, io::Result<Bytes>> {
        let reading = Reading { store: self.clone(), key: self.key(name), offset: 0, body: None };
        stream::try_unfold(reading, |mut reading| async move {
            let piece = reading.next().await.map_err(io::Error::other)?;
            Ok(piece.map(|piece| (piece, reading)))
        })
        .boxed()
    }

    /// An object that is to be written.
    pub fn write(self: &Arc<Store>, name: String) -> Writing {
        Writing { store: self.clone(), name, upload_id: None, etags: Vec::new(), gathered: BytesMut::new(), bytes: 0 }
    }
}

/// What is to be removed and is not there is removed.
fn found(removed: Result<(), Failure>) -> Result<(), Failure> {
    removed.or_else(|failure| if failure.is_not_found() { Ok(()) } else { Err(failure) })
}

/// An object on its way here.
struct Reading {
    store: Arc<Store>,
    key: String,
    /// So much of it has come.
    offset: u64,
    body: Option<Incoming>,
}

impl Reading {
    async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        // From the first failure on: until then it may have waited for long.
        let mut tries = None;
        loop {
            let failure = match self.frame().await {
                Ok(Some(piece)) if piece.is_empty() => continue,
                Ok(piece) => {
                    self.offset += piece.as_ref().map_or(0, |piece| piece.len() as u64);
                    return Ok(piece);
                }
                Err(failure) => failure,
            };
            self.body = None;
            tries.get_or_insert_with(Tries::begin).again(failure).await?;
        }
    }

    async fn frame(&mut self) -> Result<Option<Bytes>, Failure> {
        let body = match &mut self.body {
            Some(body) => body,
            none => none.insert(self.store.open(&self.key, self.offset).await?),
        };
        match timeout(SILENCE, body.frame()).await {
            Ok(None) => Ok(None),
            // Trailers are nothing of it.
            Ok(Some(Ok(frame))) => Ok(Some(frame.into_data().unwrap_or_default())),
            Ok(Some(Err(error))) => Err(request::broken(&error)),
            Err(_) => Err(Failure::Unreachable(format!("nothing came for {} s", SILENCE.as_secs()))),
        }
    }
}

/// An object on its way to the store: a small one at once, a longer one in parts, each of which is in memory until the store
/// has it.
pub struct Writing {
    store: Arc<Store>,
    name: String,
    upload_id: Option<String>,
    /// Of its parts.
    etags: Vec<String>,
    gathered: BytesMut,
    bytes: u64,
}

impl Writing {
    pub async fn write(&mut self, piece: &[u8]) -> Result<(), Failure> {
        self.bytes += piece.len() as u64;
        if self.gathered.is_empty() {
            self.gathered.reserve(PART_BYTES + piece.len());
        }
        self.gathered.extend_from_slice(piece);
        while self.gathered.len() > PART_BYTES {
            let part = self.gathered.split_to(PART_BYTES).freeze();
            self.add_part(part).await?;
        }
        Ok(())
    }

    async fn add_part(&mut self, part: Bytes) -> Result<(), Failure> {
        let key = self.store.key(&self.name);
        let upload_id = match &self.upload_id {
            Some(upload_id) => upload_id.clone(),
            None => {
                let query = [("uploads", "")];
                let call = Call { method: Method::Post, query: &query, ..Call::of(&key) };
                let begun = self.store.call(&call, Bytes::new()).await?;
                let begun = CreateMultipartUpload::parse_response(begun.text()?).map_err(request::strange)?;
                self.upload_id.insert(begun.upload_id().to_owned()).clone()
            }
        };
        let number = (self.etags.len() + 1).to_string();
        let query = [("partNumber", number.as_str()), ("uploadId", upload_id.as_str())];
        let answer = self.store.call(&Call { method: Method::Put, query: &query, ..Call::of(&key) }, part).await?;
        let etag = answer.headers.get(ETAG).and_then(|etag| etag.to_str().ok());
        self.etags.push(etag.ok_or_else(|| Failure::Strange("a part has no ETag".to_owned()))?.to_owned());
        Ok(())
    }

    /// It is there from now on, whole, or it is not.
    pub async fn finish(mut self) -> Result<(), Failure> {
        let last = mem::take(&mut self.gathered).freeze();
        if self.upload_id.is_none() {
            return self.store.put(&self.name, last).await;
        }
        self.add_part(last).await?;
        let key = self.store.key(&self.name);
        let upload_id = self.upload_id.as_deref().unwrap_or_default();
        let etags = self.etags.iter().map(String::as_str);
        let body = CompleteMultipartUpload::new(&self.store.place.bucket, None, &key, upload_id, etags).body();
        let query = [("uploadId", upload_id)];
        let call = Call { method: Method::Post, query: &query, ..Call::of(&key) };
        match self.store.call(&call, body.into()).await {
            Ok(answer) => CompleteMultipartUploadResponse::parse(answer.text()?).map(drop).map_err(request::strange),
            Err(failure) if failure.is_not_found() => match self.store.length(&self.name).await? {
                // It was completed before, and the answer was lost.
                Some(length) if length == self.bytes => Ok(()),
                _ => Err(failure),
            },
            Err(failure) => Err(failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(address: &str, endpoint: Option<&str>, region: Option<&str>) -> Result<String, String> {
        let keys = Keys::InFile("/nowhere".into());
        Place::parse(address, endpoint, region, keys).map(|place| place.bucket.object_url(&place.prefix).to_string())
    }

    #[test]
    fn a_place_is_amazons_or_ones_own() {
        let frankfurt = Some("eu-central-1");
        for (address, endpoint, region, url) in [
            ("s3://farm", None, frankfurt, "https://farm.s3.eu-central-1.amazonaws.com/"),
            ("s3://farm/", None, frankfurt, "https://farm.s3.eu-central-1.amazonaws.com/"),
            ("s3://farm/a/b/", None, frankfurt, "https://farm.s3.eu-central-1.amazonaws.com/a/b/"),
            ("s3://a.farm/x", None, frankfurt, "https://s3.eu-central-1.amazonaws.com/a.farm/x/"),
            ("s3://farm/x", Some("http://[::1]:9000"), None, "http://[::1]:9000/farm/x/"),
            ("s3://farm/x", Some("https://s.example.org/s3"), None, "https://s.example.org/s3/farm/x/"),
        ] {
            assert_eq!(place(address, endpoint, region).as_deref(), Ok(url));
        }
    }

    #[test]
    fn what_is_wrong_with_a_place_is_told() {
        let here = Some("http://127.0.0.1:9000");
        for (address, endpoint, said) in [
            ("s3://", here, "BUCKET"),
            ("s3:///x", here, "BUCKET"),
            ("s3://a?b", here, "BUCKET"),
            ("s3://farm/../other", here, "prefix"),
            ("s3://farm/a//b", here, "prefix"),
            ("s3://farm/a b", here, "prefix"),
            ("s3://farm", None, "s3_region"),
            ("s3://farm", Some("here"), "s3_endpoint"),
            ("s3://farm", Some("ftp://here"), "s3_endpoint"),
        ] {
            let wrong = place(address, endpoint, None).expect_err(address);
            assert!(wrong.contains(said), "{address}: {wrong}");
        }
    }

    #[test]
    fn only_what_leaves_this_machine_is_overheard() {
        for (endpoint, overheard) in [
            ("http://127.0.0.1:9000", false),
            ("http://[::1]:9000", false),
            ("http://localhost", false),
            ("https://store.example.org", false),
            ("http://store.example.org", true),
        ] {
            let place = Place::parse("s3://farm", Some(endpoint), None, Keys::InFile("/nowhere".into()));
            assert_eq!(place.map(|place| place.is_overheard()), Ok(overheard), "{endpoint}");
        }
    }

    #[test]
    fn uploads_that_were_begun_are_read() {
        let listed = "<?xml version='1.0' encoding='UTF-8'?>\n<ListMultipartUploadsResult \
            xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Bucket>b</Bucket><KeyMarker></KeyMarker><Prefix>p/3</Prefix>\
            <MaxUploads>1000</MaxUploads><IsTruncated>false</IsTruncated><Upload><Key>p/3</Key><UploadId>a&amp;b</UploadId>\
            <Initiator><ID>x</ID></Initiator><StorageClass>STANDARD</StorageClass></Upload><Upload><Key>p/31</Key>\
            <UploadId>c</UploadId></Upload></ListMultipartUploadsResult>";
        let read: Uploads = instant_xml::from_str(listed).expect("good");
        let read: Vec<_> = read.uploads.iter().map(|one| (one.key.as_str(), one.upload_id.as_str())).collect();
        assert_eq!(read, [("p/3", "a&b"), ("p/31", "c")]);
    }
}
