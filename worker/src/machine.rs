//! What this machine has, as far as its kernel tells every program: for requirements, and for people.
//!
//! Reads a few files of `/proc` and `/sys`, asks the kernel which devices may be opened, and opens no device and no library.
//! [`fingerprint`] tells this machine from others.

#[cfg(target_os = "linux")]
mod cards;
pub mod fingerprint;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use pcfarm_proto::v1::Gpu;

/// As requirements name it: `linux`, `macos`.
pub fn system_name() -> String {
    std::env::consts::OS.to_owned()
}

pub fn arch() -> String {
    std::env::consts::ARCH.to_owned()
}

/// Returns the GPUs of which the agent tells the farm: those that it may open. So a job that requires a GPU goes to no
/// workstation whose programs could not open it.
pub fn gpus(root: &Path, allowed: bool) -> Vec<Gpu> {
    let open = found(root).into_iter().filter(|found| found.withheld(allowed, &may_open).is_none());
    open.map(|found| found.gpu).collect()
}

/// A line for people about each GPU, with the reason if the farm is not told of it.
pub fn gpus_explained(root: &Path, allowed: bool) -> Vec<String> {
    let explained = |found: Found| {
        let says = found
            .withheld(allowed, &may_open)
            .map_or("told to the farm".to_owned(), |why| format!("not told to the farm: {why}"));
        format!("{} {}: {says}", found.gpu.vendor, found.gpu.name)
    };
    found(root).into_iter().map(explained).collect()
}

/// Device nodes of GPUs, and directories of such nodes, that are there.
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "programs run on Linux"))]
pub fn gpu_nodes(root: &Path) -> Vec<PathBuf> {
    let dev = root.join("dev");
    let of_nvidia = fs::read_dir(&dev).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_nvidia = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("nvidia"));
    let mut nodes: Vec<PathBuf> = of_nvidia.filter(is_nvidia).chain([dev.join("dri"), dev.join("kfd")]).collect();
    nodes.retain(|path| path.exists());
    nodes.sort();
    nodes
}

/// A GPU and the device nodes by which programs compute with it.
struct Found {
    gpu: Gpu,
    nodes: Vec<PathBuf>,
    /// Nodes that all GPUs of the vendor need.
    shared: Vec<PathBuf>,
}

/// Nodes that CUDA opens beside a GPU's own. The free driver of these GPUs has neither.
const OF_CUDA: [&str; 2] = ["nvidiactl", "nvidia-uvm"];
/// Node that ROCm opens beside a GPU's own.
const OF_ROCM: [&str; 1] = ["kfd"];

fn shared(root: &Path, names: &[&str]) -> Vec<PathBuf> {
    names.iter().map(|name| root.join("dev").join(name)).collect()
}

impl Found {
    /// The reason for which the farm is not told; `may_open` asks the kernel.
    fn withheld(&self, allowed: bool, may_open: &dyn Fn(&Path) -> io::Result<()>) -> Option<String> {
        if !allowed {
            return Some("the settings do not say gpu = true".to_owned());
        }
        if self.nodes.is_empty() {
            return Some("its driver offers no device for computing".to_owned());
        }
        let wrong =
            self.nodes.iter().chain(&self.shared).find_map(|node| may_open(node).err().map(|error| (node, error)));
        wrong.map(|(node, error)| format!("the agent may not open {}: {error}", node.display()))
    }
}

/// The kernel's answer includes the unit's rules for devices.
#[cfg(target_os = "linux")]
fn may_open(node: &Path) -> io::Result<()> {
    use rustix::fs::{Access, access};
    Ok(access(node, Access::READ_OK | Access::WRITE_OK)?)
}

#[cfg(not(target_os = "linux"))]
fn may_open(node: &Path) -> io::Result<()> {
    fs::metadata(node).map(drop)
}

/// GPUs whose vendors make some that compute, in the order of their bus. `root`: of the file system.
fn found(root: &Path) -> Vec<Found> {
    let mut by_place = of_graphics(root);
    // The entry of NVIDIA's own driver names the model and the device node, and may be the only one.
    by_place.extend(of_nvidia(root));
    by_place.into_values().take(LIMIT).collect()
}

