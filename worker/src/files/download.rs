//! One file on its way from the farm, from whichever server answers: what one has begun another goes on with.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use pcfarm_proto::MESSAGE_BYTES_LIMIT;
use pcfarm_proto::files::FileHash;
use pcfarm_proto::v1::agent_service_client::AgentServiceClient;
use pcfarm_proto::v1::{FetchRequest, HeldCheckout};
use rand::seq::SliceRandom;
use sha2::{Digest, Sha256};
use tokio::time::{sleep, timeout};
use tonic::Code;
use tonic::transport::Endpoint;
use tracing::debug;

use super::{Farm, FileError};
use crate::link::wire;
use crate::work::CheckoutKey;

/// A server that does not connect, or does not go on for so long, is left for another.
const WAIT: Duration = Duration::from_secs(10);

/// A piece of a mebibyte at a quarter of 64 kbit/s.
const PIECE_WAIT: Duration = Duration::from_secs(520);

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Other content than the hash says was damaged on its way, once.
const WRONG_CONTENTS: u32 = 2;

pub struct Download {
    hash: FileHash,
    of: CheckoutKey,
    to: File,
    digest: Sha256,
    bytes: u64,
    total: Option<u64>,
}

/// Why a server did not send all of it.
enum Stopped {
    /// Another may, or the same one later.
    Here(anyhow::Error),
    ForGood(FileError),
}

impl Download {
    pub fn new(hash: FileHash, of: CheckoutKey, part: &Path) -> io::Result<Download> {
        Ok(Download { hash, of, to: File::create(part)?, digest: Sha256::new(), bytes: 0, total: None })
    }

    /// Fetches until all is here and is what it should be. `make_room` is asked once, as soon as the size is known.
    pub async fn run(
        &mut self,
        farm: &Farm,
        make_room: &dyn Fn(u64) -> Result<(), FileError>,
    ) -> Result<(), FileError> {
        let mut servers = farm.endpoints.clone();
        servers.shuffle(&mut rand::rng());
        let (mut pause, mut wrong) = (FIRST_PAUSE, 0);
        for server in servers.iter().cycle() {
            let before = self.bytes;
            match self.fetch(farm, server, make_room).await {
                Ok(()) if FileHash(self.digest.clone().finalize().into()) == self.hash => return Ok(()),
                Ok(()) => {
                    wrong += 1;
                    if wrong == WRONG_CONTENTS {
                        return Err(FileError::OtherContent(self.hash));
                    }
                    self.begin_again().map_err(|error| FileError::Disk(self.hash, error))?;
                }
                Err(Stopped::ForGood(error)) => return Err(error),
                Err(Stopped::Here(error)) => {
                    debug!(file = %self.hash, server = %server.uri(), error = format!("{error:#}"), "a fetch broke off");
                }
            }
            if self.bytes > before {
                pause = FIRST_PAUSE;
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        unreachable!("settings name at least one server")
    }

    fn begin_again(&mut self) -> io::Result<()> {
        self.to.set_len(0)?;
        io::Seek::rewind(&mut self.to)?;
        (self.digest, self.bytes) = (Sha256::new(), 0);
        Ok(())
    }

    async fn fetch(
        &mut self,
        farm: &Farm,
        server: &Endpoint,
        make_room: &dyn Fn(u64) -> Result<(), FileError>,
    ) -> Result<(), Stopped> {
        let endpoint = farm.credentials.tune(server.clone()).map_err(Stopped::Here)?;
        let connected = timeout(WAIT, wire::connect(&endpoint, WAIT)).await.context("not connected in time");
        let (channel, wire) = connected.map_err(Stopped::Here)?.map_err(|error| Stopped::Here(error.into()))?;
        let mut client = AgentServiceClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_LIMIT);
        let request = FetchRequest {
            sha256: self.hash.0.to_vec().into(),
            offset: self.bytes,
            checkout: Some(HeldCheckout { checkout_id: self.of.checkout_id.0, token: self.of.token }),
        };
        let asked = timeout(WAIT, client.fetch(request)).await.context("no answer in time").map_err(Stopped::Here)?;
        let mut pieces = asked.map_err(|status| self.stopped(status))?.into_inner();
        loop {
            // A slow link carries a piece for minutes: its bytes show that the server goes on.
            let piece = tokio::select! {
                piece = timeout(PIECE_WAIT, pieces.message()) => piece.context("a piece came too slowly"),
                () = wire.silent_for(WAIT) => Err(anyhow::anyhow!("nothing came for long")),
            };
            let piece = piece.map_err(Stopped::Here)?;
            let Some(piece) = piece.map_err(|status| self.stopped(status))? else { break };
            if self.total.is_none() {
                make_room(piece.total_bytes).map_err(Stopped::ForGood)?;
                self.total = Some(piece.total_bytes);
            }
            let came = piece.content.len() as u64;
            if self.total.is_none_or(|total| total != piece.total_bytes || self.bytes + came > total) {
                return Err(Stopped::ForGood(FileError::OtherContent(self.hash)));
            }
            let written = self.to.write_all(&piece.content);
            written.map_err(|error| Stopped::ForGood(FileError::Disk(self.hash, error)))?;
            self.digest.update(&piece.content);
            self.bytes += came;
        }
        if self.total == Some(self.bytes) {
            return Ok(());
        }
        Err(Stopped::Here(anyhow::anyhow!("it ended after {} bytes", self.bytes)))
    }

    fn stopped(&self, status: tonic::Status) -> Stopped {
        match status.code() {
            Code::NotFound | Code::InvalidArgument | Code::PermissionDenied | Code::Unimplemented => {
                Stopped::ForGood(FileError::Refused(self.hash, status.message().to_owned()))
            }
            _ => Stopped::Here(status.into()),
        }
    }

    /// It is on the disk, whatever loses its power. Returns its size.
    pub fn finish(self) -> io::Result<u64> {
        self.to.sync_all()?;
        Ok(self.bytes)
    }
}
