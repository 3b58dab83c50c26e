//! Programs that are started for each problem.

use super::*;

#[tokio::test]
async fn a_one_shot_program_gets_arguments_and_no_shell_sees_them() {
    let mut desk = Desk::empty().await;
    let script = desk.file("args.py", "import json, sys\nprint(json.dumps([sys.argv[1:], sys.stdin.read()]))\n");
    desk.program(&format!(
        "name = \"args\"\nmode = \"one-shot\"\npath = \"{PYTHON}\"\nanswer = \"json\"\nstdin = \"payload\"\n\
         args = [\"{script}\", \"--key={{key}}\", \"--\", \"{{payload.file}}\", \"{{payload.list[]}}\"]"
    ));
    let file = "a b; touch /tmp/x $(id) `id` | > & ' \" \\ *";
    let payload = json!({"file": file, "list": ["-x", "$HOME", 3]});
    let results = desk.solve("args", &[payload.clone(), json!({"file": "f"})]).await;
    let seen: Value = serde_json::from_str(&results[0]).expect("JSON");
    assert_eq!(seen, json!([["--key=0", "--", file, "-x", "$HOME", "3"], payload.to_string()]));
    assert_eq!(results[1], "failed: the payload has no \"list\", which the program's arguments want");
}

/// Beside its own directory, where only who may write to the agent's could make anything.
#[tokio::test]
async fn what_a_one_shot_program_leaves_beside_its_directory_is_in_nobodys_way() {
    for user in ["", "run_as = \"root\"\n"] {
        if !user.is_empty() && !rustix::process::geteuid().is_root() {
            continue;
        }
        let mut desk = Desk::empty().await;
        desk.program(&format!(
            "name = \"shell\"\nmode = \"one-shot\"\npath = \"/bin/sh\"\nargs = [\"-c\", \"{{payload}}\"]\ndisk_mib = 16\n{user}"
        ));
        let (mut agent, mut session) = desk.agent(1).await;
        let cases = [
            "for n in 1 2 3 4 5 6 7 8; do dd if=/dev/zero of=../home/$n bs=1M count=4; done 2>/dev/null; exit 1",
            "for n in 1 2 3 4 5 6 7 8; do dd if=/dev/zero of=../$n bs=1M count=4; done 2>/dev/null; exit 0",
            "mkdir -p ../home/closed ../closed; chmod 0 ../home/closed ../closed; exit 0",
            "cd ../home || cd ..; n=0; while [ $n -lt 210 ]; do mkdir d && cd d || exit 1; n=$((n + 1)); done",
        ];
        for (id, bad) in (1..).zip(cases) {
            let results = run(&mut session, 2 * id, "shell", &[json!(bad)]).await;
            assert!(!results[0].contains("MiB"), "{bad}: {results:?}");
            let good = "sleep 1.5; ls .. ../home 2>/dev/null | grep -vx \"$(basename \"$PWD\")\" | tr '\\n' ' '";
            let results = run(&mut session, 2 * id + 1, "shell", &[json!(good)]).await;
            assert!(results[0] == "\"\"" || results[0] == "\"..: \"", "after {bad}: {results:?}");
        }
        agent.stop.cancel();
        drop(session);
        agent.ended().await.expect("nothing is left");
        desk.nothing_is_left().await;
    }
}

#[tokio::test]
async fn a_one_shot_program_ends_well_or_says_how_it_did_not() {
    let mut desk = Desk::empty().await;
    // The owner names a shell, and the problem brings the line.
    let shell = "mode = \"one-shot\"\npath = \"/bin/sh\"\nargs = [\"-c\", \"{payload}\"]\ntime_limit = 2\nmemory_mib = 256\nprocesses = 20\n";
    desk.program(&format!("name = \"text\"\n{shell}"));
    desk.program(&format!("name = \"json\"\nanswer = \"json\"\n{shell}"));
    desk.program(&format!("name = \"report\"\nanswer = \"report\"\nexit_codes = [0, 20]\n{shell}"));
    let (mut agent, mut session) = desk.agent(1).await;
    let cases = [
        ("text", "echo hello; echo noise >&2", "\"hello\""),
        ("text", "exit 7", "failed: the program exited with code 7"),
        ("text", "echo oops >&2; exit 7", "failed: the program exited with code 7; its standard error:\noops"),
        ("text", "kill -9 $$", "failed: the program was ended by signal 9 (SIGKILL)"),
        ("text", "sleep 1000", "failed: the program took longer than its time limit of 2 s"),
        ("text", "yes", "failed: the program wrote more than"),
        ("text", "setsid sleep 1000 & setsid sh -c 'sleep 1000 & sleep 1000' & echo started", "\"started\""),
        ("text", "b() { b | b & b; }; b; sleep 1000", "failed: the program "),
        ("text", "cat; echo end", "\"end\""),
        ("json", "echo '[1, 2]'", "[1, 2]"),
        ("json", "echo '[1, 2'", "failed: the program's output is not JSON"),
        ("report", "echo out; echo err >&2; exit 20", r#"{"exit_code":20,"stderr":"err\n","stdout":"out\n"}"#),
        ("report", "exit 21", "failed: the program exited with code 21"),
    ];
    for (id, (program, line, expected)) in (1..).zip(cases) {
        let results = run(&mut session, id, program, &[json!(line)]).await;
        assert!(results[0].starts_with(expected), "{line}: {}", results[0]);
        assert_eq!(desk.processes(), Vec::<i32>::new(), "{line} left processes");
    }
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
    desk.nothing_is_left().await;
}
