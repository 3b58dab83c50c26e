//! Compiles the .proto files with protox, so that building needs no protoc.

use prost_types::FileDescriptorSet;
use prost_types::field_descriptor_proto::Type;
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
    let mut descriptors = protox::compile(files, [Path::new("proto")])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    // Before anything is changed: others see this by reflection.
    std::fs::write(out.join("pcfarm.v1.bin"), prost::Message::encode_to_vec(&descriptors))?;
    slice(&mut descriptors, "Problem", "key").ok_or("Problem has no key that is a string")?;
    tonic_prost_build::configure()
        .bytes(".")
        // A Hello is long, and comes once.
        .type_attribute("pcfarm.v1.AgentMessage.message", "#[allow(clippy::large_enum_variant)]")
        .compile_fds(descriptors)?;
    Ok(())
}

/// Text that comes by the million: a slice of the message that it came in, as bytes are, instead of a string with memory of its
/// own. On the wire they are the same.
fn slice(descriptors: &mut FileDescriptorSet, message: &str, field: &str) -> Option<()> {
    let mut messages = descriptors.file.iter_mut().flat_map(|file| &mut file.message_type);
    let message = messages.find(|found| found.name() == message)?;
    let field = message.field.iter_mut().find(|found| found.name() == field && found.r#type() == Type::String)?;
    field.set_type(Type::Bytes);
    Some(())
}
