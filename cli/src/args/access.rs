//! What logs people in, and lets workstations in.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Args)]
pub struct LoginArgs {
    /// Your name [default: that of this machine's account]
    #[arg(value_name = "USER", env = "USER")]
    pub user: String,
    /// Read the password from this file (- is standard input), and not from the terminal
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    pub password_file: Option<PathBuf>,
    /// Keep a token that you have: read from standard input
    #[arg(long)]
    pub token: bool,
    /// What the new token is called in lists [default: login and this machine's name]
    #[arg(long, value_name = "NAME", conflicts_with = "token")]
    pub name: Option<String>,
    /// How long the new token holds: 12h, 30d [default: 30d]
    #[arg(long, value_name = "TIME", value_parser = crate::settings::lifetime, conflicts_with = "token")]
    pub expires: Option<Duration>,
    /// Make an account of your own first, where the server lets people do that
    #[arg(long, conflicts_with_all = ["token", "name", "expires"])]
    pub register: bool,
}

/// What an account is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Its own jobs
    User,
    /// Everybody's jobs, and workstations
    Operator,
    /// Users and settings, too
    Administrator,
}

#[derive(Debug, Args)]
pub struct CreateUserArgs {
    pub user: String,
    #[arg(long, value_enum, default_value = "user")]
    pub role: Role,
    /// Read the password from this file (- is standard input), and not from the terminal
    #[arg(long, value_name = "FILE", conflicts_with = "no_password")]
    pub password_file: Option<PathBuf>,
    /// It gets in with tokens alone: `pcfarm tokens create --user USER`
    #[arg(long)]
    pub no_password: bool,
}

#[derive(Debug, Args)]
pub struct PasswordArgs {
    /// Whose, of administrators [default: your own]
    pub user: Option<String>,
    /// Read it from this file (- is standard input): of your own first the old one, then, on a line of its own, the new one
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum TokensVerb {
    /// Make one, and print it, once
    Create(CreateTokenArgs),
    /// Yours, or, of administrators, all
    List {
        /// Of this user
        #[arg(long, value_name = "USER")]
        user: Option<String>,
        /// Revoked and expired ones, too
        #[arg(long, short)]
        all: bool,
    },
    /// It holds no longer, on any server
    Revoke { id: i64 },
}

#[derive(Debug, Args)]
pub struct CreateTokenArgs {
    /// By which to know it again
    pub name: String,
    /// Whose, of administrators [default: your own]
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// What it may do: submit, operate, administer, work; several by commas [default: what the user may]
    #[arg(long, value_name = "SCOPE", value_delimiter = ',')]
    pub scope: Vec<String>,
    /// How long it holds: 12h, 90d [default: until it is revoked]
    #[arg(long, value_name = "TIME", value_parser = crate::settings::lifetime)]
    pub expires: Option<Duration>,
}

#[derive(Debug, Subcommand)]
pub enum JoinTokenVerb {
    /// Make one, and print the command by which a workstation joins
    Create {
        /// How many workstations it lets in
        #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        uses: u32,
        /// How long it holds: 30m, 1d [default: 1h]
        #[arg(long, value_name = "TIME", value_parser = crate::settings::lifetime)]
        expires: Option<Duration>,
    },
    /// Those that were made, without their secrets
    List,
    /// It lets nobody in any more
    Revoke { id: i64 },
}

#[derive(Debug, Subcommand)]
pub enum CredentialsVerb {
    /// By host name
    List,
    /// Cut a workstation off, at once and for good
    Revoke {
        /// Its identity, a UUID, or its host name
        workstation: String,
    },
}
