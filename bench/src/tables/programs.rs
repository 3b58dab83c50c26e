//! Table `programs`: what it costs to have a problem solved by a program of the agent's owner, started for each or fed one after
//! the other, and by a module that its job type ships, beside the same programs without PC Farm.

use crate::context::{Context, repository};
use crate::night::Site;
use crate::plot::{Kind, Plot};
use crate::report::{Figures, Report};
use anyhow::{Context as _, ensure};
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PYTHON: &str = "/usr/bin/python3";

const FED: &str = "import json, sys
for line in sys.stdin:
    print(json.dumps({'result': sum(json.loads(line)['payload']['of'])}), flush=True)
";

const ONE_SHOT: &str = "import json, sys
print(sum(json.load(sys.stdin)['of']))
";

const SUM: &str = "{\"of\": [1, 2]}";
/// No number to look at; and some hundredths of a second of computing.
const NOTHING: &str = "{\"from\": 0, \"to\": 0}";
const PRIMES: &str = "{\"from\": 0, \"to\": 300000}";

/// Starts programs, compiles modules, and tells the farm how long one problem takes.
const WARM_UP: u64 = 50;

/// Compiling a program and putting a module there.
const SOON: Duration = Duration::from_secs(60);

/// How the bench itself has a program solve as many problems, one after the other: the limit.
#[derive(Clone, Copy)]
enum Alone {
    Fed,
    OneShot,
    /// The same as another case's.
    Not,
}

struct Case {
    name: &'static str,
    job_type: &'static str,
    payload: &'static str,
    problems: u64,
    /// Problems of one: a module's instance solves one convoy's.
    convoy: u32,
    alone: Alone,
}

const CASES: [Case; 8] = [
    Case { name: "python_fed", job_type: "fed", payload: SUM, problems: 1_000, convoy: 1, alone: Alone::Fed },
    Case {
        name: "python_one_shot",
        job_type: "python",
        payload: SUM,
        problems: 1_000,
        convoy: 1,
        alone: Alone::OneShot,
    },
    Case { name: "true_one_shot", job_type: "true", payload: SUM, problems: 1_000, convoy: 1, alone: Alone::OneShot },
    Case { name: "c_fed", job_type: "c", payload: NOTHING, problems: 20_000, convoy: 1, alone: Alone::Fed },
    Case { name: "module", job_type: "module", payload: NOTHING, problems: 20_000, convoy: 1_000, alone: Alone::Not },
    Case {
        name: "module_by_convoys_of_1",
        job_type: "module",
        payload: NOTHING,
        problems: 20_000,
        convoy: 1,
        alone: Alone::Not,
    },
    Case { name: "c_fed_computing", job_type: "c", payload: PRIMES, problems: 200, convoy: 1, alone: Alone::Fed },
    Case {
        name: "module_computing",
        job_type: "module",
        payload: PRIMES,
        problems: 200,
        convoy: 100,
        alone: Alone::Not,
    },
];

pub async fn run(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    report.note(
        "one agent with one core, programs fenced as by default; from the job's opening to its last result, with agent, server and \
         PostgreSQL on the same cores; python: adds two numbers, fed and started for each problem; true: /bin/true for each; c: the \
         example that counts primes, asked for none and (computing) for those below 300,000; module: the same source as a WASI \
         module, one instance a convoy",
    );
    report.note(
        "alone: the same program without PC Farm, started for each problem, or asked through a pipe and waited for, by one thread",
    );
    ensure!(Path::new(PYTHON).exists(), "{PYTHON} is needed: install python3");
    for _ in 0..context.runs {
        let mut figures = Figures::default();
        measure(context, report, &mut figures).await?;
        report.run(figures);
    }
    // As published, by a queue that kept a program's connections from one run to the next: 14 s of 1,000 runs.
    report.note("published for a queue that kept connections from one run to the next: 14 s saved of 1,000 runs");
    report.promise_at_least("saved_by_feeding_s_of_1000", 14.0);
    for name in ["c_fed_computing", "module_computing"] {
        report.promise_at_least(&format!("{name}_of_alone_ratio"), 0.9);
    }
    let bars = CASES
        .iter()
        .filter_map(|case| Some((case.name.to_owned(), report.median(&format!("{}_us_each", case.name))?)))
        .filter(|(name, _)| !name.ends_with("computing"))
        .collect();
    report.plot(Plot {
        name: "calls".to_owned(),
        title: "A problem that computes next to nothing".to_owned(),
        y: "microseconds".to_owned(),
        kind: Kind::Bars(bars),
    });
    Ok(())
}

