//! Files that problems need, and files that they make.

use super::*;

#[tokio::test]
async fn a_jobs_files_are_in_each_problems_directory() {
    let mut desk = Desk::empty().await;
    let files = std::sync::Arc::clone(&desk.server.files);
    let script = desk.file(
        "model.py",
        "import json, sys\n\
         for line in sys.stdin:\n\
         \x20   q = json.loads(line)\n\
         \x20   text = open(q['directory'] + '/model.txt').read()\n\
         \x20   try: open(q['directory'] + '/model.txt', 'a'); text = 'written'\n\
         \x20   except OSError: pass\n\
         \x20   print(json.dumps({'result': text[q['payload']]}), flush=True)\n",
    );
    desk.program(&format!("name = \"fed\"\nmode = \"fed\"\npath = \"{PYTHON}\"\nargs = [\"{script}\"]"));
    desk.program(
        "name = \"once\"\nmode = \"one-shot\"\npath = \"/bin/sh\"\nargs = [\"-c\", 'cat \"$1\" large.bin | wc -c', \"sh\", \"{payload}\"]",
    );
    let model = files.put(b"abc");
    let large = files.put(&vec![7; 100_000]);
    let (mut agent, mut session) = desk.agent(2).await;
    let (fed, once) = (["0", "1", "2"].map(str::to_owned), ["\"model.txt\""; 3].map(str::to_owned));
    session.check_out_with_files(1, "exec:fed", fed, &[("model.txt", &model)]).await;
    assert_eq!(closed(&mut session, 1).await, ["\"a\"", "\"b\"", "\"c\""]);
    session.check_out_with_files(2, "exec:once", once.clone(), &[("model.txt", &model), ("large.bin", &large)]).await;
    assert_eq!(closed(&mut session, 2).await, ["\"100003\""; 3]);
    assert_eq!(files.fetches.load(Ordering::Relaxed), 2, "each is fetched once");

    // What is not there, or is no name, fails the problems that need it.
    let nothing = "00".repeat(32);
    session.check_out_with_files(3, "exec:once", once.clone(), &[("model.txt", &nothing)]).await;
    let failed = closed(&mut session, 3).await;
    assert!(failed.iter().all(|one| one.starts_with("failed: the farm does not give file 0000")), "{failed:?}");
    for name in ["../model.txt", "/model.txt", ".model", ""] {
        session.check_out_with_files(4, "exec:once", once[..1].iter().cloned(), &[(name, &model)]).await;
        assert_eq!(closed(&mut session, 4).await, [format!("failed: {name:?} is no name of a file")]);
    }
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
    desk.wait_until("processes are left", || desk.processes().is_empty()).await;
}

/// Counts the bytes of the file that its problem calls `instance`.
struct Weigh;

impl Controller for Weigh {
    const NAME: &'static str = "weigh";
    type Payload = Value;
    type Solution = usize;

    fn solve(&self, problem: &Problem<'_, Value>) -> anyhow::Result<usize> {
        let file = problem.file("instance")?;
        assert_eq!(std::fs::read(file.path())?, file.read()?);
        Ok(file.read()?.len())
    }
}

#[tokio::test]
async fn problems_have_files_of_their_own_and_rust_reads_them_too() {
    let mut desk = Desk::empty().await;
    let files = std::sync::Arc::clone(&desk.server.files);
    desk.program("name = \"once\"\nmode = \"one-shot\"\npath = \"/bin/cat\"\nargs = [\"instance\"]");
    let [a, b, of_job] = [&b"aa"[..], b"b", b"of all"].map(|content| files.put(content));
    let (mut agent, mut session) = desk.agent_of(Agent::new().controller(Weigh), 2).await;
    let own = |hash: &str| json!({"files": {"instance": hash}}).to_string();
    let payloads = [own(&a), own(&b), own(&a), json!({}).to_string(), own(&"00".repeat(32)), own("x")];
    let each = async |session: &mut Session, id, controller: &str| {
        session.check_out_naming_files(id, controller, payloads.clone(), &[("instance", &of_job)]).await;
        closed(session, id).await
    };
    let ended = each(&mut session, 1, "exec:once").await;
    assert_eq!(ended[..4], ["\"aa\"", "\"b\"", "\"aa\"", "\"of all\""]);
    assert!(ended[4].contains("does not give file 0000") && ended[5].contains("is not a SHA-256"), "{ended:?}");
    let ended = each(&mut session, 2, "weigh").await;
    assert_eq!(ended[..4], ["2", "1", "2", "6"]);
    assert!(ended[4].contains("does not give file 0000") && ended[5].contains("is not a SHA-256"), "{ended:?}");
    assert_eq!(
        files.fetches.load(Ordering::Relaxed),
        3 + 2,
        "each is fetched once, by whoever comes first; what is not there is asked for again"
    );
    session.check_out(3, "weigh", [own(&a)]).await;
    let ended = closed(&mut session, 3).await;
    assert_eq!(ended, ["failed: neither the problem nor its job has a file \"instance\""], "its job does not say so");
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
    desk.wait_until("processes are left", || desk.processes().is_empty()).await;
}

