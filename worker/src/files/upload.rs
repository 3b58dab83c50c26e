//! One file on its way to the farm, to whichever server answers. What breaks off is begun again.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use pcfarm_faults::{CrashPoint, crash_point};
use pcfarm_proto::files::{FILE_BYTES_LIMIT, FILE_PIECE_BYTES, FileHash};
use pcfarm_proto::ids::ProblemId;
use pcfarm_proto::v1::agent_service_client::AgentServiceClient;
use pcfarm_proto::v1::put_output_request::Part;
use pcfarm_proto::v1::{HeldCheckout, Output, PutOutputRequest};
use rand::seq::SliceRandom;
use sha2::{Digest, Sha256};
use tokio::sync::{Mutex, mpsc};
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use tonic::{Code, Status};
use tracing::{debug, info};

use super::{Farm, STEP, unwanted};
use crate::link::wire;
use crate::work::CheckoutKey;

/// A server that does not connect, or does not answer for so long, is left for another.
const WAIT: Duration = Duration::from_secs(10);

/// Slower lines than this are given up and tried again, so that a server that has frozen does not hold a core for ever. An eighth
/// of 64 kbit/s, which results and slots share: servers give up below it, too.
const LEAST_BYTES_PER_SECOND: u64 = 1 << 10;

/// A server pings a connection that is idle more often. One that has frozen must not keep other files waiting.
const SILENCE_LIMIT: Duration = Duration::from_secs(60);

/// Content of one message. The server measures the rate by whole messages in spans of 60 s, of which this is a fraction.
const MESSAGE_CONTENT_BYTES: usize = 16 << 10;

/// One upload at a time in this process. Several that share a slow link come below the least rate, and are all begun again.
static SENDING: Mutex<()> = Mutex::const_new(());

/// Pieces of a file between the disk and the network.
const PIECES_WAITING: usize = 2;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Why the farm has not taken a file that a problem has made.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    #[error("cancelled")]
    Cancelled,
    #[error("file {0}: the farm does not take it: {1}")]
    Refused(String, String),
    #[error("file {name} has {} MiB; the farm takes at most {} MiB", bytes >> 20, FILE_BYTES_LIMIT >> 20)]
    TooLarge { name: String, bytes: u64 },
    #[error("file {0} cannot be read: {1}")]
    Disk(String, #[source] io::Error),
}

/// Where a file belongs.
#[derive(Clone, Debug)]
pub struct Made {
    pub of: CheckoutKey,
    pub problem: ProblemId,
    pub name: String,
}

/// What the farm has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uploaded {
    pub hash: FileHash,
    pub bytes: u64,
}

/// Sends a file whose content nobody changes any more, unless the farm has it. Not for threads of the runtime: it waits, for as long
/// as it is wanted, for servers that are away.
pub fn upload(farm: &Farm, made: &Made, mut file: File, cancelled: &dyn Fn() -> bool) -> Result<Uploaded, UploadError> {
    let disk = |error| UploadError::Disk(made.name.clone(), error);
    let uploaded = hashed(&mut file, cancelled).map_err(disk)?.ok_or(UploadError::Cancelled)?;
    if uploaded.bytes > FILE_BYTES_LIMIT {
        return Err(UploadError::TooLarge { name: made.name.clone(), bytes: uploaded.bytes });
    }
    let output = Output {
        checkout: Some(HeldCheckout { checkout_id: made.of.checkout_id.0, token: made.of.token }),
        problem_id: made.problem.0,
        name: made.name.clone(),
        sha256: uploaded.hash.0.to_vec().into(),
        bytes: uploaded.bytes,
    };
    farm.runtime.block_on(async {
        tokio::select! {
            biased;
            () = unwanted(cancelled) => Err(UploadError::Cancelled),
            done = until_taken(farm, &output, &file) => done,
        }
    })?;
    crash_point(CrashPoint::OutputSent);
    info!(file = %uploaded.hash, name = made.name, bytes = uploaded.bytes, "a file was sent");
    Ok(uploaded)
}

