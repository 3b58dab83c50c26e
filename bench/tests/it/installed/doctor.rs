//! Every way in which an agent may not work, brought about, and what its doctor says of it.

use std::net::TcpListener;
use std::process::Command;

use pcfarm_bench::farm::{SOON, free_port};
use pcfarm_proto::PROTOCOL_VERSION;
use pcfarm_proto::v1;
use pcfarm_proto::v1::agent_service_server::{AgentService, AgentServiceServer};
use serde_json::Value;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

use super::site::{Site, faketime, has, is_root, ran, url, worker};

/// What a doctor finds: the step that fails first, its exit code, and what it says of each step.
struct Finds {
    failed: Option<String>,
    code: Option<i32>,
    report: Value,
}

impl Finds {
    async fn of(mut doctor: Command) -> Finds {
        doctor.args(["doctor", "--output", "json"]);
        let ran = ran(doctor).await;
        let report: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
        assert_eq!(report["ok"], ran.code == Some(0), "{report}");
        Finds { failed: report["failed"].as_str().map(str::to_owned), code: ran.code, report }
    }

    fn step(&self, name: &str) -> &Value {
        let steps = self.report["steps"].as_array().expect("steps");
        steps.iter().find(|step| step["step"] == name).unwrap_or_else(|| panic!("no {name}: {}", self.report))
    }

    #[track_caller]
    fn is(&self, step: &str, code: i32, says: &str) {
        assert_eq!((self.failed.as_deref(), self.code), (Some(step), Some(code)), "{}", self.report);
        let step = self.step(step);
        assert!(step["says"].as_str().expect("text").contains(says), "{step}");
        assert!(!step["advice"].as_str().expect("text").is_empty(), "{step}");
    }
}

#[tokio::test]
async fn the_doctor_names_the_step_that_fails() {
    let site = Site::new().await;
    if !is_root() {
        return;
    }
    let server = site.serving("a").await;
    let token = site.join_token(&server, 1).await;
    let installed = site.install(&url(&server), &token).await;
    assert_eq!(installed.code, Some(0), "{installed:?}");

    let well = Finds::of(site.doctor()).await;
    assert_eq!((well.failed.as_deref(), well.code), (None, Some(0)), "{}", well.report);
    for step in ["settings", "state", "name", "route", "port", "tls", "answer", "credentials", "version", "clock"] {
        assert_eq!(well.step(step)["outcome"], "ok", "{}", well.report);
    }
    assert!(well.step("credentials")["says"].as_str().expect("text").contains("valid until"), "{}", well.report);

    // Ways to servers that are none.
    let plain = site.farm.serving("plain", &[]).await;
    let elsewhere = site.server("elsewhere", &[]);
    let listens = format!("127.0.0.2:{}", server.port);
    let mut elsewhere = elsewhere.program.replacing_argument("--listen", &listens);
    elsewhere.start();
    elsewhere.says("serving", SOON).await;
    let other = Site::new().await;
    let others = other.serving("others").await;
    let cases = [
        ("https://no-such-host.invalid:7070".to_owned(), "name", 3, "no-such-host.invalid"),
        (format!("https://localhost:{}", free_port()), "port", 3, "refused"),
        (format!("https://localhost:{}", plain.port), "tls", 5, "does not speak TLS"),
        (format!("http://localhost:{}", server.port), "answer", 3, ""),
        (format!("https://127.0.0.2:{}", server.port), "tls", 5, "not for 127.0.0.2, but for "),
        (url(&others), "tls", 5, "whom this workstation does not trust"),
    ];
    for (address, step, code, says) in cases {
        let mut doctor = site.doctor();
        doctor.args(["--server", &address]);
        Finds::of(doctor).await.is(step, code, says);
    }
    // What listens but never speaks is not waited for.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("an address").port();
    for (scheme, step, code) in [("https", "tls", 5), ("http", "answer", 3)] {
        let mut doctor = site.doctor();
        doctor.args(["--server", &format!("{scheme}://127.0.0.1:{port}")]);
        Finds::of(doctor).await.is(step, code, "within 5 s");
    }
    drop(silent);

    // Of several servers each is looked at.
    let mut doctor = site.doctor();
    doctor.args(["--server", &format!("{},https://no-such-host.invalid:1", url(&server))]);
    let two = Finds::of(doctor).await;
    assert_eq!(two.failed.as_deref(), Some("name"), "{}", two.report);
    let names = two.report["steps"].as_array().expect("steps").iter().filter(|step| step["step"] == "name").count();
    assert_eq!(names, 2);

    // A workstation that has not joined, and one that was cut off.
    let stranger = site.farm.path("stranger");
    std::fs::create_dir(&stranger).expect("made");
    std::fs::write(stranger.join("identity"), "8c5b1c1e-3f0e-4d57-9f3e-0c1b8c3c2f10\n").expect("written");
    std::fs::copy(site.tls.join("authority.pem"), stranger.join("authority.pem")).expect("copied");
    let mut doctor = worker();
    doctor.args(["--unattended", "--server", &url(&server), "--state-dir"]).arg(&stranger);
    Finds::of(doctor).await.is("credentials", 5, "");
    site.cut_off(&server, &site.identity()).await;
    Finds::of(site.doctor()).await.is("credentials", 5, "");
}

