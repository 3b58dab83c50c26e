//! What problems require of workstations: how it is written, what is refused, and what is said of jobs that nothing could run.

use crate::queue::{Queue, queue};
use pcfarm_proto::ids::{BatchOrder, JobId, WorkstationId};
use pcfarm_sql::checkout::{self, HandOut};
use pcfarm_sql::{farm, jobs, upkeep};

/// The farm's three workstations as these rows say, in the order of their ids, each with controller `c`.
async fn with(queue: &Queue, facts: [&str; 3]) {
    for (id, facts) in (1..).zip(facts) {
        queue.run(&format!("update pcfarm.workstation set {facts} where workstation_id = {id}")).await;
    }
}

async fn submitted(queue: &Queue, job_type: &str, require: &str) -> JobId {
    let query = format!(
        "select pcfarm.submit('j', '{job_type}', 'select ''k'' || g as key, to_jsonb(g) as payload from generate_series(1, 4) g', 2,
             '{{\"require\": {require}}}')"
    );
    JobId(queue.number(&query).await)
}

async fn nowhere(queue: &Queue, job: JobId) -> Vec<String> {
    jobs::get(&*queue.server().await, job).await.expect("read").expect("there").nowhere
}

async fn events(queue: &Queue) -> Vec<String> {
    let text = "select coalesce(string_agg(what || ' ' || job_id, ', ' order by event_id), '') from pcfarm.event
        where what in ('job without workstation', 'job with workstation')";
    queue.text(text).await.split(", ").filter(|event| !event.is_empty()).map(str::to_owned).collect()
}

#[tokio::test]
async fn conditions_are_kept_in_one_form() {
    let queue = queue().await;
    for (given, kept) in [
        ("memory >= 8 GiB", "memory >= 8 GiB"),
        ("  Memory>=8192MiB ", "memory >= 8 GiB"),
        ("memory < 1.5 TB", "memory < 1500 GB"),
        ("memory != 1 B", "memory != 1 B"),
        ("memory > 3 kB", "memory > 3000 B"),
        ("cores>4", "cores > 4"),
        ("cores == 04", "cores = 4"),
        ("cores <> 4", "cores != 4"),
        ("gpu", "gpu"),
        ("gpus >= 1", "gpu"),
        ("gpus <= 2", "gpus <= 2"),
        ("gpu = NVIDIA", "gpu = nvidia"),
        ("system = Linux", "system = linux"),
        ("system != darwin", "system != macos"),
        ("arch = amd64", "arch = x86_64"),
        ("arch != arm64", "arch != aarch64"),
        ("label = lab-a", "label = lab-a"),
        ("label != disk=ssd", "label != disk=ssd"),
        ("label = Room", "label = Room"),
        ("program = minizinc", "program = minizinc"),
        ("program != minizinc", "program != minizinc"),
        ("program = minizinc>=2.8", "program = minizinc >= 2.8"),
    ] {
        let text = format!("select pcfarm.condition_text(pcfarm.condition('{given}'))");
        assert_eq!(queue.text(&text).await, kept, "{given}");
        // What is shown can be given again.
        let again = format!("select (pcfarm.condition('{kept}') = pcfarm.condition('{given}'))::text");
        assert_eq!(queue.text(&again).await, "true", "{given}");
    }
    let several = r#"select pcfarm.requirement('["memory >= 8 GiB", "gpu", "memory >= 8192 MiB"]')::text"#;
    assert_eq!(
        queue.text(several).await,
        r#"[{"is": ">=", "fact": "gpus", "value": 1}, {"is": ">=", "fact": "memory", "value": 8589934592}]"#
    );
    assert_eq!(queue.text("select pcfarm.requirement('[]')::text").await, "");
}

