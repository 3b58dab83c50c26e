//! A PostgreSQL whose clock steps, under real servers and agents.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pcfarm_bench::farm::{Farm, LONG, SOON};
use pcfarm_proto::v1::ExplainRequest;
use pcfarm_proto::v1::farm_service_client::FarmServiceClient;
use pcfarm_sql::cluster::{Cluster, ClusterOptions};
use pcfarm_sql::connect::connect;
use pcfarm_sql::testing;
use serde_json::json;

const PROVEN: &str = "select unproven_since is null from pcfarm.clock";
const UNPROVEN: &str = "select unproven_since is not null from pcfarm.clock";
/// A server looks every 5 s.
const LOOKED: Duration = Duration::from_secs(30);

/// A private PostgreSQL whose clock is moved by writing to a file.
struct Stepping {
    farm: Farm,
    clock: PathBuf,
    _cluster: Cluster,
    _directory: tempfile::TempDir,
}

impl Stepping {
    async fn start() -> Stepping {
        let library = library().expect("libfaketime: `apt-get install faketime`");
        let directory = tempfile::Builder::new()
            .prefix("pcfarm-clock-")
            .permissions(fs::Permissions::from_mode(0o711))
            .tempdir()
            .expect("a directory");
        let clock = directory.path().join("clock");
        fs::write(&clock, "+0").expect("written");
        let plain = testing::test_cluster_options();
        let programs = directory.path().join("bin");
        wrap(&programs, &library, &clock);
        let cluster = Cluster::start(ClusterOptions { programs: Some(programs), ..plain }).await.expect("a cluster");
        let farm = Farm::of(testing::database_on(cluster.config()).await);
        Stepping { farm, clock, _cluster: cluster, _directory: directory }
    }

    /// Moves the database's clock by so much from the real time.
    fn step(&self, to: &str) {
        fs::write(&self.clock, to).expect("written");
    }
}

/// A schedule whose triggers are problems of a standing job.
async fn schedule(farm: &Farm, recurrence: &str) {
    let job = farm.number("select pcfarm.create_job('standing', 'digest', '{\"standing\": true}')").await;
    farm.run(&format!(
        "select pcfarm.open_job({job}); select pcfarm.create_schedule('s', '{recurrence}', '{{\"job\": {job}}}')"
    ))
    .await;
}

fn library() -> Option<PathBuf> {
    let directories = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    directories.map(|directory| directory.join("faketime/libfaketimeMT.so.1")).find(|path| path.exists())
}

/// PostgreSQL's programs, which read their clock from a file. Deadlines go by the monotonic clock, which is left alone.
fn wrap(programs: &Path, library: &Path, clock: &Path) {
    let real = PathBuf::from(format!("/usr/lib/postgresql/{}/bin", newest()));
    fs::create_dir(programs).expect("made");
    fs::set_permissions(programs, fs::Permissions::from_mode(0o755)).expect("open to PostgreSQL's account");
    for name in ["initdb", "postgres", "pg_ctl"] {
        let script = format!(
            "#!/bin/sh\nexport LD_PRELOAD={} FAKETIME_TIMESTAMP_FILE={} FAKETIME_NO_CACHE=1\n\
             export FAKETIME_DONT_FAKE_MONOTONIC=1 DONT_FAKE_MONOTONIC=1\nexec {} \"$@\"\n",
            library.display(),
            clock.display(),
            real.join(name).display()
        );
        let path = programs.join(name);
        fs::write(&path, script).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
    }
}

fn newest() -> u32 {
    let installed =
        (15..=18).rev().find(|major| Path::new(&format!("/usr/lib/postgresql/{major}/bin/postgres")).exists());
    installed.expect("a PostgreSQL of the distribution")
}

