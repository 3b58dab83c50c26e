//! A request as slow as one likes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::http::Client;

/// For anything that takes a moment, on a machine that is busy with other tests. Longer than a body may be silent.
const PATIENCE: Duration = Duration::from_secs(90);

/// A request that is written by hand, as slowly as one likes.
pub struct Line(TcpStream);

impl Line {
    /// With its header, and the beginning of a body of so many bytes.
    pub async fn begin(client: &Client, request: &str, length: usize, beginning: &str) -> Result<Line> {
        let address = client.base.strip_prefix("http://").context("an address")?;
        let mut socket = TcpStream::connect(address).await?;
        let token = client.token.as_ref();
        let who = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
        let header = format!(
            "{request} HTTP/1.1\r\nHost: {address}\r\n{who}Content-Type: text/csv\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n{beginning}"
        );
        socket.write_all(header.as_bytes()).await?;
        Ok(Line(socket))
    }

    pub async fn send(&mut self, text: &str) -> Result<()> {
        Ok(self.0.write_all(text.as_bytes()).await?)
    }

    /// What comes until this is in it.
    pub async fn until(&mut self, wanted: &str) -> Result<String> {
        let mut seen = Vec::new();
        let reading = async {
            while !String::from_utf8_lossy(&seen).contains(wanted) {
                ensure!(self.0.read_buf(&mut seen).await? > 0, "it ended");
            }
            Ok(())
        };
        let outcome = timeout(PATIENCE, reading).await.context("nothing came").flatten();
        outcome.with_context(|| format!("{wanted} did not come, but {}", String::from_utf8_lossy(&seen)))?;
        Ok(String::from_utf8_lossy(&seen).into_owned())
    }

    /// All that comes until the other side ends it.
    pub async fn rest(mut self) -> Result<String> {
        let mut seen = Vec::new();
        // It may be cut.
        drop(timeout(PATIENCE, self.0.read_to_end(&mut seen)).await.context("it goes on")?);
        Ok(String::from_utf8_lossy(&seen).into_owned())
    }
}
