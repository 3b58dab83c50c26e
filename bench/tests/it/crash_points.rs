//! Every program crashes at every point around a commit, in the middle of work, and is started again: nothing is lost or
//! doubled, wherever it was.

use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::time::Duration;

use crate::receiver::{self, Receiver};
use pcfarm_bench::asking::Asked;
use pcfarm_bench::farm::{Farm, LEASE, LONG, SOON, Server};
use pcfarm_bench::light::{Delivered, Herd, Manner, Pace, Work};
use pcfarm_bench::program::Program;
use pcfarm_bench::schedules::{self, Due};
use pcfarm_faults::CrashPoint;
use pcfarm_proto::files::{FILE_PIECE_BYTES, FileHash};
use pcfarm_proto::v1;
use pcfarm_proto::v1::file_service_client::FileServiceClient;
use pcfarm_proto::v1::job_service_client::JobServiceClient;
use pcfarm_proto::v1::problem_result::Outcome;
use pcfarm_proto::v1::{PutFile, put_file};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

/// SIGABRT.
const ABORTED: i32 = 6;

const PATIENCE: Duration = Duration::from_secs(5);

macro_rules! crashes {
    ($($name:ident: $point:ident by $scenario:ident;)+) => {
        const TESTED: &[CrashPoint] = &[$(CrashPoint::$point,)+];

        $(#[tokio::test]
        async fn $name() {
            $scenario(CrashPoint::$point).await;
        })+
    };
}

crashes! {
    a_server_before_it_commits_a_submission: SubmissionCame by a_server;
    a_server_after_it_has_committed_a_submission: SubmissionCommitted by a_server;
    a_server_before_it_commits_an_upload: UploadLoaded by a_server;
    a_server_after_it_has_committed_an_upload: UploadCommitted by a_server;
    a_server_after_it_has_cancelled_a_job: JobChanged by a_server;
    a_server_after_it_has_registered_a_workstation: WorkstationConnected by a_server;
    a_server_before_it_commits_a_hand_out: CheckOutDecided by a_server;
    a_server_after_it_has_committed_a_hand_out: CheckOutCommitted by a_server;
    a_server_after_it_has_sent_a_checkout: CheckOutSent by a_server;
    a_server_before_it_stores_results: ResultsCame by a_server;
    a_server_after_it_has_stored_results: ResultsCommitted by a_server;
    a_server_after_it_has_stored_some_of_the_results: HalfOfResultsCommitted by a_server;
    a_server_after_it_has_closed_what_was_handed_back: CheckoutHandedBack by a_server;
    a_server_after_it_has_taken_unbegun_problems_back: ProblemsHandedBack by a_server;
    a_server_after_it_has_acknowledged_results: ResultsAcknowledged by a_server;
    a_server_after_it_has_marked_lanes_as_exhausted: LanesExhausted by a_server;
    a_server_after_it_has_ended_a_job: JobEnded by a_server;
    a_server_after_it_has_taken_alerts: AlertsClaimed by a_server_that_tells;
    a_server_after_it_has_delivered_an_alert: AlertDelivered by a_server_that_tells;
    a_server_after_it_has_claimed_schedules: SchedulesClaimed by a_server_that_ticks;
    a_server_before_it_commits_a_tick: SchedulesTriggered by a_server_that_ticks;
    a_server_after_it_has_committed_a_tick: TickCommitted by a_server_that_ticks;
    a_server_before_it_commits_a_schedules_load: ScheduleLoaded by a_server_that_ticks;
    a_server_after_its_pulse: Pulsed by a_server;
    a_server_after_it_has_folded_counts: ProgressFolded by a_server;
    a_server_after_it_has_marked_a_workstation_as_silent: SilenceMarked by a_server_of_a_silent_agent;
    a_server_after_it_has_taken_back_what_an_agent_lacks: WorkstationSettled by a_server_of_an_agent_that_lacks_a_checkout;
    a_server_after_it_has_taken_back_what_never_arrived: UnreceivedTakenBack by a_server_of_an_agent_that_never_got_a_checkout;
    a_recycler_after_it_has_declared_workstations_dead: WorkstationsDeclaredDead by a_recycler;
    a_recycler_after_it_has_revoked_checkouts: CheckoutsRevoked by a_recycler;
    an_agent_that_has_received_a_checkout: CheckoutReceived by an_agent;
    an_agent_that_has_solved_problems: ProblemsSolved by an_agent;
    an_agent_that_has_delivered_results: ResultsDelivered by an_agent;
    an_agent_that_was_told_that_its_results_are_stored: AcknowledgementCame by an_agent;
    a_server_that_has_stored_a_piece_of_a_file: FilePieceStored by a_server_that_is_given_a_file;
    a_server_that_has_stored_a_file: FileStored by a_server_that_is_given_a_file;
    a_server_that_has_stored_a_piece_of_what_a_problem_made: FilePieceStored by a_server_of_problems_that_make_files;
    a_server_that_has_stored_what_a_problem_made: FileStored by a_server_of_problems_that_make_files;
    an_agent_that_has_fetched_a_file: FileFetched by an_agent_of_problems_that_make_files;
    an_agent_that_has_sent_what_a_problem_made: OutputSent by an_agent_of_problems_that_make_files;
}