/// Most that a server takes.
const LIMIT: usize = 64;

/// Of the graphics that consoles of servers and of virtual machines have, nothing is said.
const VENDORS: [(&str, &str); 3] = [("0x10de", "nvidia"), ("0x1002", "amd"), ("0x8086", "intel")];

/// `card0` is a device; `card0-DP-1` is one of its sockets, `renderD128` its node for computing.
fn of_graphics(root: &Path) -> BTreeMap<String, Found> {
    let directory = root.join("sys/class/drm");
    let names: Vec<String> = fs::read_dir(&directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    let is_numbered = |name: &str, prefix: &str| {
        name.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let device = |name: &str| directory.join(name).join("device");
    // The device is a link to its place on the bus.
    let place = |name: &str| Some(fs::canonicalize(device(name)).ok()?.file_name()?.to_string_lossy().into_owned());
    let mut found: BTreeMap<String, Found> = names
        .iter()
        .filter(|name| is_numbered(name, "card"))
        .filter_map(|card| {
            let id = |file: &str| Some(fs::read_to_string(device(card).join(file)).ok()?.trim().to_owned());
            let code = id("vendor")?;
            let (_, vendor) = VENDORS.iter().find(|(known, _)| *known == code)?;
            let code = code.trim_start_matches("0x");
            let name = id("device").map(|device| format!("{code}:{}", device.trim_start_matches("0x")));
            let gpu = Gpu { vendor: (*vendor).to_owned(), name: name.unwrap_or_default() };
            let shared = if *vendor == "amd" { shared(root, &OF_ROCM) } else { Vec::new() };
            Some((place(card)?, Found { gpu, nodes: Vec::new(), shared }))
        })
        .collect();
    for node in names.iter().filter(|name| is_numbered(name, "renderD")) {
        if let Some(of) = place(node).and_then(|place| found.get_mut(&place)) {
            of.nodes.push(root.join("dev/dri").join(node));
        }
    }
    found
}

fn of_nvidia(root: &Path) -> BTreeMap<String, Found> {
    let entries = fs::read_dir(root.join("proc/driver/nvidia/gpus")).into_iter().flatten().flatten();
    let gpu = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path().join("information")).unwrap_or_default();
        let said = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let name = said("Model:").map(|model| model.chars().take(100).collect()).unwrap_or_default();
        let minor = said("Device Minor:").and_then(|minor| minor.parse::<u32>().ok());
        let nodes = minor.map(|minor| root.join("dev").join(format!("nvidia{minor}"))).into_iter().collect();
        let gpu = Gpu { vendor: "nvidia".to_owned(), name };
        let shared = shared(root, &OF_CUDA);
        (entry.file_name().to_string_lossy().into_owned(), Found { gpu, nodes, shared })
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

    fn node(root: &Path, name: &str) {
        let node = root.join("dev").join(name);
        fs::create_dir_all(node.parent().expect("a directory")).expect("made");
        fs::write(node, "").expect("a node");
    }

    #[test]
    fn gpus_are_found_once_each_by_what_the_kernel_shows() {
        let root = tempfile::tempdir().expect("a directory");
        let root = root.path();
        assert_eq!(gpus(root, true), []);
        card(root, "card0", "0000:00:02.0", ("0x8086", "0x9a49"));
        card(root, "card1", "0000:01:00.0", ("0x10de", "0x2204"));
        card(root, "renderD128", "0000:00:02.0", ("0x8086", "0x9a49"));
        card(root, "renderD129", "0000:01:00.0", ("0x10de", "0x2204"));
        card(root, "card1-DP-1", "0000:01:00.0", ("0x10de", "0x2204"));
        card(root, "card2", "0000:03:00.0", ("0x1a03", "0x2000"));
        card(root, "card3", "0000:61:00.0", ("0x1002", "0x73bf"));
        for (place, text) in [
            ("0000:01:00.0", "Model: \t\t NVIDIA GeForce RTX 3090\nIRQ:   \t\t 156\nDevice Minor: \t 0\n"),
            ("0000:41:00.0", "Model: \t\t NVIDIA A100\nDevice Minor: \t 1\n"),
        ] {
            let gpu = root.join("proc/driver/nvidia/gpus").join(place);
            fs::create_dir_all(&gpu).expect("a GPU");
            fs::write(gpu.join("information"), text).expect("information");
        }
        let said = |allowed| {
            let known = |line: &String| line.replace(&root.display().to_string(), "");
            gpus_explained(root, allowed).iter().map(known).collect::<Vec<_>>()
        };
        let no_entry = "No such file or directory (os error 2)";
        assert_eq!(
            said(true),
            [
                format!(
                    "intel 8086:9a49: not told to the farm: the agent may not open /dev/dri/renderD128: {no_entry}"
                ),
                format!(
                    "nvidia NVIDIA GeForce RTX 3090: not told to the farm: the agent may not open /dev/nvidia0: {no_entry}"
                ),
                format!("nvidia NVIDIA A100: not told to the farm: the agent may not open /dev/nvidia1: {no_entry}"),
                "amd 1002:73bf: not told to the farm: its driver offers no device for computing".to_owned(),
            ]
        );
        assert_eq!(gpus(root, true), []);
        for name in ["dri/renderD128", "nvidia0", "nvidiactl", "nvidia-uvm", "null"] {
            node(root, name);
        }
        let found: Vec<String> = gpus(root, true).iter().map(|gpu| format!("{} {}", gpu.vendor, gpu.name)).collect();
        assert_eq!(found, ["intel 8086:9a49", "nvidia NVIDIA GeForce RTX 3090"]);
        assert_eq!(said(true)[0], "intel 8086:9a49: told to the farm");
        assert_eq!(gpus(root, false), []);
        assert!(said(false).iter().all(|line| line.ends_with("the settings do not say gpu = true")));
        let names: Vec<PathBuf> =
            ["dri", "nvidia-uvm", "nvidia0", "nvidiactl"].map(|name| root.join("dev").join(name)).into();
        assert_eq!(gpu_nodes(root), names);
    }

    #[test]
    fn a_gpu_that_may_not_be_opened_is_not_told() {
        let gpu = Gpu { vendor: "amd".to_owned(), name: "card".to_owned() };
        let found = Found { gpu, nodes: vec!["/dev/dri/renderD128".into()], shared: shared(Path::new("/"), &OF_ROCM) };
        let refused = |_: &Path| Err(io::Error::from_raw_os_error(1));
        let why = found.withheld(true, &refused).expect("withheld");
        assert_eq!(why, "the agent may not open /dev/dri/renderD128: Operation not permitted (os error 1)");
        assert_eq!(found.withheld(true, &|_: &Path| Ok(())), None);
        // ROCm opens its own node for all of them.
        let no_kfd = |node: &Path| if node.ends_with("kfd") { Err(io::Error::from_raw_os_error(2)) } else { Ok(()) };
        let why = found.withheld(true, &no_kfd).expect("withheld");
        assert!(why.starts_with("the agent may not open /dev/kfd: No such file"), "{why}");
    }

    #[test]
    fn a_gpu_of_nvidia_without_the_node_of_cuda_is_not_told() {
        let root = tempfile::tempdir().expect("a directory");
        let root = root.path();
        let gpu = root.join("proc/driver/nvidia/gpus/0000:01:00.0");
        fs::create_dir_all(&gpu).expect("a GPU");
        fs::write(gpu.join("information"), "Model: \t A100\nDevice Minor: \t 0\n").expect("information");
        ["nvidia0", "nvidiactl"].iter().for_each(|name| node(root, name));
        assert_eq!(gpus(root, true), []);
        assert!(gpus_explained(root, true)[0].contains("/dev/nvidia-uvm"));
        node(root, "nvidia-uvm");
        assert_eq!(gpus(root, true).len(), 1);
    }
}