/// Nothing if it is not wanted any more.
fn hashed(file: &mut File, cancelled: &dyn Fn() -> bool) -> io::Result<Option<Uploaded>> {
    let (mut digest, mut bytes, mut piece) = (Sha256::new(), 0, vec![0; FILE_PIECE_BYTES]);
    file.rewind()?;
    loop {
        let came = file.read(&mut piece)?;
        if came == 0 {
            return Ok(Some(Uploaded { hash: FileHash(digest.finalize().into()), bytes }));
        }
        if cancelled() {
            return Ok(None);
        }
        digest.update(&piece[..came]);
        bytes += came as u64;
    }
}

async fn until_taken(farm: &Farm, output: &Output, file: &File) -> Result<(), UploadError> {
    let mut servers = farm.endpoints.clone();
    servers.shuffle(&mut rand::rng());
    let mut pause = FIRST_PAUSE;
    for server in servers.iter().cycle() {
        match offer(farm, server, output, file).await {
            Ok(()) => return Ok(()),
            Err(Stopped::ForGood(error)) => return Err(error),
            Err(Stopped::Here(error)) => {
                debug!(name = output.name, server = %server.uri(), error = format!("{error:#}"), "sending a file broke off");
            }
        }
        sleep(pause.max(STEP)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    unreachable!("settings name at least one server")
}

/// Why a server did not take all of it.
enum Stopped {
    /// Another may, or the same one later.
    Here(anyhow::Error),
    ForGood(UploadError),
}

async fn offer(farm: &Farm, server: &Endpoint, output: &Output, file: &File) -> Result<(), Stopped> {
    let stopped = |status: Status| match status.code() {
        Code::NotFound
        | Code::InvalidArgument
        | Code::FailedPrecondition
        | Code::PermissionDenied
        | Code::Unimplemented => {
            Stopped::ForGood(UploadError::Refused(output.name.clone(), status.message().to_owned()))
        }
        _ => Stopped::Here(status.into()),
    };
    let endpoint = farm.credentials.tune(server.clone()).map_err(Stopped::Here)?;
    let _turn = SENDING.lock().await;
    let connected = timeout(WAIT, wire::connect(&endpoint, WAIT)).await;
    let connected = connected.context("not connected in time").map_err(Stopped::Here)?;
    let (channel, wire) = connected.map_err(|error| Stopped::Here(error.into()))?;
    let mut client = AgentServiceClient::new(channel);
    let offered = timeout(WAIT, client.offer_output(output.clone())).await;
    let offered = offered.context("no answer in time").map_err(Stopped::Here)?.map_err(stopped)?;
    if !offered.into_inner().wanted {
        return Ok(());
    }
    let file = file.try_clone().map_err(|error| Stopped::ForGood(UploadError::Disk(output.name.clone(), error)))?;
    let patience = WAIT + Duration::from_secs(output.bytes / LEAST_BYTES_PER_SECOND);
    let put = tokio::select! {
        put = timeout(patience, client.put_output(messages(output.clone(), file))) => put.context("not taken in time"),
        () = wire.silent_for(SILENCE_LIMIT) => Err(anyhow::anyhow!("no byte has moved for {} s", SILENCE_LIMIT.as_secs())),
    };
    put.map_err(Stopped::Here)?.map_err(stopped)?;
    Ok(())
}

/// What it is, and then its content. What cannot be read any more ends the stream, and is refused as other content.
fn messages(output: Output, file: File) -> ReceiverStream<PutOutputRequest> {
    let (sender, receiver) = mpsc::channel(PIECES_WAITING);
    // Ends with the file, or when nobody takes what it has read.
    tokio::task::spawn_blocking(move || {
        let send = |part| sender.blocking_send(PutOutputRequest { part: Some(part) }).is_ok();
        let (mut at, mut goes_on) = (0, send(Part::Output(output)));
        while goes_on {
            let mut piece = vec![0; MESSAGE_CONTENT_BYTES];
            let came = file.read_at(&mut piece, at).unwrap_or(0);
            piece.truncate(came);
            at += came as u64;
            goes_on = came > 0 && send(Part::Content(Bytes::from(piece)));
        }
    });
    ReceiverStream::new(receiver)
}