#[test]
fn every_point_is_tested() {
    for point in CrashPoint::ALL {
        assert!(TESTED.contains(point), "{}", point.name());
    }
}

/// A job under a key, in one message and so in one statement or as an upload.
fn asked(key: &str, job_type: &str, at_once: bool) -> Asked {
    let payload = |n: u32| json!({"n": n, "ms": 5, "fails": u32::from(job_type == "flaky" && n.is_multiple_of(5))});
    Asked::new(key, job_type, 3, (0..20).map(payload).collect(), !at_once)
}

async fn a_farm() -> Farm {
    let farm = Farm::new().await;
    for name in ["plain", "flaky"] {
        farm.job_type(name, "digest", json!({"max_attempts": 20})).await;
    }
    farm.job_type("strange", "strange", json!({"max_attempts": 1})).await;
    farm.job_type("nobodys", "nobodys", json!({})).await;
    farm
}

fn crashing(program: Program, point: CrashPoint) -> Program {
    program.environment("PCFARM_CRASH_AT", point.name())
}

/// Waits until it has crashed as it was told to.
async fn crashed(program: &mut Program, point: CrashPoint, within: Duration) {
    let status = program.ended(within).await;
    assert_eq!(status.signal(), Some(ABORTED), "{}", program.log());
    assert!(program.log().contains(&format!("crashing at {}", point.name())));
}

/// Everything ends, and as it should.
async fn all_is_well(farm: &Farm) {
    farm.until(LONG, "select count(*) = 0 from pcfarm.job where ended_at is null and job_type <> 'nobodys'").await;
    farm.until(SOON, "select count(*) = 0 from pcfarm.checkout where ended_at is null").await;
    farm.check(&[]).await;
    let lost = "select count(*) from pcfarm.job where state = 'failed' and job_type <> 'strange'";
    assert_eq!(farm.number(lost).await, 0, "{}", farm.state().await);
}

/// Solves some of its problems to what no database can store.
#[derive(Debug)]
struct Strange;