/// A job of a type that is kept for an hour has ended. Ahead by two hours for some seconds, the clock removes nothing.
#[tokio::test]
async fn a_clock_that_is_ahead_for_seconds_removes_nothing_and_keeps_nobody_alive() {
    let stepping = Stepping::start().await;
    let farm = &stepping.farm;
    farm.job_type("digest", "digest", json!({"retention": "1 hour"})).await;
    let server = farm.serving("a", &[]).await;
    let mut agent = farm.working("desk", &[&server]);
    let kept = farm.submit_sleeps("digest", 20, 1, 10).await;
    assert_eq!(farm.ended(kept, LONG).await, "done");
    farm.until(LOOKED, PROVEN).await;
    schedule(farm, "every 1 hour").await;

    stepping.step("+7200");
    farm.until(LOOKED, UNPROVEN).await;
    // A sweep by the wrong clock.
    farm.until(LOOKED, "select hearing_since > heard_at - interval '1 minute' from pcfarm.server").await;
    assert_eq!(farm.number("select pcfarm.forget_old_job()").await, 0);
    stepping.step("+0");
    farm.until(LOOKED, "select step_seconds < -7000 from pcfarm.clock").await;

    assert_eq!(farm.number(&format!("select count(*) from pcfarm.result where job_id = {kept}")).await, 20);
    farm.until(SOON, "select hearing_since <= clock_timestamp() from pcfarm.server").await;
    farm.until(LOOKED, "select wake_at < clock_timestamp() + interval '61 minutes' from pcfarm.schedule_next").await;
    agent.kill();
    farm.until(SOON, "select state = 'dead' from pcfarm.workstation where hostname = 'desk'").await;
    farm.until(SOON, "select count(*) = 1 from pcfarm.event where what = 'clock unproven'").await;

    farm.run("select pcfarm.accept_clock()").await;
    farm.until(SOON, PROVEN).await;
    farm.until(SOON, "select count(*) = 1 from pcfarm.event where what = 'clock accepted'").await;
    farm.run("update pcfarm.job set ended_at = ended_at - interval '2 hours'").await;
    farm.until(LOOKED, &format!("select count(*) = 0 from pcfarm.job where job_id = {kept}")).await;
}

/// A clock was ahead while no server ran. A server that starts repairs the times that the clock wrote.
#[tokio::test]
async fn states_that_a_step_leaves_behind_are_recovered_by_a_server_that_starts() {
    let farm = Farm::new().await;
    farm.job_type("digest", "digest", json!({})).await;
    let mut gone = farm.serving("gone", &[]).await;
    let mut agent = farm.working("desk", &[&gone]);
    farm.until(SOON, "select count(*) = 1 from pcfarm.workstation").await;
    schedule(&farm, "@daily").await;
    farm.run("select pcfarm.create_schedule('ahead', 'every 1 hour', jsonb_build_object('job', (select max(job_id) from pcfarm.job)))")
        .await;
    farm.until(SOON, "select bool_and(due_at is not null) from pcfarm.schedule_next").await;
    gone.program.kill();
    agent.kill();
    farm.run(
        "update pcfarm.server set hearing_since = now() + interval '2 hours', heard_at = now() + interval '2 days';
         update pcfarm.workstation set silent_since = now() + interval '2 hours';
         update pcfarm.schedule_next set wake_at = now() + interval '3 years', due_at = now() + interval '3 years';
         update pcfarm.schedule set anchored_at = date_trunc('second', now() + interval '3 years') where name = 'ahead'",
    )
    .await;
    let _server = farm.serving("next", &[]).await;
    // A stored time of the day after tomorrow cannot be.
    farm.until(LOOKED, "select stored_until is not null from pcfarm.clock").await;
    farm.until(SOON, "select state = 'dead' from pcfarm.workstation").await;
    farm.until(LOOKED, "select max(wake_at) < now() + interval '25 hours' from pcfarm.schedule_next").await;
    // Made while the clock was ahead: its interval counts from now.
    farm.until(
        LOOKED,
        "select s.anchored_at <= now() and x.due_at between s.anchored_at and s.anchored_at + interval '1 hour' and x.version = s.version
         from pcfarm.schedule s join pcfarm.schedule_next x on x.schedule_id = s.schedule_id where s.name = 'ahead'",
    )
    .await;
}

/// Rows that a clock that was ahead may have written, and that a clock that is behind must not change.
const KEPT: &str = "select jsonb_build_object(
    'schedules', (select jsonb_agg(s order by s.schedule_id) from pcfarm.schedule s),
    'next', (select jsonb_agg(n order by n.schedule_id) from pcfarm.schedule_next n),
    'files', (select jsonb_agg(f order by f.file_id) from pcfarm.file f),
    'tokens', (select jsonb_agg(t order by t.join_token_id) from pcfarm.join_token t),
    'signals', (select jsonb_agg(s order by s.name) from pcfarm.signal s where s.name = 'load'))::text";
const TRIGGERED_TWICE: &str = include_str!("../../../sql/checks/schedules_trigger_once.sql");