async fn measure(context: &Context, report: &mut Report, figures: &mut Figures) -> anyhow::Result<()> {
    let place =
        tempfile::Builder::new().prefix("pcfarm-bench-").permissions(PermissionsExt::from_mode(0o755)).tempdir()?;
    let has_modules = make(place.path(), report)?;
    let config = config(place.path());
    std::fs::write(place.path().join("worker.toml"), config)?;
    let site = Site::start_with(context, &[], |agent, farm| {
        agent
            .arguments(["--cores", "1", "--wasm"])
            .arguments(["--config".as_ref(), place.path().join("worker.toml").as_os_str()])
            .arguments(["--work-dir".as_ref(), farm.path("agent.work").as_os_str()])
    })
    .await?;
    for program in ["fed", "python", "true", "c"] {
        site.farm.job_type(program, &format!("exec:{program}"), json!({})).await;
    }
    if has_modules {
        let mut put = site.farm.program("cli", "pcfarm").arguments(["--server", &site.server.url()]).arguments([
            "types".as_ref(),
            "set".as_ref(),
            "module".as_ref(),
            "--module".as_ref(),
            place.path().join("primes.wasm").as_os_str(),
        ]);
        put.start();
        let status = put.ended(SOON).await;
        ensure!(status.success(), "the module is not there: {}", put.log());
    }
    let cases = CASES.iter().filter(|case| has_modules || case.job_type != "module");
    for case in cases {
        context.progress(case.name);
        let problems = context.scaled(case.problems, WARM_UP);
        crunch(&site, case, WARM_UP).await?;
        let seconds = crunch(&site, case, problems).await?;
        figures.add(format!("{}_us_each", case.name), seconds * 1e6 / problems as f64);
        report.processed(problems);
        let (place, payload) = (place.path().to_owned(), case.payload);
        let (kind, of) = (case.alone, case.job_type);
        if !matches!(kind, Alone::Not) {
            let took = tokio::task::spawn_blocking(move || alone(kind, &place, of, payload, problems)).await??;
            figures.add(format!("{}_alone_us_each", case.name), took.as_secs_f64() * 1e6 / problems as f64);
        }
    }
    for name in ["python_fed", "python_one_shot", "true_one_shot", "c_fed", "c_fed_computing"] {
        ratio(figures, name, name);
    }
    ratio(figures, "module_computing", "c_fed_computing");
    let of_1000 = |name: &str| figures.get(&format!("{name}_us_each")).map(|us| us / 1e3);
    if let (Some(fed), Some(one_shot)) = (of_1000("python_fed"), of_1000("python_one_shot")) {
        figures.add("saved_by_feeding_s_of_1000", one_shot - fed);
    }
    site.end(context).await
}

/// How much of the speed is left that the program has alone.
fn ratio(figures: &mut Figures, name: &str, alone: &str) {
    figures.add_ratio(format!("{name}_of_alone_ratio"), &format!("{alone}_alone_us_each"), &format!("{name}_us_each"));
}

