//! The agent of the airline's workstations: PC Farm's agent with one controller built in.

fn main() -> std::process::ExitCode {
    pcfarm_worker::run(pcfarm_airline::agent::RevenueManagement)
}