/// A file and a token that were made just now, and an hourly schedule whose last due time is triggered at once.
async fn kept(farm: &Farm) -> String {
    schedule(farm, "0 * * * *").await;
    farm.until(SOON, "select due_at is not null from pcfarm.schedule_next").await;
    farm.run(
        "update pcfarm.schedule_next set due_at = date_trunc('hour', clock_timestamp()), wake_at = clock_timestamp();
         insert into pcfarm.file (sha256, bytes) values (sha256('1'), 1);
         insert into pcfarm.join_token (hash, expires_at, uses_left) values (sha256('3'), clock_timestamp() + interval '1 day', 1);
         insert into pcfarm.signal (name, value, said_at) values ('load', 1, clock_timestamp())",
    )
    .await;
    farm.until(LOOKED, "select last_due_at is not null from pcfarm.schedule_next").await;
    farm.account(KEPT).await.get(0)
}

/// The servers have looked at the clock and at the schedules by the present clock.
async fn seconds_of_looks(farm: &Farm, seconds: u32) {
    let checked: String = farm.account("select checked_at::text from pcfarm.clock").await.get(0);
    let later = format!("select checked_at > timestamptz '{checked}' + interval '{seconds} seconds' from pcfarm.clock");
    farm.until(LOOKED, &later).await;
}

/// Behind by three hours for some seconds: rows that were stored before seem to lie in the future.
#[tokio::test]
async fn a_clock_that_is_behind_for_seconds_changes_no_row_and_triggers_nothing_twice() {
    let stepping = Stepping::start().await;
    let farm = &stepping.farm;
    farm.job_type("digest", "digest", json!({})).await;
    let _server = farm.serving("a", &[]).await;
    farm.until(LOOKED, PROVEN).await;
    let before = kept(farm).await;

    stepping.step("-10800");
    farm.until(LOOKED, "select step_seconds < -10000 and moved_seconds < -10000 from pcfarm.clock").await;
    seconds_of_looks(farm, 6).await;
    assert_eq!(farm.account(KEPT).await.get::<_, String>(0), before);
    stepping.step("+0");
    farm.until(LOOKED, "select step_seconds > 10000 and moved_seconds > -5 from pcfarm.clock").await;
    seconds_of_looks(farm, 6).await;
    assert_eq!(farm.query(TRIGGERED_TWICE, &[]).await.len(), 0);
    let hour_ended = farm.number("select sequence - 1 from pcfarm.schedule_next").await > 0;
    assert!(hour_ended || farm.account(KEPT).await.get::<_, String>(0) == before);
}

/// A server starts before the machine has the time from the network.
#[tokio::test]
async fn a_server_that_starts_in_the_year_2000_changes_no_row() {
    let stepping = Stepping::start().await;
    let farm = &stepping.farm;
    farm.job_type("digest", "digest", json!({})).await;
    let mut server = farm.serving("a", &[]).await;
    farm.until(LOOKED, PROVEN).await;
    let before = kept(farm).await;
    server.program.kill();

    stepping.step("-820000000");
    let _server = farm.serving("b", &[]).await;
    farm.until(LOOKED, "select stored_until is not null and moved_seconds < -800000000 from pcfarm.clock").await;
    seconds_of_looks(farm, 6).await;
    assert_eq!(farm.account(KEPT).await.get::<_, String>(0), before);
    stepping.step("+0");
    farm.until(LOOKED, "select moved_seconds > -5 from pcfarm.clock").await;
    assert_eq!(farm.query(TRIGGERED_TWICE, &[]).await.len(), 0);
    let hour_ended = farm.number("select sequence - 1 from pcfarm.schedule_next").await > 0;
    assert!(hour_ended || farm.account(KEPT).await.get::<_, String>(0) == before);
}

/// Ahead for some seconds, the clock triggered due times of the afternoon.
#[tokio::test]
async fn due_times_that_were_triggered_early_are_known_when_the_clock_is_back() {
    let stepping = Stepping::start().await;
    let farm = &stepping.farm;
    farm.job_type("digest", "digest", json!({})).await;
    let _server = farm.serving("a", &[]).await;
    farm.until(LOOKED, PROVEN).await;
    schedule(farm, "0 * * * *").await;
    farm.until(SOON, "select due_at is not null from pcfarm.schedule_next").await;
    stepping.step("+18000");
    farm.until(LOOKED, "select last_due_at is not null from pcfarm.schedule_next").await;
    farm.until(LOOKED, "select moved_seconds > 10000 from pcfarm.clock").await;
    stepping.step("+0");
    farm.until(LOOKED, "select due_at < clock_timestamp() + interval '1 hour' and early = array[last_due_at] from pcfarm.schedule_next").await;
}

