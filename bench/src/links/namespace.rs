//! A network namespace with one wire to the machine. It is removed when it is dropped.

use anyhow::{Context, ensure};
use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

/// `10.231.0.0/16` in networks of four addresses: one for each namespace of this process.
const NETWORKS: u16 = 1 << 14;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// The name of the wire's end in a namespace.
const INSIDE: &str = "wire";

/// Faster links carry bundles of packets: without them the machine is slower than the link.
const SEGMENTED_KBIT: u64 = 200_000;

/// Least queue of a modem before it drops packets. Some modems keep seconds.
const QUEUE_BYTES: u64 = 32 << 10;

pub struct Namespace {
    name: String,
    /// The wire's end on the machine.
    device: String,
    network: u16,
}

/// Runs a program to its end, which must be a success.
pub fn run<I: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = I>) -> anyhow::Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    let output = command.output().with_context(|| format!("running {program}: is it installed?"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

impl Namespace {
    pub fn new() -> anyhow::Result<Namespace> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let process = std::process::id();
        // Tests are processes, and run beside each other.
        let network = (process as u16).wrapping_mul(61).wrapping_add(number) % NETWORKS;
        let name = format!("pcf{process}-{number}");
        let device = format!("pcf{process}n{number}");
        run("ip", words(&format!("netns add {name}")))?;
        let namespace = Namespace { name, device, network };
        namespace.wire()?;
        Ok(namespace)
    }

    fn wire(&self) -> anyhow::Result<()> {
        let Namespace { name, device, .. } = self;
        run("ip", words(&format!("link add {device} type veth peer name {INSIDE} netns {name}")))?;
        run("ip", words(&format!("addr add {}/30 dev {device}", self.outside())))?;
        run("ip", words(&format!("link set dev {device} up")))?;
        self.ip("link set dev lo up")?;
        self.ip(&format!("link set dev {INSIDE} up"))?;
        self.give_address(self.inside())
    }

    fn ip(&self, arguments: &str) -> anyhow::Result<String> {
        run("ip", words(&format!("-n {} {arguments}", self.name)))
    }

    /// Runs a program in the namespace.
    pub fn inside_run(&self, program: &str) -> anyhow::Result<String> {
        run("ip", words(&format!("netns exec {} {program}", self.name)))
    }

    fn address(&self, host: u8) -> Ipv4Addr {
        let [high, low] = (self.network << 2).to_be_bytes();
        Ipv4Addr::new(10, 231, high, low | host)
    }

    /// The machine's address on the wire.
    pub fn outside(&self) -> Ipv4Addr {
        self.address(1)
    }

    pub fn inside(&self) -> Ipv4Addr {
        self.address(2)
    }

    fn give_address(&self, address: Ipv4Addr) -> anyhow::Result<()> {
        self.ip(&format!("addr add {address}/30 dev {INSIDE}"))?;
        self.ip(&format!("route replace default via {}", self.outside())).map(drop)
    }

    /// Gives it another address, as a VPN does that connects anew: packets of its connections are not answered any more.
    pub fn change_address(&self) -> anyhow::Result<()> {
        self.ip(&format!("addr flush dev {INSIDE}"))?;
        // Another network: the machine's end keeps its own address.
        let other = Ipv4Addr::new(10, 230, self.inside().octets()[2], self.inside().octets()[3]);
        self.ip(&format!("addr add {other}/32 dev {INSIDE}"))?;
        self.ip(&format!("route replace {} dev {INSIDE} src {other}", self.outside()))?;
        run("ip", words(&format!("route replace {other} dev {}", self.device))).map(drop)
    }

    /// Holds both directions to a rate.
    pub fn limit(&self, kbit: u64) -> anyhow::Result<()> {
        if kbit <= SEGMENTED_KBIT {
            self.segment()?;
        }
        let bytes_per_second = kbit * 125;
        let burst = (bytes_per_second / 250).max(1600);
        let queue = (bytes_per_second / 2).max(QUEUE_BYTES);
        let shape = format!("root tbf rate {kbit}kbit burst {burst} limit {queue}");
        run("tc", words(&format!("qdisc replace dev {} {shape}", self.device)))?;
        run("tc", words(&format!("-n {} qdisc replace dev {INSIDE} {shape}", self.name))).map(drop)
    }

    /// Lets no device carry bundles of packets: a limit or a loss of forty at once would be another link.
    fn segment(&self) -> anyhow::Result<()> {
        run("ip", words(&format!("link set dev {} gso_max_segs 1", self.device)))?;
        self.ip(&format!("link set dev {INSIDE} gso_max_segs 1")).map(drop)
    }

    /// Loses so many of a hundred packets, in both directions.
    pub fn lose(&self, percent: u32) -> anyhow::Result<()> {
        self.segment()?;
        let rules = |table: &str, device: &str| {
            format!(
                "table inet {table} {{\n chain lossy {{\n type filter hook prerouting priority -300;\n \
                 iifname \"{device}\" numgen random mod 100 < {percent} drop\n }}\n }}"
            )
        };
        run("nft", [rules(&self.device, &self.device)])?;
        let inside = rules("lossy", INSIDE);
        run("ip", ["netns", "exec", &self.name, "nft", &inside]).map(drop)
    }

    /// Puts a NAT behind the wire that forgets connections which say nothing for so many seconds, as home routers do.
    pub fn forget_idle_connections(&self, seconds: u32) -> anyhow::Result<()> {
        let rules = "table ip forgetful {\n \
            chain out {\n type filter hook output priority 0;\n ct state invalid drop\n }\n \
            chain in {\n type filter hook input priority 0;\n ct state { invalid, new } drop\n }\n }";
        run("ip", ["netns", "exec", &self.name, "nft", rules])?;
        self.inside_run("sysctl -qw net.netfilter.nf_conntrack_tcp_loose=0")?;
        self.inside_run(&format!("sysctl -qw net.netfilter.nf_conntrack_tcp_timeout_established={seconds}")).map(drop)
    }

    /// Lets no packet through any more, without a word to those who wait for one; or again.
    pub fn cut(&self, is_cut: bool) -> anyhow::Result<()> {
        let state = if is_cut { "down" } else { "up" };
        run("ip", words(&format!("link set dev {} {state}", self.device)))?;
        if !is_cut {
            self.ip(&format!("route replace default via {}", self.outside()))?;
        }
        Ok(())
    }

    /// Arguments of `ip` that start a program in it.
    pub fn enter(&self) -> Vec<String> {
        words(&format!("netns exec {}", self.name)).into_iter().map(str::to_owned).collect()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Removing a namespace removes its end of the wire, and thereby the other one.
        for (program, arguments) in [
            ("ip", format!("link del {}", self.device)),
            ("ip", format!("netns del {}", self.name)),
            ("nft", format!("delete table inet {}", self.device)),
        ] {
            let _ = Command::new(program).args(words(&arguments)).stderr(Stdio::null()).status();
        }
    }
}
