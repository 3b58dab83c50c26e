//! Who calls in a test: tokens that are known to the database, and calls of any method, by its path and without its types.

use bytes::{Buf, BufMut, Bytes};
use pcfarm_bench::farm::Farm;
use pcfarm_proto::secrets::Token;
use sha2::{Digest, Sha256};
use std::time::Duration;
use tokio_stream::StreamExt;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

/// A stream that says nothing is one that was let in.
const WORD: Duration = Duration::from_secs(2);

/// Shows a token, or nothing.
#[derive(Clone)]
pub struct Shown(Option<MetadataValue<Ascii>>);

impl Interceptor for Shown {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            request.metadata_mut().insert("authorization", value.clone());
        }
        Ok(request)
    }
}

pub type Connection = InterceptedService<Channel, Shown>;

pub fn shown(channel: Channel, token: Option<&str>) -> Connection {
    let value = token.map(|token| format!("Bearer {token}").parse().expect("ASCII"));
    InterceptedService::new(channel, Shown(value))
}

pub async fn connect(url: &str, token: Option<&str>) -> Connection {
    let endpoint = Endpoint::from_shared(url.to_owned()).expect("an address");
    shown(endpoint.connect().await.expect("it serves"), token)
}

/// An account, made without a server, and a token of it.
pub async fn account(farm: &Farm, user: &str, role: &str, scopes: &[&str]) -> String {
    let token = Token(rand::random());
    let hash: &[u8] = &Sha256::digest(token.0);
    let text = "with u as (insert into pcfarm.farm_user (name) values ($1::text::name) on conflict do nothing),
        a as (insert into pcfarm.account (user_name, role) values ($1::text::name, $2) on conflict do nothing)
        select 1";
    farm.query(text, &[&user, &role]).await;
    let text = "with t as (insert into pcfarm.api_token (user_name, name, hash, scopes)
        values ($1::text::name, 'test', $2, $3) returning token_id)
        select token_id from t";
    farm.query(text, &[&user, &hash, &scopes]).await;
    token.reveal()
}

/// Bytes as they are.
#[derive(Clone, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let length = buffer.remaining();
        Ok(Some(buffer.copy_to_bytes(length)))
    }
}

/// What becomes of a call of this method with an empty message.
pub async fn call_empty(connection: &Connection, path: &'static str) -> Code {
    let mut client = tonic::client::Grpc::new(connection.clone());
    client.ready().await.expect("connected");
    let request = Request::new(tokio_stream::once(Bytes::new()));
    let called = client.streaming(request, PathAndQuery::from_static(path), Raw);
    match tokio::time::timeout(WORD, called).await {
        Err(_) => Code::Ok,
        Ok(Err(status)) => status.code(),
        Ok(Ok(response)) => {
            let mut messages = response.into_inner();
            match tokio::time::timeout(WORD, messages.next()).await {
                Ok(Some(Err(status))) => status.code(),
                Ok(Some(Ok(_)) | None) | Err(_) => Code::Ok,
            }
        }
    }
}

/// How a stream ends that was let in and has nothing to say.
pub async fn end_of_stream(connection: &Connection, path: &'static str) -> Result<(), Status> {
    let mut client = tonic::client::Grpc::new(connection.clone());
    client.ready().await.expect("connected");
    let request = Request::new(tokio_stream::pending::<Bytes>());
    let mut messages = client.streaming(request, PathAndQuery::from_static(path), Raw).await?.into_inner();
    while let Some(message) = messages.next().await {
        message?;
    }
    Ok(())
}
