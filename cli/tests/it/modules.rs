//! Files and modules on a real farm: put by the CLI, kept by a server in its database, fetched by an agent.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::left_out;
use crate::real::{Farm, Running, program};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

fn hashes(listed: &Value) -> Vec<&str> {
    listed["files"].as_array().into_iter().flatten().filter_map(|file| file["sha256"].as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn files_come_back_as_they_were_put() -> Result<()> {
    let farm = Farm::start().await?;
    let odd: Vec<u8> = (0..2_500_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let contents: [(&str, &[u8]); 4] =
        [("empty", b""), ("small", b"a line\n"), ("whole pieces", &odd[..2 << 20]), ("odd", &odd)];
    let mut put = Vec::new();
    for (name, content) in contents {
        let path = farm.file(name, content)?;
        let told = farm.run_all(&["files", "put", &path]).await?;
        ensure!(told.code == Some(0), "{told:?}");
        let hash = told.stdout.split_whitespace().next().context("a hash")?.to_owned();
        let back = farm.directory.path().join("back").display().to_string();
        farm.ends(0, &format!("files get {hash} --to {back}")).await?;
        ensure!(fs::read(&back)? == content, "{name}");
        let again = farm.run_all(&["files", "put", &path, "--output", "json"]).await?;
        ensure!(again.code == Some(0) && again.stdout.contains(&hash), "{again:?}");
        put.push(hash);
    }
    put.reverse();
    let listed = farm.json("files list").await?;
    ensure!(hashes(&listed) == put, "{listed}");
    ensure!(farm.number("select count(*) from pcfarm.file_piece").await? == 1 + 2 + 3, "nothing is kept twice");
    ensure!(farm.ends(0, "files list").await?.contains(&put[0]));

    farm.ends(0, &format!("files remove {}", put[0])).await?;
    farm.ends(4, &format!("files get {} --to /dev/null", put[0])).await?;
    farm.ends(4, &format!("files remove {}", put[0])).await?;
    ensure!(hashes(&farm.json("files list").await?) == put[1..]);
    farm.ends(2, "files get 0badc0de").await?;
    farm.ends(2, "files put /nowhere/file").await?;
    let said = farm.ends(2, &format!("types set m --controller wasm:{}", "0".repeat(64))).await?;
    ensure!(said.contains("there is no file 0000") && said.contains("files put"), "{said}");
    let said = farm.ends(2, "types set m --controller wasm:primes.wasm").await?;
    ensure!(said.contains("a module, wasm: and its SHA-256"), "{said}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_problems_make_are_their_owners() -> Result<()> {
    let mut farm = Farm::start().await?;
    let directory = farm.directory.path().to_owned();
    let settings = farm.file(
        "agent.toml",
        "[[program]]\nname = \"draw\"\nmode = \"one-shot\"\npath = \"/bin/sh\"\noutputs = [\"*.svg\"]\ntrusted = true\n\
         args = [\"-c\", 'for n in \"$@\"; do seq $n > $n.svg; done', \"draw\", \"{payload[]}\"]\n\n\
         [[program]]\nname = \"count\"\nmode = \"one-shot\"\npath = \"/bin/sh\"\noutputs = [\"*.txt\"]\ntrusted = true\n\
         args = [\"-c\", 'wc -l < drawn.svg; tail -n 1 drawn.svg > last.txt']\nanswer = \"json\"\n",
    )?;
    let mut agent = program("pcfarm-worker")?;
    agent.args(["--config", &settings, "--server", &farm.url, "--cores", "2", "--hostname", "one", "--state-dir"]);
    agent.arg(directory.join("one")).arg("--work-dir").arg(directory.join("work"));
    let log = fs::File::create(directory.join("one.log"))?;
    let agent = Running(agent.stdout(Stdio::null()).stderr(log).spawn()?);
    farm.ends(0, "types set draw --controller exec:draw").await?;
    let problems = "{\"key\": \"a/1\", \"payload\": [\"3\", \"400000\"]}\n{\"key\": \"b\", \"payload\": [\"3\"]}\n\
                    {\"key\": \"none\", \"payload\": []}\n";
    let problems = farm.file("draw.ndjson", problems)?;
    farm.ends(0, &format!("job load {problems} --name draw --type draw")).await?;
    let waited = farm.run("job wait 1 --timeout 60s").await?;
    ensure!(waited.code == Some(0), "{waited:?}, {}", fs::read_to_string(directory.join("one.log"))?);

    let to = directory.join("made").display().to_string();
    let written = |n: u32| (1..=n).map(|n| format!("{n}\n")).collect::<String>();
    for _ in 0..2 {
        // Again, behind a copy that is damaged.
        let told = farm.run(&format!("job results 1 --out {to}.json --files {to}")).await?;
        ensure!(told.code == Some(0) && told.stderr.contains("3 files in"), "{told:?}");
        for (path, n) in [("a%2f1/3.svg", 3), ("a%2f1/400000.svg", 400_000), ("b/3.svg", 3)] {
            let path = Path::new(&to).join(path);
            ensure!(fs::read_to_string(&path)? == written(n), "{}", path.display());
            fs::write(&path, "damaged")?;
        }
        ensure!(!Path::new(&to).join("none").exists());
    }
    // Kept once, and as long as the job.
    ensure!(farm.number("select count(*) from pcfarm.file where sha256 is not null").await? == 2);
    ensure!(farm.number("select count(*) from pcfarm.output").await? == 3);
    let outcomes = farm.json("job results 1").await?;
    let small = &outcomes["outcomes"][1]["result"]["files"]["3.svg"];
    ensure!(small["bytes"] == 6, "{outcomes}");
    farm.ends(0, &format!("files get {} --to /dev/null", small["sha256"].as_str().context("a hash")?)).await?;
    ensure!(hashes(&farm.json("files list").await?).is_empty(), "nobody has put them there");

    // What one job's problems have made, another's have as their input, each its own.
    farm.ends(0, "types set count --controller exec:count").await?;
    let names = |hash: &str| json!({"files": {"drawn.svg": hash}});
    let hash_of = |problem: usize, name: &str| &outcomes["outcomes"][problem]["result"]["files"][name]["sha256"];
    let (long, short) = (hash_of(0, "400000.svg").as_str(), hash_of(1, "3.svg").as_str());
    let problem = |key: &str, hash: &str| json!({"key": key, "payload": names(hash)}).to_string() + "\n";
    let [long, short] = [long, short].map(|hash| problem(hash.unwrap_or_default(), hash.unwrap_or_default()));
    let load = "--name count --type count --option problem_files=true";
    let unknown = farm.file("unknown.ndjson", &(short.clone() + &problem("nowhere", &"0".repeat(64))))?;
    let refused = farm.run(&format!("job load {unknown} {load}")).await?;
    ensure!(refused.code == Some(2) && refused.stderr.contains(&"0".repeat(64)), "{refused:?}");
    let drawn = farm.file("drawn.ndjson", &(short + &long))?;
    let loaded = farm.ends(0, &format!("job load {drawn} {load}")).await?;
    let job = loaded.split(" in job ").nth(1).and_then(|rest| rest.split(',').next()).context("a job")?.to_owned();
    let waited = farm.run(&format!("job wait {job} --timeout 60s")).await?;
    ensure!(waited.code == Some(0), "{waited:?}, {}", fs::read_to_string(directory.join("one.log"))?);
    let counted = farm.json(&format!("job results {job}")).await?;
    let lines = |problem: usize| &counted["outcomes"][problem]["result"]["result"];
    ensure!(lines(0) == 3 && lines(1) == 400_000, "{counted}");
    let counted_to = directory.join("counted").display().to_string();
    farm.ends(0, &format!("job results {job} --out {counted_to}.json --files {counted_to}")).await?;
    let last: Vec<String> = fs::read_dir(&counted_to)?
        .map(|problem| Ok(fs::read_to_string(problem?.path().join("last.txt"))?))
        .collect::<Result<_>>()?;
    ensure!(last.contains(&"3\n".to_owned()) && last.contains(&"400000\n".to_owned()), "{last:?}");
    drop(agent);
    farm.kill_agents();
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_module_of_the_examples_solves_a_job() -> Result<()> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/programs/c/primes.c");
    let mut farm = Farm::start().await?;
    let module = farm.directory.path().join("primes.wasm");
    let made = Command::new("clang").args(["--target=wasm32-wasi", "-O2", "-o"]).arg(&module).arg(&source).output();
    if !made.as_ref().is_ok_and(|made| made.status.success()) {
        left_out::for_want_of(&format!("clang with wasi-libc ({made:?})"));
        return Ok(());
    }
    let module = module.display().to_string();
    // It says why nothing happens before there is an agent, and begins when there is one.
    let made = farm.json(&format!("types set primes --module {module}")).await?;
    let controller = made["controller"].as_str().context("a controller")?.to_owned();
    let hash = controller.strip_prefix("wasm:").context("a module")?;
    let listed = farm.json("files list").await?;
    ensure!(listed["files"][0]["sha256"] == hash && listed["files"][0]["job_types"] == json!(["primes"]), "{listed}");
    let problems: String = (0..200)
        .map(|n| format!("{{\"key\": \"{n}\", \"payload\": {{\"from\": {n}, \"to\": {}}}}}\n", n + 100))
        .collect();
    let problems = farm.file("primes.ndjson", problems)?;
    farm.ends(0, &format!("job load {problems} --name primes --type primes --convoy 7")).await?;
    let why = farm.ends(0, "explain job 1").await?;
    ensure!(why.contains("wasm"), "{why}");

    let directory = farm.directory.path().to_owned();
    let agent = |name: &str| -> Result<Running> {
        let mut agent = program("pcfarm-worker")?;
        agent.args(["--server", &farm.url, "--cores", "2", "--wasm", "--hostname", name, "--state-dir"]);
        agent.arg(directory.join(name)).arg("--work-dir").arg(directory.join("work"));
        let log = fs::File::create(directory.join(format!("{name}.log")))?;
        Ok(Running(agent.stdout(Stdio::null()).stderr(log).spawn()?))
    };
    let agents = [agent("one")?, agent("two")?];
    let waited = farm.run("job wait 1 --timeout 60s").await?;
    ensure!(waited.code == Some(0), "{waited:?}, {}", fs::read_to_string(directory.join("one.log"))?);
    let results = farm.json("job results 1").await?;
    let outcomes = results["outcomes"].as_array().context("outcomes")?;
    ensure!(outcomes.len() == 200, "{} outcomes", outcomes.len());
    let is_prime = |n: i64| n >= 2 && (2..n).all(|f| n % f != 0);
    for outcome in outcomes {
        let n: i64 = outcome["key"].as_str().context("a key")?.parse()?;
        let primes = (n..n + 100).filter(|&n| is_prime(n)).count();
        ensure!(outcome["result"] == json!({"primes": primes}), "{outcome}");
    }
    // What a job type needs stays, whoever lets go of it.
    farm.ends(0, &format!("files remove {hash}")).await?;
    ensure!(farm.number("select count(*) from pcfarm.file where sha256 is not null").await? == 1);
    drop(agents);
    farm.kill_agents();
    Ok(())
}