#[tokio::test]
async fn the_doctor_looks_at_the_token_of_who_has_not_joined() {
    let (site, other) = (Site::new().await, Site::new().await);
    let (server, others) = (site.serving("a").await, other.serving("others").await);
    let token = site.join_token(&server, 2).await;
    let newcomer = |server: &str, token: &str| {
        let mut doctor = worker();
        doctor.args(["--unattended", "--server", server, "--state-dir"]).arg(site.farm.path("nothing-yet"));
        doctor.arg("--join-token-file").arg(site.token_file(token));
        doctor
    };
    let well = Finds::of(newcomer(&url(&server), &token)).await;
    assert_eq!((well.failed.as_deref(), well.code), (None, Some(0)), "{}", well.report);
    let says = &well.step("token")["says"];
    assert!(says.as_str().expect("text").contains("lets 2 workstations more in until"), "{}", well.report);
    for step in ["state", "credentials"] {
        assert_eq!(well.step(step)["outcome"], "skipped", "it comes with joining: {}", well.report);
    }

    let plain = site.farm.serving("plain", &[]).await;
    for (address, token, says) in [
        (url(&server), "pcfj_short", "this is not a join token"),
        (url(&others), token.as_str(), "it is another farm's"),
        (plain.url(), token.as_str(), "nobody joins a farm by http"),
    ] {
        Finds::of(newcomer(&address, token)).await.is("token", 5, says);
    }
    let mut lost = worker();
    lost.args(["--unattended", "--server", &url(&server), "--join-token-file", "/nowhere/token"]);
    Finds::of(lost).await.is("token", 5, "cannot read the join token in");
    // What became of it only the server knows.
    for (change, says) in [
        ("expires_at = clock_timestamp()", "has expired"),
        ("expires_at = clock_timestamp() + interval '1 h', uses_left = 0", "was used up"),
        ("revoked_at = clock_timestamp()", "was revoked"),
    ] {
        site.farm.run(&format!("update pcfarm.join_token set {change}")).await;
        let finds = Finds::of(newcomer(&url(&server), &token)).await;
        finds.is("token", 5, says);
        assert_eq!(finds.step("answer")["outcome"], "ok", "the server is well: {}", finds.report);
    }
    site.farm.run("delete from pcfarm.join_token").await;
    Finds::of(newcomer(&url(&server), &token)).await.is("token", 5, "is not known to this farm");
    assert!(!site.farm.path("nothing-yet").exists(), "it changes nothing");
}

#[tokio::test]
async fn the_doctor_names_a_network_without_a_way_there() {
    if !is_root() || !has("unshare") {
        return;
    }
    // A network of its own, in which there is nothing.
    let may = Command::new("unshare").args(["--net", "true"]).output().is_ok_and(|output| output.status.success());
    if !may {
        return pcfarm_bench::left_out::here("no network of its own can be made here");
    }
    let mut doctor = Command::new("unshare");
    doctor.arg("--net").arg(worker().get_program()).args(["--unattended", "--server", "http://192.0.2.1:7070"]);
    let state = tempfile::tempdir().expect("a directory");
    std::fs::write(state.path().join("identity"), "8c5b1c1e-3f0e-4d57-9f3e-0c1b8c3c2f10\n").expect("written");
    doctor.arg("--state-dir").arg(state.path());
    let finds = Finds::of(doctor).await;
    finds.is("route", 3, "192.0.2.1: ");
    assert_eq!(finds.step("port")["outcome"], "skipped", "{}", finds.report);
}

