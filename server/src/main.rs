//! `pcfarm-server`.

use pcfarm_server::settings::Asked;
use pcfarm_server::{init, run};
use pcfarm_sql::connect::ConnectError;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

#[tokio::main]
async fn main() -> ExitCode {
    let asked = match Asked::read() {
        Ok(asked) => asked,
        Err(error) => return error.report(),
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
    let done = match asked {
        Asked::Serve(settings) => run::run(settings).await,
        Asked::Init(init) => init::run(init).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pcfarm-server: {error:#}");
            let unreachable = error.chain().any(|cause| cause.is::<ConnectError>());
            ExitCode::from(if unreachable { 3 } else { 1 })
        }
    }
}