/// Scripts and compiled programs. Whether modules can be made here.
fn make(place: &Path, report: &mut Report) -> anyhow::Result<bool> {
    std::fs::write(place.join("fed.py"), FED)?;
    std::fs::write(place.join("one_shot.py"), ONE_SHOT)?;
    let source = repository().join("examples/programs/c/primes.c");
    let native = Command::new("cc").args(["-O2", "-o"]).arg(place.join("primes")).arg(&source).status();
    ensure!(native.context("cc, the C compiler")?.success(), "cc does not compile {}", source.display());
    let module = Command::new("clang")
        .args(["--target=wasm32-wasi", "-O2", "-o"])
        .arg(place.join("primes.wasm"))
        .arg(&source)
        .output();
    let has_modules = module.is_ok_and(|made| made.status.success());
    if !has_modules {
        report.skip("modules", "clang with wasi-libc is not installed");
    }
    Ok(has_modules)
}

fn config(place: &Path) -> String {
    let script = |name: &str| place.join(name);
    format!(
        "[[program]]\nname = \"fed\"\nmode = \"fed\"\npath = {PYTHON:?}\nargs = [{:?}]\n\n\
         [[program]]\nname = \"python\"\nmode = \"one-shot\"\npath = {PYTHON:?}\nargs = [{:?}]\nstdin = \"payload\"\nanswer = \"json\"\n\n\
         [[program]]\nname = \"true\"\nmode = \"one-shot\"\npath = \"/bin/true\"\n\n\
         [[program]]\nname = \"c\"\nmode = \"fed\"\npath = {:?}\n",
        script("fed.py"),
        script("one_shot.py"),
        script("primes"),
    )
}

/// Seconds from the job's opening to its last result.
async fn crunch(site: &Site, case: &Case, problems: u64) -> anyhow::Result<f64> {
    let (client, _connection) = site.database.connect().await?;
    let job = client.query_one("select pcfarm.create_job($1, $1)", &[&case.job_type]).await?.get(0);
    let query =
        format!("select n::text as key, '{}'::jsonb as payload from generate_series(1, {problems}) n", case.payload);
    client.execute("select pcfarm.load($1, $2, $3)", &[&job, &query, &(case.convoy as i32)]).await?;
    let measured = site.crunch(job).await?;
    ensure!(measured.problems == problems, "{} of {problems} problems were solved", measured.problems);
    let (_, failed, requeued) = site.farm.progress(job).await;
    ensure!(
        failed == 0 && requeued == 0,
        "{failed} problems failed and {requeued} were requeued:\n{}",
        site.agent.log()
    );
    Ok(measured.seconds)
}

fn alone(kind: Alone, place: &Path, job_type: &str, payload: &str, problems: u64) -> anyhow::Result<Duration> {
    let command = || match job_type {
        "fed" | "python" => {
            let mut python = Command::new(PYTHON);
            python.arg(place.join(if job_type == "fed" { "fed.py" } else { "one_shot.py" }));
            python
        }
        "true" => Command::new("/bin/true"),
        _ => Command::new(place.join("primes")),
    };
    match kind {
        Alone::Fed => fed_alone(command(), &format!("{{\"payload\": {payload}}}\n"), problems),
        Alone::OneShot | Alone::Not => {
            let began = Instant::now();
            for _ in 0..problems {
                let mut child = command().stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
                // A program that reads nothing may have ended.
                let _ = child.stdin.take().map(|mut stdin| stdin.write_all(payload.as_bytes()));
                ensure!(child.wait_with_output()?.status.success(), "{job_type} alone fails");
            }
            Ok(began.elapsed())
        }
    }
}

/// From the second question on: the first one waits for the program's start.
fn fed_alone(mut command: Command, question: &str, problems: u64) -> anyhow::Result<Duration> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().context("a pipe")?;
    let mut answers = BufReader::new(child.stdout.take().context("a pipe")?).lines();
    let mut ask = || -> anyhow::Result<()> {
        stdin.write_all(question.as_bytes())?;
        let answer = answers.next().context("an answer")??;
        ensure!(answer.contains("result"), "{answer}");
        Ok(())
    };
    ask()?;
    let began = Instant::now();
    for _ in 0..problems {
        ask()?;
    }
    let took = began.elapsed();
    drop(stdin);
    child.wait()?;
    Ok(took)
}