#[tokio::test]
async fn the_doctor_tells_a_wrong_clock_from_what_has_expired() {
    let Some(library) = faketime() else { return };
    if !is_root() {
        return;
    }
    let site = Site::new().await;
    let mut server = site.serving("a").await;
    let token = site.join_token(&server, 1).await;
    let installed = site.install(&url(&server), &token).await;
    assert_eq!(installed.code, Some(0), "{installed:?}");
    let at = |clock: &str| {
        let mut doctor = site.doctor();
        doctor.env("LD_PRELOAD", &library).env("FAKETIME", clock).env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        doctor
    };
    let days = Finds::of(at("+3d")).await;
    days.is("clock", 1, "ahead of the server's");
    assert_eq!(days.step("credentials")["outcome"], "ok", "the server's clock is what counts: {}", days.report);
    Finds::of(at("-10m")).await.is("clock", 1, "behind the server's");
    // The server's certificate seems to have ended, and its clock says that it has not.
    let years = Finds::of(at("+5y")).await;
    years.is("clock", 1, "ahead of the server's");
    let tls = &years.step("tls")["says"];
    assert!(tls.as_str().expect("text").contains("this machine's clock says"), "{}", years.report);

    // Now it is a month later, everywhere.
    server.program.terminate();
    server.program.ended(SOON).await;
    let tls = site.tls.to_str().expect("a path of text");
    let later = site.farm.server("later", &["--tls", tls, "--authentication", "required"]);
    let mut later_program =
        later.program.environment("LD_PRELOAD", library.as_os_str()).environment("FAKETIME", "+45d");
    later_program = later_program.environment("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    later_program.start();
    later_program.says("serving", SOON).await;
    let mut doctor = at("+45d");
    doctor.args(["--server", &format!("https://localhost:{}", later.port)]);
    Finds::of(doctor).await.is("credentials", 5, "");
}

#[tokio::test]
async fn the_doctor_looks_at_this_machine_first() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = dir.path().join("worker.toml");
    std::fs::write(&config, "coers = 3\n").expect("written");
    let with = |config: &std::path::Path| {
        let mut doctor = worker();
        doctor.arg("--config").arg(config);
        doctor
    };
    Finds::of(with(&config)).await.is("settings", 2, "coers");
    // A machine without a source of input, whose agent has never run.
    let text = format!(
        "server = \"http://127.0.0.1:{}\"\nstate_dir = {:?}\n[presence]\ndev = \"/nowhere\"\nload = inf\n",
        free_port(),
        dir.path().join("state")
    );
    std::fs::write(&config, &text).expect("written");
    let finds = Finds::of(with(&config)).await;
    finds.is("state", 1, "no agent has run yet");
    let blind = finds.step("presence");
    assert_eq!(blind["outcome"], "failed", "{blind}");
    assert!(blind["advice"].as_str().expect("text").contains("trust_terminals"), "{blind}");
    std::fs::create_dir(dir.path().join("state")).expect("made");
    std::fs::write(dir.path().join("state/identity"), "me\n").expect("written");
    Finds::of(with(&config)).await.is("state", 1, "does not hold a UUID");
    // For people the same, in lines.
    let mut doctor = with(&config);
    doctor.arg("doctor");
    let said = ran(doctor).await;
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.stdout.lines().any(|line| line.starts_with("FAILED  state ")), "{}", said.stdout);
}

/// A server of another time.
struct Newer;

#[tonic::async_trait]
impl AgentService for Newer {
    type WorkStream = ReceiverStream<Result<v1::ServerMessage, Status>>;
    type FetchStream = ReceiverStream<Result<v1::FilePiece, Status>>;

    async fn work(&self, _: Request<Streaming<v1::AgentMessage>>) -> Result<Response<Self::WorkStream>, Status> {
        Err(Status::failed_precondition("another version"))
    }

    async fn fetch(&self, _: Request<v1::FetchRequest>) -> Result<Response<Self::FetchStream>, Status> {
        Err(Status::failed_precondition("another version"))
    }

    async fn offer_output(&self, _: Request<v1::Output>) -> Result<Response<v1::OfferOutputResponse>, Status> {
        Err(Status::failed_precondition("another version"))
    }

    async fn put_output(
        &self,
        _: Request<Streaming<v1::PutOutputRequest>>,
    ) -> Result<Response<v1::PutOutputResponse>, Status> {
        Err(Status::failed_precondition("another version"))
    }

    async fn check(&self, _: Request<v1::CheckRequest>) -> Result<Response<v1::CheckResponse>, Status> {
        Ok(Response::new(v1::CheckResponse {
            protocol_version: PROTOCOL_VERSION + 1,
            server_version: "9.9.9".to_owned(),
            now: Some(std::time::SystemTime::now().into()),
        }))
    }
}

#[tokio::test]
async fn the_doctor_names_a_version_that_is_not_spoken() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let router = tonic::transport::Server::builder().add_service(AgentServiceServer::new(Newer));
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(router.serve_with_incoming(TcpListenerStream::new(listener)));
    let state = tempfile::tempdir().expect("a directory");
    std::fs::write(state.path().join("identity"), "8c5b1c1e-3f0e-4d57-9f3e-0c1b8c3c2f10\n").expect("written");
    let mut doctor = worker();
    doctor.args(["--unattended", "--server", &format!("http://{address}"), "--state-dir"]).arg(state.path());
    let finds = Finds::of(doctor).await;
    finds.is("version", 1, "speaks version 2");
    assert_eq!(finds.step("version")["advice"], "update this agent");
    assert_eq!(finds.step("clock")["outcome"], "ok", "{}", finds.report);
}
