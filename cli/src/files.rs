//! Files by the SHA-256 of their content, such as modules of job types: put, got, listed, let go of.

use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, Result};
use pcfarm_proto::files::FileHash;
use pcfarm_proto::v1::put_file::{Beginning, Part};
use pcfarm_proto::v1::{File, GetFile, ListFiles, PutFile, RemoveFile};
use serde::Serialize;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;

use crate::args::files::FilesVerb;
use crate::exit::{self, Failure};
use crate::farm::Farm;
use crate::output::{self, Column, Output};
use crate::results::Sink;
use crate::text::{self, cut, plain};

/// Pieces of a file between the disk and the network.
const PIECES_WAITING: usize = 2;

/// Content of one message. The server measures the rate by whole messages in spans of 30 s, of which this is a fraction at 64 kbit/s.
const MESSAGE_CONTENT_BYTES: usize = 32 << 10;

/// Longest name that the farm keeps, in characters: the end of a path says more than its beginning.
const NAME_LIMIT: usize = 255;

pub async fn run(farm: &Farm, verb: FilesVerb, output: Output) -> Result<()> {
    match verb {
        FilesVerb::Put { files } => {
            let mut put = Vec::new();
            for file in &files {
                put.push(upload(farm, file).await?);
            }
            output.print(|| FilesJson { files: put.iter().map(json).collect() }, || names(&put))
        }
        FilesVerb::Get { hash, to } => download(farm, hash, to.as_deref()).await,
        FilesVerb::List => {
            let found = list(farm).await?;
            output.print(|| FilesJson { files: found.iter().map(json).collect() }, || table(&found))
        }
        FilesVerb::Remove { hash } => {
            let request = RemoveFile { sha256: hash.0.to_vec().into() };
            let call = async { farm.files().remove(farm.request(request)).await };
            let removed = farm.call("removing a file", call).await?;
            output.print(|| json(&removed), || format!("{} is yours no more", plain(&removed.name)))
        }
    }
}

/// Puts a file there, unless it is there already: all the same, it is the caller's then.
pub async fn upload(farm: &Farm, path: &Path) -> Result<File> {
    let doing = format!("putting {}", path.display());
    let (pieces, receiver) = mpsc::channel(PIECES_WAITING);
    let opened = std::fs::File::open(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
    let name = path.display().to_string();
    let name = name.chars().skip(name.chars().count().saturating_sub(NAME_LIMIT)).collect();
    let mut reading = JoinSet::new();
    // Ends with the file, or when nobody takes what it has read; what goes wrong is its outcome.
    reading.spawn_blocking(move || -> io::Result<FileHash> {
        let beginning = Part::Beginning(Beginning { name, ..Beginning::default() });
        let send = |part| pieces.blocking_send(PutFile { part: Some(part) }).is_ok();
        let (mut file, mut digest, mut goes_on) = (opened, Sha256::new(), send(beginning));
        while goes_on {
            let mut piece = Vec::with_capacity(MESSAGE_CONTENT_BYTES);
            (&mut file).take(MESSAGE_CONTENT_BYTES as u64).read_to_end(&mut piece)?;
            digest.update(&piece);
            goes_on = !piece.is_empty() && send(Part::Content(piece.into()));
        }
        Ok(FileHash(digest.finalize().into()))
    });
    let mut client = farm.files();
    let sent = farm.unhurried(&doing, async {
        client.put(ReceiverStream::new(receiver)).await.map_err(|status| farm.refused(&doing, &status))
    });
    let put = sent.await;
    let read = reading.join_next().await.expect("there is one").context("reading a file")?;
    let hash = read.with_context(|| format!("reading {}", path.display()))?;
    let put = put?.into_inner();
    if put.sha256 != hash.0[..] {
        return Err(Failure::of(
            exit::Exit::Failed,
            format!("{doing}: the farm has stored something else; put it again"),
        ));
    }
    Ok(put)
}

/// To a file, which is there whole or not at all, or to standard output.
pub async fn download(farm: &Farm, hash: FileHash, to: Option<&Path>) -> Result<()> {
    let doing = format!("getting file {hash}");
    let mut sink = Sink::create(to)?;
    farm.unhurried(&doing, async {
        let request = tonic::Request::new(GetFile { sha256: hash.0.to_vec().into() });
        let refused = |status: tonic::Status| farm.refused(&doing, &status);
        let mut pieces = farm.files().get(request).await.map_err(refused)?.into_inner();
        let mut digest = Sha256::new();
        while let Some(piece) = pieces.message().await.map_err(refused)? {
            digest.update(&piece.content);
            exit::written(sink.writer().write_all(&piece.content))?;
        }
        if FileHash(digest.finalize().into()) == hash {
            return Ok(());
        }
        Err(Failure::of(exit::Exit::Failed, format!("{doing}: it was damaged on its way: try again")))
    })
    .await?;
    sink.finish()
}

async fn list(farm: &Farm) -> Result<Vec<File>> {
    let mut all: Vec<File> = Vec::new();
    loop {
        let before = all.last().map_or(0, |last| last.id);
        let call = async { farm.files().list(farm.request(ListFiles { before, limit: 0 })).await };
        let page = farm.call("listing files", call).await?.files;
        if page.is_empty() {
            return Ok(all);
        }
        all.extend(page);
    }
}

pub fn hash(file: &File) -> String {
    FileHash::try_from(&file.sha256[..]).map_or_else(|_| String::new(), |hash| hash.to_string())
}

/// As `sha256sum` writes them.
fn names(files: &[File]) -> String {
    let lines: Vec<String> = files.iter().map(|file| format!("{}  {}", hash(file), plain(&file.name))).collect();
    lines.join("\n")
}

fn table(files: &[File]) -> String {
    let columns = [Column::Text("SHA-256"), Column::Number("KIB"), Column::Text("NAME"), Column::Text("MODULE OF")];
    let rows = files.iter().map(|file| {
        let kib = i64::try_from(file.bytes.div_ceil(1024)).unwrap_or(i64::MAX);
        vec![hash(file), text::number(kib), end_of(&file.name), cut(&file.job_types.join(", "), 12)]
    });
    output::table(&columns, rows.collect(), "no files: `pcfarm files put FILE` puts one there")
}

/// What a path ends with.
fn end_of(name: &str) -> String {
    cut(&plain(name.rsplit('/').next().unwrap_or(name)), 14)
}

#[derive(Serialize)]
struct FilesJson<'a> {
    files: Vec<FileJson<'a>>,
}

#[derive(Serialize)]
struct FileJson<'a> {
    sha256: String,
    bytes: u64,
    name: &'a str,
    owner: &'a str,
    put_at: Option<String>,
    job_types: &'a [String],
}

fn json(file: &File) -> FileJson<'_> {
    FileJson {
        sha256: hash(file),
        bytes: file.bytes,
        name: &file.name,
        owner: &file.owner,
        put_at: text::rfc3339(file.put_at.as_ref()),
        job_types: &file.job_types,
    }
}
