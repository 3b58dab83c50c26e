//! What `pcfarm files` takes.

use std::path::PathBuf;

use clap::Subcommand;
use pcfarm_proto::files::FileHash;

#[derive(Debug, Subcommand)]
pub enum FilesVerb {
    /// Put files there, each known by the SHA-256 of its content from then on
    Put {
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
    },
    /// Get one back
    Get {
        #[arg(value_name = "SHA-256")]
        hash: FileHash,
        /// Where to [default: standard output]
        #[arg(long, value_name = "FILE")]
        to: Option<PathBuf>,
    },
    /// Those that you have put there, the newest first; an operator's list has everybody's
    List,
    /// One that you do not need any more. The content goes when nobody has it and no job type needs it
    #[command(visible_alias = "delete")]
    Remove {
        #[arg(value_name = "SHA-256")]
        hash: FileHash,
    },
}