impl Work for Strange {
    fn controller(&self) -> &'static str {
        "strange"
    }

    fn manner(&self, agent: usize) -> Manner {
        if agent.is_multiple_of(2) { Manner::Repeats } else { Manner::Honest }
    }

    fn solve(&self, _author: &str, _checkout_id: i64, problem: &v1::Problem) -> Outcome {
        let storable = problem.problem_id % 4 != 0;
        Outcome::Solution(if storable { "true" } else { r#""\u0000""# }.into())
    }

    fn told(&self, _delivered: Delivered, _accepted: bool) {}
}

/// A server that crashes when something is told: it is told by the next one, and the receiver knows it by its id.
async fn a_server_that_tells(point: CrashPoint) {
    let farm = a_farm().await;
    let mut receiver = Receiver::start(&[]).await;
    let options = json!({"webhook": receiver.url, "secret": receiver::SECRET}).to_string();
    farm.query("select pcfarm.subscribe($1::text::jsonb)", &[&options]).await;
    let Server { program, port } = farm.server("a", &[]);
    let mut server = Server { program: crashing(program, point), port };
    server.start().await;
    let job = farm.submit_sleeps("plain", 1, 1, 1).await;
    farm.query("select pcfarm.cancel_job($1)", &[&job]).await;
    crashed(&mut server.program, point, LONG).await;
    let _next = farm.serving("b", &[]).await;
    farm.run("update pcfarm.alert set next_attempt_at = now(); notify pcfarm, 'alert'").await;
    farm.until(SOON, "select count(*) = 1 from pcfarm.alert where delivered_at is not null and attempts = 2").await;
    let posts = if point == CrashPoint::AlertDelivered { 2 } else { 1 };
    assert_eq!(receiver.different(posts).await, 1);
}

/// A server that crashes while it triggers schedules, and loads what one of them has made.
async fn a_server_that_ticks(point: CrashPoint) {
    let farm = a_farm().await;
    let reader = format!("{}_r", farm.query("select current_database()::text", &[]).await[0].get::<_, String>(0));
    farm.run(&format!("create role {reader} login")).await;
    farm.job_type("made", "nobodys", json!({"read_role": reader})).await;
    let standing = schedules::standing_job(&farm).await;
    let template = json!({"template": {"job_type": "made", "loads": [
        {"query": "select n::text as key, to_jsonb(n) as payload from generate_series(1, 10) n"}]}});
    farm.query("select pcfarm.create_schedule('makes', 'every 1 day', $1::text::jsonb)", &[&template.to_string()])
        .await;
    farm.run("select pcfarm.trigger_schedule('makes')").await;
    schedules::make(&farm, standing, 50, 1, Due::Spread, 1).await;
    let Server { program, port } = farm.server("a", &[]);
    let mut server = Server { program: crashing(program, point), port };
    server.program.start();
    crashed(&mut server.program, point, SOON).await;
    server.program = server.program.without_environment("PCFARM_CRASH_AT");
    // What a crash left is another's when the time of whoever had it is over.
    farm.run("update pcfarm.schedule_load set next_attempt_at = clock_timestamp() where loaded_at is null").await;
    server.start().await;
    farm.until(SOON, "select min(sequence) > 2 from pcfarm.schedule_next x join pcfarm.schedule s using (schedule_id) where s.job_id is not null").await;
    farm.until(SOON, "select count(*) = 1 from pcfarm.job where job_type = 'made' and state = 'open'").await;
    schedules::stop(&farm).await;
    let account = schedules::account(&farm, standing, 1).await;
    assert_eq!((account.lost, account.doubled, account.miscounted), (0, 0, 0));
    assert_eq!(
        farm.number("select count(*) from pcfarm.problem p join pcfarm.job j using (job_id) where j.job_type = 'made'")
            .await,
        10
    );
    farm.check(&[]).await;
    server.program.kill();
    farm.run(&format!("drop role {reader}")).await;
}

/// A server that crashes while jobs are submitted, computed, cancelled and brought to their ends.
async fn a_server(point: CrashPoint) {
    let farm = a_farm().await;
    let Server { program, port } = farm.server("a", &[]);
    let mut server = Server { program: crashing(program, point), port };
    server.program.start();
    let _agent = farm.working("agent", &[&server]);
    let herd = Herd::start(&[server.url()], 2, Arc::new(Strange));
    herd.pace(Pace { draw: true, spread: Duration::ZERO, hold: Duration::from_millis(20) });
    let mut all: Vec<Asked> = Vec::new();
    let deadline = Instant::now() + LONG;
    while server.program.runs() {
        assert!(Instant::now() < deadline, "it never came to {}", point.name());
        for (job_type, at_once) in [("plain", true), ("flaky", false), ("strange", true), ("plain", true)] {
            let mut one = asked(&format!("job {}", all.len()), job_type, at_once);
            one.ask(&server.url()).await;
            all.push(one);
        }
        // The last one is cancelled.
        if let Some(job_id) = all.last().and_then(|asked| asked.job)
            && let Ok(mut client) = JobServiceClient::connect(server.url()).await
        {
            drop(timeout(PATIENCE, client.cancel_job(v1::JobRequest { job_id })).await);
        }
        sleep(Duration::from_millis(100)).await;
    }
    crashed(&mut server.program, point, SOON).await;
    server.program = server.program.without_environment("PCFARM_CRASH_AT");
    server.start().await;
    for one in &mut all {
        one.ask_again(&server.url(), LONG).await;
    }
    let (jobs, problems) = (all.len(), all.iter().map(|asked| asked.problems).sum::<usize>());
    let there = (
        farm.number("select count(*) from pcfarm.job").await,
        farm.number("select count(*) from pcfarm.problem").await,
    );
    assert_eq!(there, (jobs as i64, problems as i64));
    all_is_well(&farm).await;
}

/// One whose agent stands still.
async fn a_server_of_a_silent_agent(point: CrashPoint) {
    let farm = a_farm().await;
    let Server { program, port } = farm.server("a", &[]);
    let mut server = Server { program: crashing(program, point), port };
    server.start().await;
    let mut agent = farm.working("agent", &[&server]);
    let job = farm.submit_sleeps("plain", 500, 10, 5).await;
    farm.finished(job, 20, SOON).await;
    agent.freeze();
    crashed(&mut server.program, point, SOON).await;
    server.program = server.program.without_environment("PCFARM_CRASH_AT");
    server.start().await;
    farm.until(SOON, "select state = 'dead' from pcfarm.workstation").await;
    agent.thaw();
    all_is_well(&farm).await;
}

/// A checkout of the workstation that its agent has never heard of.
const UNHEARD_OF: &str = "
    insert into pcfarm.checkout (job_id, lane_id, job_type, from_order, to_order, problems, workstation_id, token)
    select j.job_id, l.lane_id, j.job_type, 0, 1, 5, w.workstation_id, 4711
    from pcfarm.job j join pcfarm.lane l on l.job_id = j.job_id and l.kind = 'load', pcfarm.workstation w
    where j.job_type = 'nobodys'";

const TAKEN_BACK: &str = "select count(*) = 5 from pcfarm.requeued where message = 'never received by its workstation'";

async fn a_server_of_an_agent_that_lacks_a_checkout(point: CrashPoint) {
    let farm = a_farm().await;
    farm.submit_sleeps("nobodys", 10, 0, 5).await;
    let Server { program, port } = farm.server("a", &[]);
    let mut server = Server { program, port };
    server.start().await;
    let _agent = farm.working("agent", &[&server]);
    farm.until(SOON, "select count(*) = 1 from pcfarm.workstation").await;
    server.program.kill();
    farm.run(UNHEARD_OF).await;
    server.program = crashing(server.program, point);
    server.program.start();
    crashed(&mut server.program, point, SOON).await;
    farm.until(SOON, TAKEN_BACK).await;
    server.program = server.program.without_environment("PCFARM_CRASH_AT");
    server.start().await;
    farm.submit_sleeps("plain", 50, 1, 5).await;
    all_is_well(&farm).await;
}

async fn a_server_of_an_agent_that_never_got_a_checkout(point: CrashPoint) {
    let farm = a_farm().await;
    farm.submit_sleeps("nobodys", 10, 0, 5).await;
    let Server { program, port } = farm.server("a", &[]);
    let mut server = Server { program: crashing(program, point), port };
    server.start().await;
    let _agent = farm.working("agent", &[&server]);
    farm.until(SOON, "select count(*) = 1 from pcfarm.workstation").await;
    farm.run(UNHEARD_OF).await;
    crashed(&mut server.program, point, SOON).await;
    farm.until(SOON, TAKEN_BACK).await;
    server.program = server.program.without_environment("PCFARM_CRASH_AT");
    server.start().await;
    farm.submit_sleeps("plain", 50, 1, 5).await;
    all_is_well(&farm).await;
}

/// Two pieces and a bit.
fn model() -> Vec<u8> {
    (0..2_500_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

async fn put(server: &Server) -> Result<v1::File, tonic::Status> {
    let beginning = PutFile { part: Some(put_file::Part::Beginning(put_file::Beginning::default())) };
    let content = model();
    let pieces = content.chunks(FILE_PIECE_BYTES).map(|piece| put_file::Part::Content(piece.to_vec().into()));
    let messages: Vec<PutFile> =
        std::iter::once(beginning).chain(pieces.map(|part| PutFile { part: Some(part) })).collect();
    let client = FileServiceClient::connect(server.url()).await;
    let mut client = client.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
    Ok(client.put(tokio_stream::iter(messages)).await?.into_inner())
}

async fn a_server_that_is_given_a_file(point: CrashPoint) {
    let farm = a_farm().await;
    let Server { program, port } = farm.server("a", &[]);
    let mut server = Server { program: crashing(program, point), port };
    server.start().await;
    put(&server).await.expect_err("it was not acknowledged");
    crashed(&mut server.program, point, SOON).await;
    server.program = server.program.without_environment("PCFARM_CRASH_AT");
    server.start().await;
    let again = put(&server).await.expect("put");
    assert_eq!(again.repeated, point == CrashPoint::FileStored);
    assert_eq!(farm.number("select count(*) from pcfarm.file where sha256 is not null").await, 1);
    assert_eq!(farm.number("select sum(bytes)::bigint from pcfarm.file_usage").await, 2_500_000);
    // What was left half done is nobody's, and goes.
    farm.run("update pcfarm.file set touched_at = touched_at - interval '2 hours'").await;
    farm.until(LONG, "select count(*) = 1 from pcfarm.file").await;
    assert_eq!(farm.number("select count(*) from pcfarm.file_piece").await, 3);
}

/// A job whose problems read a file and make two each, and an agent with the program for it.
async fn of_files(farm: &Farm, server: &Server) -> Program {
    let settings = farm.path("programs.toml");
    let program = "[[program]]\nname = \"make\"\nmode = \"one-shot\"\npath = \"/bin/sh\"\noutputs = [\"*.out\"]\ntrusted = true\n\
        args = [\"-c\", 'cp model.bin same.out && echo \"$1\" > own.out', \"make\", \"{key}\"]\n";
    std::fs::write(&settings, program).expect("written");
    let file = put(server).await.expect("put");
    let hash = FileHash::try_from(&file.sha256[..]).expect("a hash").to_string();
    farm.job_type("makes", "exec:make", json!({"max_attempts": 20})).await;
    farm.run(&format!(
        "select pcfarm.create_job('files', 'makes', '{{\"files\": {{\"model.bin\": \"{hash}\"}}}}');
         select pcfarm.load(max(job_id), 'select g::text as key, to_jsonb(g) as payload from generate_series(1, 12) g', 3),
             pcfarm.open_job(max(job_id)) from pcfarm.job"
    ))
    .await;
    let agent = farm.agent("makes", &[server]);
    agent
        .arguments(["--config".as_ref(), settings.as_os_str()])
        .arguments(["--work-dir".as_ref(), farm.path("makes.work").as_os_str()])
}

/// All that solutions name is there, under their problems.
async fn files_are_all_there(farm: &Farm) {
    all_is_well(farm).await;
    let named = "select count(*) from pcfarm.result r cross join lateral jsonb_each(r.solution -> 'files') f";
    assert_eq!(farm.number(named).await, 2 * 12, "{}", farm.state().await);
    let missing = "
        where not exists (
            select from pcfarm.output o join pcfarm.file x on x.sha256 = o.sha256
            where o.job_id = r.job_id and o.problem_id = r.problem_id and o.name = f.key
                and encode(o.sha256, 'hex') = f.value ->> 'sha256' and x.bytes = (f.value ->> 'bytes')::bigint
                and x.bytes = (select sum(length(p.content)) from pcfarm.file_piece p where p.file_id = x.file_id))";
    assert_eq!(farm.number(&format!("{named} {missing}")).await, 0);
    let counted = "
        select (select sum(bytes) from pcfarm.file_usage)::bigint
            - (select sum(bytes) from (select bytes from pcfarm.output union all select bytes from pcfarm.file_holder) x)::bigint";
    assert_eq!(farm.number(counted).await, 0);
}

async fn a_server_of_problems_that_make_files(point: CrashPoint) {
    let farm = a_farm().await;
    let mut server = farm.serving("a", &[]).await;
    let mut agent = of_files(&farm, &server).await;
    server.program.kill();
    server.program = crashing(server.program, point);
    server.start().await;
    agent.start();
    for _ in 0..2 {
        crashed(&mut server.program, point, SOON).await;
        server.program.kill(); // it is gone; this forgets how
        server.start().await;
    }
    crashed(&mut server.program, point, SOON).await;
    server.program = server.program.without_environment("PCFARM_CRASH_AT");
    server.start().await;
    files_are_all_there(&farm).await;
}

async fn an_agent_of_problems_that_make_files(point: CrashPoint) {
    let farm = a_farm().await;
    let server = farm.serving("a", &[]).await;
    let mut agent = crashing(of_files(&farm, &server).await, point);
    agent.start();
    crashed(&mut agent, point, SOON).await;
    let mut agent = agent.without_environment("PCFARM_CRASH_AT");
    agent.start();
    files_are_all_there(&farm).await;
}

/// One that has an agent's work to requeue, with servers that leave that to it.
async fn a_recycler(point: CrashPoint) {
    let farm = a_farm().await;
    let server = farm.serving("a", &["--no-recycler"]).await;
    let mut killed = farm.working("killed", &[&server]);
    let _lives = farm.working("lives", &[&server]);
    let job = farm.submit_sleeps("plain", 600, 10, 5).await;
    farm.finished(job, 50, SOON).await;
    killed.kill();
    let mut recycler = crashing(farm.recycler("crashes", &["--every", "0.2"]), point);
    recycler.start();
    crashed(&mut recycler, point, LEASE * 2 + SOON).await;
    let mut recycler = recycler.without_environment("PCFARM_CRASH_AT");
    recycler.start();
    all_is_well(&farm).await;
    assert!(farm.progress(job).await.2 > 0, "nothing was in its hands");
}

/// One that is started again each time.
async fn an_agent(point: CrashPoint) {
    let farm = a_farm().await;
    let server = farm.serving("a", &[]).await;
    let mut agent = crashing(farm.agent("crashes", &[&server]), point);
    agent.start();
    farm.submit_sleeps("plain", 400, 5, 5).await;
    farm.submit_sleeps("flaky", 100, 5, 5).await;
    for _ in 0..2 {
        crashed(&mut agent, point, SOON).await;
        agent.kill(); // it is gone; this forgets how
        agent.start();
    }
    crashed(&mut agent, point, SOON).await;
    let mut agent = agent.without_environment("PCFARM_CRASH_AT");
    agent.start();
    all_is_well(&farm).await;
}