#[tokio::test]
async fn what_is_no_condition_is_refused_and_says_what_is() {
    let queue = queue().await;
    for (given, why) in [
        (r#"["memory >= 8"]"#, "condition 'memory >= 8': 8 is no size: write a number and KiB, MiB, GiB or TiB"),
        (r#"["memory >= 8 GB GB"]"#, "is no size"),
        (r#"["memory >= -8 GiB"]"#, "is no size"),
        (r#"["memory >= 9999999 TiB"]"#, "is no size"),
        (r#"["cores >= many"]"#, "condition 'cores >= many': many is no whole number"),
        (r#"["cores"]"#, "say what cores is to be"),
        (r#"["colour = red"]"#, "condition 'colour = red': agents do not report colour"),
        (r#"["label > a"]"#, "label is a name, which is or is not: use = or !="),
        (r#"["arch = "]"#, "nothing stands behind ="),
        (r#"["label = two words"]"#, "two words is no name"),
        (r#"["program = x >= new"]"#, "new is no version: it is like 2.8.5"),
        (r#"["program != x >= 2"]"#, "a version is at least of a program that is there"),
        (r#"["gpu", "??"]"#, "condition '??': it is not like memory >= 8 GiB"),
        (r#"["gpu", 4]"#, "condition '4': it is no text"),
        (r#""gpu""#, "a list of conditions is wanted, and not \"gpu\""),
    ] {
        for statement in [
            format!("select pcfarm.create_job_type('n', 'c', '{{\"require\": {given}}}')"),
            format!("select pcfarm.create_job('n', 't', '{{\"require\": {given}}}')"),
            format!("select pcfarm.update_job(pcfarm.create_job('n', 't'), '', '{{\"require\": {given}}}')"),
        ] {
            let (state, message) = queue.refused(&statement).await;
            assert_eq!(state, "22023", "{given}: {message}");
            assert!(message.starts_with("require: ") && message.contains(why), "{given}: {message}");
        }
    }
    let many: Vec<String> = (0..21).map(|n| format!("\"cores > {n}\"")).collect();
    let statement = format!("select pcfarm.create_job('n', 't', '{{\"require\": [{}]}}')", many.join(","));
    assert!(queue.refused(&statement).await.1.contains("more than 20"));
    assert_eq!(queue.number("select count(*) from pcfarm.job").await, 0);
}

#[tokio::test]
async fn a_requirement_stays_until_it_is_changed_and_comes_along() {
    let queue = queue().await;
    let of_type = "select array_to_string(pcfarm.conditions(requirement), ', ') from pcfarm.job_type where name = 't'";
    queue.run(r#"select pcfarm.set_job_type('t', '{"require": ["cores >= 2", "gpu"]}')"#).await;
    queue.run(r#"select pcfarm.set_job_type('t', '{"max_attempts": 2}')"#).await;
    assert_eq!(queue.text(of_type).await, "cores >= 2, gpu");
    queue.run(r#"select pcfarm.set_job_type('t', '{"labels": ["x"]}')"#).await;
    let job = submitted(&queue, "t", r#"["cores >= 4"]"#).await;
    let lane = queue.lane(job, false).await.expect("open");
    let merged = String::from_utf8(lane.requirement.expect("it has one").0.to_vec()).expect("text");
    for part in [r#""value": 2"#, r#""value": 4"#, r#""gpus""#, r#""x""#] {
        assert!(merged.contains(part), "{part}: {merged}");
    }
    let shown = jobs::get(&*queue.server().await, job).await.expect("read").expect("there");
    assert_eq!((shown.require, shown.needs.len()), (vec!["cores >= 4".to_owned()], 4));

    // A job that is run again requires the same; the version says that it was changed.
    let again = JobId(queue.number(&format!("select pcfarm.rerun_job({job})")).await);
    let server = queue.server().await;
    assert_eq!(jobs::get(&server, again).await.expect("read").expect("there").require, ["cores >= 4"]);
    let before = jobs::version(&server, again).await.expect("read");
    queue.run(&format!(r#"select pcfarm.update_job({again}, '', '{{"require": null}}')"#)).await;
    assert_ne!(jobs::version(&server, again).await.expect("read"), before);
    assert!(jobs::get(&server, again).await.expect("read").expect("there").require.is_empty());

    queue.run(r#"select pcfarm.set_job_type('t', '{"require": null, "labels": null}')"#).await;
    assert_eq!(queue.text(of_type).await, "");
    assert!(queue.lane(again, false).await.expect("open").requirement.is_none(), "nothing is required of anybody");
}

#[tokio::test]
async fn of_a_job_that_nothing_could_run_is_said_why() {
    let queue = queue().await;
    with(
        &queue,
        [
            "memory_bytes = 8::bigint << 30, cores = 4, arch = 'x86_64', system_name = 'linux', labels = '{old,lab-a}'",
            "memory_bytes = 24::bigint << 30, cores = 16, arch = 'x86_64', system_name = 'linux', labels = '{old}', state = 'dead',
                programs = '{minizinc 2.6.1}'",
            "memory_bytes = 4::bigint << 30, cores = 2, arch = 'aarch64', system_name = 'linux', labels = '{old}', gpus = '{amd x}'",
        ],
    )
    .await;
    for (require, expected) in [
        (r#"["memory >= 16 GiB"]"#, ""),
        (r#"["memory >= 64 GiB"]"#, "no workstation has memory >= 64 GiB: the most is 24 GiB"),
        (r#"["memory < 2 GiB"]"#, "no workstation has memory < 2 GiB: the least is 4 GiB"),
        (r#"["cores > 16"]"#, "no workstation has cores > 16: the most is 16"),
        (r#"["gpus >= 2"]"#, "no workstation has gpus >= 2: the most is 1"),
        (r#"["gpu = nvidia"]"#, "no workstation has gpu = nvidia: there is amd"),
        (r#"["arch = riscv64"]"#, "no workstation has arch = riscv64: there is aarch64, x86_64"),
        (r#"["system = windows"]"#, "no workstation has system = windows: there is linux"),
        (r#"["label = lab-b"]"#, "no workstation has label = lab-b: there is lab-a, old"),
        (r#"["label != old"]"#, "no workstation has label != old: all have it"),
        (r#"["program = minizinc"]"#, ""),
        (r#"["program = minizinc >= 2.8"]"#, "no workstation has program = minizinc >= 2.8: there is minizinc 2.6.1"),
        (r#"["program = gurobi"]"#, "no workstation has program = gurobi: there is minizinc 2.6.1"),
        (
            r#"["gpu", "cores >= 4", "label = old"]"#,
            "no workstation has all of cores >= 4, gpu, label = old: pc1 comes closest, without gpu",
        ),
    ] {
        let job = submitted(&queue, "t", require).await;
        assert_eq!(nowhere(&queue, job).await.join("; "), expected, "{require}");
    }
    // Only those count that run the controller; and none may.
    queue.run("select pcfarm.create_job_type('u', 'other')").await;
    let job = submitted(&queue, "u", r#"["memory >= 64 GiB"]"#).await;
    let both = ["no workstation runs controller other", "no workstation has memory >= 64 GiB: the most is 24 GiB"];
    assert_eq!(nowhere(&queue, job).await, both);
    queue.run("update pcfarm.workstation set controllers = '{c,other}' where workstation_id = 1").await;
    let of_those = ["no workstation that runs other has memory >= 64 GiB: the most is 8 GiB"];
    assert_eq!(nowhere(&queue, job).await, of_those);
    let view = format!("select reasons[1] from pcfarm.job_without_workstation where job_id = {job} and job_type = 'u'");
    assert_eq!(queue.text(&view).await, of_those[0]);
    let explained = farm::explain_job(&*queue.server().await, job).await.expect("read").expect("there").join("\n");
    assert!(explained.contains(&format!("waits: {}", of_those[0])), "{explained}");
    assert!(explained.contains("connected or not, could ever run what waits"), "{explained}");
    // A workstation says what it lacks for others.
    let client = queue.server().await;
    let one = farm::workstation(&client, WorkstationId(1)).await.expect("asked").expect("there");
    let explained = farm::explain_workstation(&client, &one).await;
    let explained = explained.expect("read").expect("there").join("\n");
    assert!(explained.contains("they require ") && explained.contains("memory >= 64 GiB"), "{explained}");
}

#[tokio::test]
async fn an_administrators_label_counts_and_so_does_a_problem_of_another_type() {
    let queue = queue().await;
    queue.run(r#"select pcfarm.create_job_type('g', 'c', '{"labels": ["big"]}')"#).await;
    let job = JobId(
        queue
            .number(
                "select pcfarm.submit('j', 't', 'select ''k'' || g as key, to_jsonb(g) as payload,
                     case when g > 2 then ''g'' end as job_type from generate_series(1, 4) g', 1)",
            )
            .await,
    );
    assert_eq!(nowhere(&queue, job).await, ["of job type g, no workstation has label = big: none has any"]);
    queue.run(r#"select pcfarm.set_selection('{pc2}', '{"labels": ["big"]}')"#).await;
    assert!(nowhere(&queue, job).await.is_empty());
    let facts = "select array_to_string(labels, ',') from pcfarm.workstation_facts where hostname = 'pc2'";
    assert_eq!(queue.text(facts).await, "big");
}

#[tokio::test]
async fn it_is_told_once_and_again_when_it_is_over() {
    let queue = queue().await;
    let server = queue.server().await;
    let note = async || upkeep::note_nowhere(&*server).await.expect("noted");
    let fine = queue.job(2, 1).await;
    let stuck = submitted(&queue, "t", r#"["gpu"]"#).await;
    let cancelled = submitted(&queue, "t", r#"["cores > 100"]"#).await;
    assert_eq!((note().await, note().await), (2, 0));
    let without = |job: JobId| format!("job without workstation {job}");
    assert_eq!(events(&queue).await, [without(stuck), without(cancelled)]);
    let told = format!(
        "select details #>> '{{reasons,0}}' from pcfarm.event where what = 'job without workstation' and job_id = {stuck}"
    );
    assert_eq!(queue.text(&told).await, "no workstation has gpu: none has any");
    // What has ended says nothing more.
    queue.run(&format!("select pcfarm.cancel_job({cancelled})")).await;
    queue.run("update pcfarm.workstation set gpus = '{nvidia x}' where workstation_id = 3").await;
    assert_eq!((note().await, note().await), (1, 0));
    assert_eq!(events(&queue).await[2..], [format!("job with workstation {stuck}")]);
    assert_eq!(queue.number("select count(*) from pcfarm.nowhere").await, 0);
    // Of what has been handed out nothing is said, whatever becomes of the workstation.
    let lane = queue.lane(fine, false).await.expect("open");
    assert!(queue.take(fine, false, 2).await.is_some() && lane.requirement.is_none());
    queue.run("update pcfarm.workstation set controllers = '{}', gpus = '{}'").await;
    assert_eq!(note().await, 1);
    assert_eq!(events(&queue).await[3..], [without(stuck)]);
}

/// A server may have matched a moment ago what has been changed since: the database has the last word, and a lane has no gaps.
#[tokio::test]
async fn a_hand_out_is_refused_of_what_does_not_meet_what_is_required_by_now() {
    let queue = queue().await;
    queue.run("select pcfarm.set_resource('licence', 9)").await;
    queue.run(r#"select pcfarm.create_job_type('limited', 'c', '{"resources": {"licence": 1}}')"#).await;
    for job_type in ["t", "limited"] {
        with(&queue, ["labels = '{fast}'", "labels = '{fast}'", "labels = '{}'"]).await;
        let job = submitted(&queue, job_type, r#"["label = fast"]"#).await;
        let hand_outs = handing_out(&queue, job, &[1, 3]).await;
        assert_eq!(check_out(&queue, job_type, &hand_outs).await, [false, false], "the third lacks it");
        let hand_outs = handing_out(&queue, job, &[1, 2]).await;
        for change in [
            "update pcfarm.workstation set labels = '{}' where workstation_id = 2".to_owned(),
            format!(r#"select pcfarm.update_job({job}, '', '{{"require": ["cores > 100"]}}')"#),
            format!(r#"select pcfarm.set_job_type('{job_type}', '{{"labels": ["other"]}}')"#),
        ] {
            queue.run(&change).await;
            assert_eq!(check_out(&queue, job_type, &hand_outs).await, [false, false], "{change}");
            with(&queue, ["labels = '{fast}'", "labels = '{fast}'", "labels = '{}'"]).await;
            queue.run(&format!(r#"select pcfarm.update_job({job}, '', '{{"require": ["label = fast"]}}')"#)).await;
            queue.run(&format!(r#"select pcfarm.set_job_type('{job_type}', '{{"labels": null}}')"#)).await;
        }
        assert_eq!(check_out(&queue, job_type, &hand_outs).await, [true, true]);
    }
    queue.check().await;
}

/// The convoys of a job's lane, one for each of these workstations.
async fn handing_out(queue: &Queue, job: JobId, workstations: &[i64]) -> Vec<HandOut> {
    let lane = queue.lane(job, false).await.expect("open");
    (0..)
        .zip(workstations)
        .map(|(n, &workstation)| HandOut {
            job_id: job,
            lane_id: lane.lane_id,
            job_type: lane.job_type.clone(),
            from: BatchOrder(n),
            to: BatchOrder(n + 1),
            problems: 2,
            weight: 2,
            workstation_id: WorkstationId(workstation),
            token: 7,
            seconds: None,
        })
        .collect()
}

/// Which of them were made.
async fn check_out(queue: &Queue, job_type: &str, hand_outs: &[HandOut]) -> Vec<bool> {
    let server = queue.server().await;
    let made = match job_type {
        "limited" => checkout::check_out_within_limits(&server, hand_outs, true).await,
        _ => checkout::check_out(&server, hand_outs).await,
    };
    made.expect("asked").iter().map(Option::is_some).collect()
}
