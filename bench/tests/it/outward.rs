//! Connections through a real HTTP proxy, tinyproxy, which asks for a password: webhooks, traces and the CLI.

use std::net::{IpAddr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};

use crate::collector::Collector;
use crate::receiver::{Certificate, Receiver, SECRET};
use crate::traces::{TRACE, submitted, trace_parent};
use pcfarm_bench::farm::{Farm, LONG, SOON, Server, free_port};
use pcfarm_bench::left_out;
use pcfarm_bench::program::Program;
use serde_json::json;

/// A proxy, with the address that programs get for it.
struct Proxy {
    program: Program,
    url: String,
    log: PathBuf,
}

impl Proxy {
    /// Runs with this password; without tinyproxy a test leaves itself out.
    fn start(farm: &Farm) -> Option<Proxy> {
        let places = ["/usr/bin/tinyproxy", "/usr/local/bin/tinyproxy", "/opt/homebrew/bin/tinyproxy"];
        let Some(path) = places.into_iter().map(Path::new).find(|path| path.is_file()) else {
            left_out::for_want_of("tinyproxy");
            return None;
        };
        let (port, log) = (free_port(), farm.path("requests.log"));
        let settings = format!(
            "Port {port}\nListen 127.0.0.1\nTimeout 60\nMaxClients 20\nLogLevel Connect\nLogFile \"{}\"\nBasicAuth farm secret\n",
            log.display()
        );
        std::fs::write(farm.path("tinyproxy.conf"), settings).expect("written");
        let program = Program::new("proxy", path, &farm.path("proxy.log"));
        let mut program = program.arguments(["-d".into(), "-c".into(), farm.path("tinyproxy.conf").into_os_string()]);
        program.start();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(program.runs(), "{}", program.log());
            std::thread::yield_now();
        }
        Some(Proxy { program, url: format!("http://farm:secret@127.0.0.1:{port}"), log })
    }

    /// Fails unless the proxy's log has this request.
    fn was_asked(&self, request: &str) {
        let log = std::fs::read_to_string(&self.log).expect("a log");
        assert!(log.contains(request), "{request}: {log}");
    }
}

/// An address of this host that is not a loopback address: those are never reached through a proxy. No packet is sent.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("198.51.100.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    if address.is_loopback() || address.is_unspecified() {
        left_out::here("this machine has no address beside 127.0.0.1");
        return None;
    }
    Some(address)
}

/// True if the name resolves to loopback addresses.
fn is_here(name: &str) -> bool {
    let found = (name, 0).to_socket_addrs().map(Iterator::collect::<Vec<_>>).unwrap_or_default();
    !found.is_empty() && found.iter().all(|address| address.ip().is_loopback())
}

async fn posted_to(farm: &Farm, url: &str) {
    let options = json!({"webhook": url, "secret": SECRET, "events": ["ended"]});
    farm.query("select pcfarm.subscribe($1::text::jsonb)", &[&options.to_string()]).await;
}

async fn cancelled(farm: &Farm) {
    let job = farm.submit_sleeps("plain", 3, 1, 1).await;
    farm.query("select pcfarm.cancel_job($1)", &[&job]).await;
}

#[tokio::test]
async fn webhooks_and_traces_go_through_the_proxy_to_a_private_authority() {
    let farm = Farm::new().await;
    farm.job_type("plain", "digest", json!({})).await;
    let (Some(address), Some(mut proxy)) = (own_address(), Proxy::start(&farm)) else { return };
    let certificate = Certificate::of(&address.to_string());
    certificate.write(&farm.path("trusted.pem"), &farm.path("key.pem"));
    let mut secure = Receiver::on(address, Some(&certificate)).await;
    let mut plain = Receiver::on(address, None).await;
    let collector = Collector::on(address).await;
    for url in [&secure.url, &plain.url] {
        posted_to(&farm, url).await;
    }
    let rest = free_port();
    let flags = [
        "--traces",
        &collector.url,
        "--http-listen",
        &format!("127.0.0.1:{rest}"),
        "--webhook-networks",
        &address.to_string(),
    ];
    let Server { program, port } = farm.server("a", &flags);
    let program = program.environment("PCFARM_OUTGOING_CA", farm.path("trusted.pem"));
    let program = program.environment("HTTPS_PROXY", &proxy.url).environment("http_proxy", &proxy.url);
    let mut server = Server { program, port };
    server.start().await;
    cancelled(&farm).await;
    secure.next().await;
    plain.next().await;
    submitted(rest, &trace_parent(TRACE, "01"), 1, 1).await;
    collector.until("a span", |_| true).await;
    let place = |url: &str| url.split_once("://").expect("a URL").1.to_owned();
    proxy.was_asked(&format!("CONNECT {}", place(&secure.url)));
    proxy.was_asked(&format!("POST {}", plain.url));
    proxy.was_asked(&format!("CONNECT {}", place(&collector.url)));
    assert!(!server.program.log().contains("secret"), "{}", server.program.log());
    farm.until(SOON, "select count(*) = 2 from pcfarm.alert_status where state = 'delivered'").await;

    // Nothing is reached without its password or without it, and the message names it.
    server.program.kill();
    let without = proxy.url.replace("farm:secret@", "");
    let Server { program, port } = farm.server("b", &flags);
    let program = program.environment("PCFARM_OUTGOING_CA", farm.path("trusted.pem"));
    let program = program.environment("HTTPS_PROXY", &without).environment("http_proxy", &without);
    let mut stranger = Server { program, port };
    stranger.start().await;
    cancelled(&farm).await;
    let asks = "select count(*) = 2 from pcfarm.alert_status where state = 'waiting' and message like \
         '%proxy 127.0.0.1:%: the proxy asks for a user and a password%'";
    farm.until(LONG, asks).await;
    stranger.program.kill();
    farm.query("update pcfarm.alert set next_attempt_at = now() where next_attempt_at is not null", &[]).await;
    server.start().await;
    farm.until(LONG, "select count(*) = 4 from pcfarm.alert_status where state = 'delivered'").await;
    proxy.program.kill();
    cancelled(&farm).await;
    let told =
        "select count(*) = 2 from pcfarm.alert_status where state = 'waiting' and message like '%proxy 127.0.0.1:%'";
    farm.until(LONG, told).await;
    let shown = farm.number("select count(*) from pcfarm.alert_status where message like '%secret%'").await;
    assert_eq!(shown, 0);
}

