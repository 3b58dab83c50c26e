//! Compiles the .proto files with protox, so that building needs no protoc.

use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = [
        "pcfarm/v1/problem.proto",
        "pcfarm/v1/agent.proto",
        "pcfarm/v1/admin.proto",
        "pcfarm/v1/access.proto",
        "pcfarm/v1/file.proto",
        "pcfarm/v1/schedule.proto",
    ];
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(files, [Path::new("proto")])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("pcfarm.v1.bin"), prost::Message::encode_to_vec(&descriptors))?;
    tonic_prost_build::configure()
        .bytes(".")
        // A Hello is long, and comes once.
        .type_attribute("pcfarm.v1.AgentMessage.message", "#[allow(clippy::large_enum_variant)]")
        .compile_fds(descriptors)?;
    Ok(())
}
