//! What this machine has, as far as its kernel tells every program: for requirements, and for people.
//!
//! Reads a few files of `/proc` and `/sys`, and never a device or a library.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use pcfarm_proto::v1::Gpu;

/// As requirements name it: `linux`, `macos`.
pub fn system_name() -> String {
    std::env::consts::OS.to_owned()
}

pub fn arch() -> String {
    std::env::consts::ARCH.to_owned()
}

/// Those whose vendors make some that compute; by where they are on their bus. `root`: of the file system.
pub fn gpus(root: &Path) -> Vec<Gpu> {
    let mut by_place = of_graphics(&root.join("sys/class/drm"));
    // One without a screen may have no other entry than its driver's; and this one knows its name.
    by_place.extend(of_nvidia(&root.join("proc/driver/nvidia/gpus")));
    by_place.into_values().take(LIMIT).collect()
}

/// Most that a server takes.
const LIMIT: usize = 64;

/// Of the graphics that consoles of servers and of virtual machines have, nothing is said.
const VENDORS: [(&str, &str); 3] = [("0x10de", "nvidia"), ("0x1002", "amd"), ("0x8086", "intel")];

/// `card0` is a device; `card0-DP-1` is one of its sockets, `renderD128` the same device once more.
fn of_graphics(directory: &Path) -> BTreeMap<String, Gpu> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_card = |name: &str| {
        name.strip_prefix("card").is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let cards = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_card));
    cards
        .filter_map(|card| {
            let device = card.path().join("device");
            let id = |file: &str| Some(fs::read_to_string(device.join(file)).ok()?.trim().to_owned());
            let code = id("vendor")?;
            let (_, vendor) = VENDORS.iter().find(|(known, _)| *known == code)?;
            // The device is a link to its place on the bus.
            let place = fs::canonicalize(&device).ok()?.file_name()?.to_string_lossy().into_owned();
            let code = code.trim_start_matches("0x");
            let name = id("device").map(|device| format!("{code}:{}", device.trim_start_matches("0x")));
            Some((place, Gpu { vendor: (*vendor).to_owned(), name: name.unwrap_or_default() }))
        })
        .collect()
}

fn of_nvidia(directory: &Path) -> BTreeMap<String, Gpu> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let gpu = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path().join("information")).unwrap_or_default();
        let model = text.lines().find_map(|line| line.strip_prefix("Model:"));
        let name = model.map(|model| model.trim().chars().take(100).collect()).unwrap_or_default();
        (entry.file_name().to_string_lossy().into_owned(), Gpu { vendor: "nvidia".to_owned(), name })
    };
    entries.map(gpu).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A graphics card of these ids, as the kernel shows it.
    fn card(root: &Path, name: &str, place: &str, ids: (&str, &str)) {
        let device = root.join("sys/devices/pci0000:00").join(place);
        let card = root.join("sys/class/drm").join(name);
        fs::create_dir_all(&device).expect("a device");
        fs::create_dir_all(&card).expect("a card");
        fs::write(device.join("vendor"), format!("{}\n", ids.0)).expect("a vendor");
        fs::write(device.join("device"), format!("{}\n", ids.1)).expect("a device");
        symlink(&device, card.join("device")).expect("a link");
    }

    #[test]
    fn gpus_are_found_once_each_by_what_the_kernel_shows() {
        let root = tempfile::tempdir().expect("a directory");
        let root = root.path();
        assert_eq!(gpus(root), []);
        card(root, "card0", "0000:00:02.0", ("0x8086", "0x9a49"));
        card(root, "card1", "0000:01:00.0", ("0x10de", "0x2204"));
        card(root, "renderD128", "0000:01:00.0", ("0x10de", "0x2204"));
        card(root, "card1-DP-1", "0000:01:00.0", ("0x10de", "0x2204"));
        card(root, "card2", "0000:03:00.0", ("0x1a03", "0x2000"));
        card(root, "card3", "0000:61:00.0", ("0x1002", "0x73bf"));
        for (place, text) in [
            ("0000:01:00.0", "Model: \t\t NVIDIA GeForce RTX 3090\nIRQ:   \t\t 156\n"),
            ("0000:41:00.0", "Model: \t\t NVIDIA A100\n"),
        ] {
            let gpu = root.join("proc/driver/nvidia/gpus").join(place);
            fs::create_dir_all(&gpu).expect("a GPU");
            fs::write(gpu.join("information"), text).expect("information");
        }
        let found: Vec<String> = gpus(root).iter().map(|gpu| format!("{} {}", gpu.vendor, gpu.name)).collect();
        assert_eq!(found, ["intel 8086:9a49", "nvidia NVIDIA GeForce RTX 3090", "nvidia NVIDIA A100", "amd 1002:73bf"]);
    }
}