#[tokio::test]
async fn webhooks_reach_no_private_address_unless_a_setting_allows_it() {
    let farm = Farm::new().await;
    farm.job_type("plain", "digest", json!({})).await;
    let mut receiver = Receiver::start(&[]).await;
    let port = receiver.url.rsplit(':').next().expect("a port").to_owned();
    let closed = free_port();
    // An open port and a closed one, addresses, old spellings of addresses, and names that resolve to this machine.
    let mut urls = vec![format!("http://127.0.0.1:{port}/x"), format!("http://127.0.0.1:{closed}/x")];
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let names = ["ip6-localhost", "ip6-loopback", host.trim()].into_iter().filter(|name| is_here(name));
    let addresses =
        ["localhost", "[::1]", "[::ffff:127.0.0.1]", "127.1", "2130706433", "0x7f.1", "169.254.169.254", "10.0.0.1"];
    urls.extend(addresses.into_iter().chain(names).map(|name| format!("http://{name}:{port}/x")));
    for url in &urls {
        posted_to(&farm, url).await;
    }
    let mut server = farm.serving("a", &["--webhook-networks", ""]).await;
    cancelled(&farm).await;
    let refused = "from pcfarm.alert_status where state = 'waiting' and attempts > 0 and message like \
         'the address of % is not public; an administrator may allow it with webhook_networks'";
    farm.until(LONG, &format!("select count(*) = {} {refused}", urls.len())).await;
    let both = farm.number(&format!("select count(*) {refused} and message like '% 127.0.0.1 %'")).await;
    assert_eq!(both, 2, "an open port and a closed one look alike");
    assert!(receiver.posts.try_recv().is_err(), "nothing was sent there");
    server.program.kill();

    // With the setting they are delivered, by address and by name.
    let server = farm.serving("b", &["--webhook-networks", "127.0.0.0/8,::1"]).await;
    farm.query("update pcfarm.alert set next_attempt_at = now()", &[]).await;
    receiver.different(3).await;
    drop(server);
}

#[tokio::test]
async fn the_cli_reaches_its_server_through_the_proxy() {
    let farm = Farm::new().await;
    let (Some(address), Some(proxy)) = (own_address(), Proxy::start(&farm)) else { return };
    let Server { program, port } = farm.server("a", &["--insecure"]);
    let program = program.replacing_argument("--listen", &format!("0.0.0.0:{port}"));
    let mut server = Server { program, port };
    server.start().await;
    let url = format!("http://{address}:{port}");
    let asked_at = |url: &str, variable: &str, value: &str| {
        let mut command = std::process::Command::new(farm.program("cli", "pcfarm").path());
        for name in
            ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"]
        {
            command.env_remove(name);
        }
        let output = command.args(["--server", url, "status"]).env(variable, value).output().expect("the CLI runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let asked = |variable: &str, value: &str| asked_at(&url, variable, value);
    // Desktops export SOCKS proxies. This host needs none.
    let here = format!("http://127.0.0.1:{}", server.port);
    assert_eq!(asked_at(&here, "ALL_PROXY", "socks://127.0.0.1:1080"), (Some(0), String::new()));
    assert_eq!(asked("PCFARM_PROXY", &proxy.url), (Some(0), String::new()));
    proxy.was_asked(&format!("CONNECT {address}:{port}"));
    assert_eq!(asked("HTTP_PROXY", &proxy.url).0, Some(0));
    assert_eq!(asked("PCFARM_PROXY", "none").0, Some(0), "directly");
    let through = |port: &str| format!("no PC Farm server answers at {url} through the proxy 127.0.0.1:{port}: ");
    let port = proxy.url.rsplit(':').next().expect("a port");
    let (code, said) = asked("PCFARM_PROXY", &proxy.url.replace("farm:secret@", ""));
    assert!(
        code == Some(3) && said.contains(&through(port)) && said.contains("asks for a user and a password"),
        "{said}"
    );
    let (code, said) = asked("PCFARM_PROXY", "http://farm:secret@127.0.0.1:1");
    let refused = format!("{}connection refused", through("1"));
    assert!(code == Some(3) && said.contains(&refused) && !said.contains("secret"), "{said}");
    let (code, said) = asked("ALL_PROXY", "socks5://127.0.0.1:1080");
    assert!(code == Some(2) && said.contains("ALL_PROXY: socks5 proxies are not supported"), "{code:?} {said}");
    let (code, said) = asked("PCFARM_PROXY", "socks5://farm:secret@127.0.0.1:1");
    assert!(code == Some(2) && said.contains("socks5 proxies are not supported") && !said.contains("secret"), "{said}");
}
