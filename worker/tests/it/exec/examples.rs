//! The examples of the documentation.

use super::*;
use crate::left_out;

const MINISAT: &str = "/usr/bin/minisat";

/// What users copy from. `scripts/test` installs the solver where it can.
#[tokio::test]
async fn the_examples_run() {
    let mut desk = Desk::empty().await;
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/programs");
    let text = fs::read_to_string(examples.join("worker.toml")).expect("it is there");
    let primes = fs::read_to_string(examples.join("python/primes.py")).expect("it is there");
    let config = desk
        .file("worker.toml", &text.replace("/opt/pcfarm/programs/python/primes.py", &desk.file("primes.py", &primes)));
    desk.programs = Settings::from_arguments(&["worker", "--config", &config]).expect("good settings").programs;
    for program in &mut desk.programs {
        program.env.insert("MARK".to_owned(), desk.mark.clone());
        program.trusted = true;
    }
    let (mut agent, mut session) = desk.agent(2).await;

    let ranges = [json!({"from": 0, "to": 100}), json!({"from": 100, "to": 1000}), json!({"from": 2, "to": 1})];
    let results = run(&mut session, 1, "primes", &ranges).await;
    let expected = [r#"{"primes": 25}"#, r#"{"primes": 143}"#, "failed: ValueError: from 2 to 1 is no range"];
    assert_eq!(results, expected);

    let files = [desk.file("two lines; rm -rf $HOME", "1\n2\n"), desk.file("-n", "3\n")];
    let results = run(&mut session, 2, "lines", &[json!({"files": files}), json!({"files": []})]).await;
    assert_eq!(results, ["3", "0"]);

    if Path::new(MINISAT).exists() {
        for (id, script) in [(3, "instances.py"), (4, "gates.py")] {
            let (keys, payloads) = sat_instances(&examples.join("sat").join(script));
            let results = run(&mut session, id, "minisat", &payloads).await;
            for ((key, payload), result) in keys.iter().zip(&payloads).zip(&results) {
                is_solved(key, payload.as_str().expect("DIMACS"), &serde_json::from_str(result).expect(result));
            }
        }
    } else {
        left_out::for_want_of(MINISAT);
    }
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
    desk.nothing_is_left().await;
}

fn is_solved(key: &str, dimacs: &str, report: &Value) {
    let found = match report["exit_code"].as_i64() {
        Some(10) => holds(dimacs, report["stdout"].as_str().expect("a text")),
        _ => false,
    };
    match key.split('-').collect::<Vec<_>>()[..] {
        ["pigeons", _] | ["queens", "3"] | ["colours", "9", "2"] | [.., "too", "few"] => {
            assert_eq!(report["exit_code"], 20, "{key}");
        }
        ["random", _] => assert!(found || report["exit_code"] == 20, "{key}: {report}"),
        _ => assert!(found, "{key}: {report}"),
    }
}

fn sat_instances(script: &Path) -> (Vec<String>, Vec<Value>) {
    let written = std::process::Command::new(PYTHON).arg(script).output().expect("it runs");
    assert!(written.status.success());
    let text = String::from_utf8(written.stdout).expect("JSON");
    let problem = |line: &str| {
        let mut problem: Value = serde_json::from_str(line).expect("JSON");
        (problem["key"].as_str().expect("a key").to_owned(), problem["payload"].take())
    };
    let (keys, payloads): (Vec<String>, Vec<Value>) = text.lines().map(problem).unzip();
    assert!(keys.len() >= 18, "{keys:?}");
    (keys, payloads)
}

/// Whether what the solver says of an instance is so.
fn holds(dimacs: &str, answer: &str) -> bool {
    let numbers = |line: &str| -> Vec<i32> {
        line.split_ascii_whitespace().map_while(|n| n.parse().ok()).take_while(|&n| n != 0).collect()
    };
    let Some(model) = answer.lines().skip_while(|line| *line != "SAT").nth(1) else { return false };
    let chosen: std::collections::HashSet<i32> = numbers(model).into_iter().collect();
    let consistent = chosen.iter().all(|n| !chosen.contains(&-n));
    consistent && dimacs.lines().skip(1).all(|clause| numbers(clause).iter().any(|n| chosen.contains(n)))
}
