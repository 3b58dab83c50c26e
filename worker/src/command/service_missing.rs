//! The same commands in an agent that was built without the feature `service`: each says so.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;

use super::{Output, WRONG_USAGE};
use crate::missing::SERVICE;
use crate::settings::Asked;

/// Any arguments, so that the answer names the missing feature and not an unknown argument.
#[derive(Clone, Debug, Default, Args)]
pub struct Wishes {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    any: Vec<OsString>,
}

pub fn install(Wishes { any: _ }: &Wishes) -> ExitCode {
    refuse()
}

pub fn uninstall(_purge: bool, _root: Option<&Path>) -> ExitCode {
    refuse()
}

pub fn status(_: &Asked, _: Output) -> ExitCode {
    refuse()
}

pub fn doctor(_: &Asked, _: Output) -> ExitCode {
    refuse()
}

fn refuse() -> ExitCode {
    eprintln!("{SERVICE}");
    ExitCode::from(WRONG_USAGE)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::command::Command;

    #[derive(Parser)]
    struct Asked {
        #[command(subcommand)]
        command: Command,
    }

    #[test]
    fn any_arguments_get_the_answer_that_names_the_feature() {
        for arguments in [vec![], vec!["--server", "https://farm:7070", "--token-file", "-"], vec!["--unattended", "x"]]
        {
            let words = ["agent", "install"].into_iter().chain(arguments.iter().copied());
            let command = Asked::try_parse_from(words).map(|asked| asked.command);
            let Ok(Command::Install(wishes)) = command else { panic!("{arguments:?}: {command:?}") };
            assert_eq!(wishes.any, arguments);
        }
    }
}