/// The server whose clock differed was killed. The next server has another id, and a clock that agrees.
#[tokio::test]
async fn a_killed_server_whose_clock_differed_leaves_the_clock_provable() {
    let farm = Farm::new().await;
    farm.run(
        "insert into pcfarm.server (name, address, version, heard_at, hearing_since)
         values ('killed', 'nowhere:1', '0', clock_timestamp() - interval '2 minutes', clock_timestamp() - interval '1 hour');
         update pcfarm.clock set checked_at = clock_timestamp(), unproven_since = clock_timestamp(), difference_seconds = 90,
             difference_until = clock_timestamp() + interval '1 hour',
             difference_server = (select s.server_id from pcfarm.server s where s.name = 'killed')",
    )
    .await;
    let _server = farm.serving("next", &[]).await;
    farm.until(LOOKED, PROVEN).await;
}

/// The database was two hours behind, and its clock is corrected while a checkout with a time limit is out.
#[tokio::test]
async fn a_step_ahead_that_lasts_revokes_no_checkout_from_before_it() {
    let stepping = Stepping::start().await;
    let farm = &stepping.farm;
    farm.job_type("digest", "digest", json!({"time_limit": "1 hour"})).await;
    let server = farm.serving("a", &[]).await;
    farm.until(LOOKED, "select pcfarm.clock_is_proven() and checked_at is not null from pcfarm.clock").await;
    let _agent = farm.working("desk", &[&server]);
    let job = farm.submit_sleeps("digest", 1, 12_000, 1).await;
    farm.until(SOON, "select count(*) = 1 from pcfarm.checkout where deadline is not null and ended_at is null").await;

    stepping.step("+7200");
    farm.until(LOOKED, "select step_seconds > 7000 from pcfarm.clock").await;
    let mut client = FarmServiceClient::connect(server.url()).await.expect("connected");
    let asked = ExplainRequest { job_id: job.0, workstation_id: 0 };
    let reasons = client.explain(asked).await.expect("explained").into_inner().reasons;
    assert!(reasons.iter().any(|reason| reason.contains("no checkout is revoked for its time limit")), "{reasons:?}");
    // The ten minutes after a step are over. The difference from the server's clock does not matter to time limits.
    farm.run("select pcfarm.accept_clock()").await;
    assert_eq!(farm.number("select count(*) from pcfarm.checkout where deadline < clock_timestamp()").await, 1);
    assert_eq!(farm.ended(job, LONG).await, "done");
    assert_eq!(farm.number("select count(*) from pcfarm.checkout where ending = 'revoked'").await, 0);
}

/// Another transaction holds the state of the clock while a server starts.
#[tokio::test]
async fn a_locked_clock_stops_removals_and_nothing_else() {
    let farm = Farm::new().await;
    farm.job_type("digest", "digest", json!({"retention": "1 hour"})).await;
    let old = farm.submit_sleeps("digest", 1, 1, 1).await;
    farm.run(&format!(
        "select pcfarm.cancel_job({old});
         update pcfarm.job set ended_at = ended_at - interval '2 hours';
         update pcfarm.clock set checked_at = clock_timestamp() - interval '1 hour'"
    ))
    .await;
    let (other, _connection) = connect(farm.config()).await.expect("connected");
    other.batch_execute("begin; select from pcfarm.clock for update").await.expect("locked");

    let server = farm.serving("a", &[]).await;
    let mut agent = farm.working("desk", &[&server]);
    let job = farm.submit_sleeps("digest", 20, 1, 10).await;
    assert_eq!(farm.ended(job, LONG).await, "done");
    agent.kill();
    farm.until(SOON, "select state = 'dead' from pcfarm.workstation where hostname = 'desk'").await;
    assert_eq!(farm.number("select pcfarm.forget_old_job()").await, 0);
    assert_eq!(farm.number(&format!("select count(*) from pcfarm.job where job_id = {old}")).await, 1);

    other.batch_execute("rollback").await.expect("released");
    farm.until(LOOKED, "select pcfarm.clock_is_proven()").await;
    farm.until(LOOKED, &format!("select count(*) = 0 from pcfarm.job where job_id = {old}")).await;
}
