//! `pcfarm-server`.

use pcfarm_server::run;
use pcfarm_server::settings::Settings;
use pcfarm_sql::connect::ConnectError;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

#[tokio::main]
async fn main() -> ExitCode {
    let settings = match Settings::read() {
        Ok(settings) => settings,
        Err(error) => return error.report(),
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
    match run::run(settings).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pcfarm-server: {error:#}");
            let unreachable = error.chain().any(|cause| cause.is::<ConnectError>());
            ExitCode::from(if unreachable { 3 } else { 1 })
        }
    }
}