/// Writes what a payload says into the problem's directory, and names it as the payload says.
const WRITER: &str = "import json, os, sys\n\
    for line in sys.stdin:\n\
    \x20   q = json.loads(line)\n\
    \x20   p = q['payload']\n\
    \x20   for name, text in p.get('write', {}).items():\n\
    \x20       open(q['directory'] + '/' + name, 'w').write(text * p.get('times', 1))\n\
    \x20   for name, to in p.get('link', {}).items():\n\
    \x20       os.symlink(to, q['directory'] + '/' + name)\n\
    \x20   print(json.dumps({'result': 7, 'files': p['files']}), flush=True)\n";

fn sha256(content: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn files_that_programs_make_are_the_farms() {
    let mut desk = Desk::empty().await;
    let files = std::sync::Arc::clone(&desk.server.files);
    let script = desk.file("writer.py", WRITER);
    desk.program(&format!("name = \"fed\"\nmode = \"fed\"\npath = \"{PYTHON}\"\nargs = [\"{script}\"]"));
    desk.program(
        "name = \"once\"\nmode = \"one-shot\"\npath = \"/bin/sh\"\noutputs = [\"out.txt\", \"part-*\"]\n\
         args = [\"-c\", 'for name in \"$@\"; do echo $name > $name; done; echo done', \"sh\", \"{payload[]}\"]",
    );
    let (mut agent, mut session) = desk.agent(1).await;
    let of_farm = |content: &[u8]| json!({"sha256": sha256(content), "bytes": content.len()});
    let large = "0123456789".repeat(300_000);

    // A fed program names them; what breaks off is sent again, and what is there is not sent.
    files.puts_break_off.store(2, Ordering::Relaxed);
    let there = files.put(b"known");
    let made = json!({"write": {"a.txt": "0123456789"}, "times": 300_000, "files": ["a.txt"]});
    let known = json!({"write": {"b": "known", "not-named": "x"}, "files": ["b"]});
    let results = run(&mut session, 1, "fed", &[made, known, json!({"files": []})]).await;
    let results: Vec<Value> = results.iter().map(|json| serde_json::from_str(json).expect("JSON")).collect();
    assert_eq!(results[0], json!({"result": 7, "files": {"a.txt": of_farm(large.as_bytes())}}));
    assert_eq!(results[1], json!({"result": 7, "files": {"b": {"sha256": there, "bytes": 5}}}));
    assert_eq!(results[2], json!({"result": 7, "files": {}}));
    let outputs = std::mem::take(&mut *files.outputs.lock().expect("no panic"));
    let sent: Vec<(&str, Option<usize>)> =
        outputs.iter().map(|(_, name, content)| (name.as_str(), content.as_ref().map(Vec::len))).collect();
    assert_eq!(sent, [("a.txt", Some(large.len())), ("b", None)]);

    // Of a one-shot program those that its owner lists.
    let results =
        run(&mut session, 2, "once", &[json!(["out.txt", "part-2", "part-1", "rest"]), json!(["part-1"])]).await;
    let first: Value = serde_json::from_str(&results[0]).expect("JSON");
    assert_eq!(first["result"], "done");
    assert_eq!(first["files"].as_object().expect("files").keys().collect::<Vec<_>>(), ["out.txt", "part-1", "part-2"]);
    assert_eq!(results[1], "failed: the program has left no file out.txt in its directory");

    // What is not the program's own, or is no name, or the farm does not take, fails that problem alone.
    let secret = desk.file("secret", "the agent's");
    let refused = tonic::Status::failed_precondition("mia would have too many bytes");
    for (payload, expected) in [
        (json!({"files": ["../../secret"]}), "names a file \"../../secret\""),
        (json!({"files": ["*"]}), "names a file \"*\""),
        (json!({"link": {"s": secret}, "files": ["s"]}), "file s is a link"),
        (json!({"files": ["nothing"]}), "left no file nothing"),
        (json!({"files": 7}), "cannot be used"),
    ] {
        let results = run(&mut session, 3, "fed", &[payload, json!({"files": []})]).await;
        assert!(results[0].starts_with("failed: ") && results[0].contains(expected), "{results:?}");
        assert_eq!(results[1], r#"{"result":7,"files":{}}"#);
    }
    *files.refuses.lock().expect("no panic") = Some(refused);
    let results = run(&mut session, 4, "fed", &[json!({"write": {"c": "c"}, "files": ["c"]})]).await;
    assert_eq!(results, ["failed: file c: the farm does not take it: mia would have too many bytes"]);
    assert!(files.outputs.lock().expect("no panic").iter().all(|(_, name, _)| name != "c"));

    // A farm that cannot take it now is waited for, until the problem is not wanted any more.
    *files.refuses.lock().expect("no panic") = Some(tonic::Status::unavailable("no database"));
    session.check_out(5, "exec:fed", [json!({"write": {"d": "d"}, "files": ["d"]}).to_string()]).await;
    desk.wait_until("it works on it", || desk.problems_in_hand() == 1).await;
    session.revoke(5).await;
    desk.wait_until("it lets go of it", || desk.problems_in_hand() == 0).await;
    agent.stop.cancel();
    drop(session);
    agent.ended().await.expect("nothing is left");
    desk.nothing_is_left().await;
}
