//! A connection that reports the plan of every statement that runs on it.

use super::scenarios::Scenario;
use pcfarm_sql::testing::TestDatabase;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use tokio_postgres::{AsyncMessage, Client, NoTls};

/// Executions of one statement text.
#[derive(Debug)]
pub struct Statement {
    pub text: String,
    /// Rows that plan nodes returned or rejected.
    pub rows: i64,
    pub blocks: i64,
}

pub struct Plans {
    client: Client,
    reported: Arc<Mutex<Vec<String>>>,
    _database: TestDatabase,
}

const REPORT: &str = "
    load 'auto_explain';
    set auto_explain.log_min_duration = 0; set auto_explain.log_nested_statements = on; set auto_explain.log_analyze = on;
    set auto_explain.log_buffers = on; set auto_explain.log_timing = off; set auto_explain.log_format = json;
    set auto_explain.log_level = notice";
const NO_REPORT: &str = "set auto_explain.log_min_duration = -1";

impl Plans {
    #[expect(clippy::disallowed_methods, reason = "the connection ends with the client, which the test drops")]
    pub async fn of(database: TestDatabase) -> Plans {
        let (client, mut connection) = database.config().connect(NoTls).await.expect("connected");
        let reported = Arc::new(Mutex::new(Vec::new()));
        let taken = reported.clone();
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
                if let AsyncMessage::Notice(notice) = message
                    && let Some((_, plan)) = notice.message().split_once("plan:\n")
                {
                    taken.lock().expect("no panic under the lock").push(plan.to_owned());
                }
            }
        });
        Plans { client, reported, _database: database }
    }

    pub async fn run(&self, statements: &str) {
        self.client.batch_execute(statements).await.unwrap_or_else(|error| panic!("{statements}: {error:?}"));
    }

    /// Makes a scenario's job and rows. Returns the job.
    pub async fn prepare(&self, scenario: &Scenario, problems: i64) -> i64 {
        // Setup is not measured, so it may use any quick plan.
        self.run("set enable_nestloop = off").await;
        let create = format!("select pcfarm.create_job('new', 't', '{}')", scenario.rows.options());
        let job = self.client.query_one(&create, &[]).await.expect("a job").get(0);
        for text in [scenario.rows.statements(), scenario.also] {
            self.run(&scenario.filled(text, job, problems)).await;
        }
        self.run("set enable_nestloop = on").await;
        job
    }

    /// Runs statements, and returns what each of them touched, added up over its executions.
    pub async fn explained(&mut self, statements: &str) -> Vec<Statement> {
        self.run(REPORT).await;
        self.reported.lock().expect("no panic under the lock").clear();
        self.run(statements).await;
        self.run(NO_REPORT).await;
        let reported = std::mem::take(&mut *self.reported.lock().expect("no panic under the lock"));
        let mut found: Vec<Statement> = Vec::new();
        for text in reported {
            let plan: serde_json::Value = serde_json::from_str(&text).expect("JSON of auto_explain");
            let text: String =
                plan["Query Text"].as_str().expect("a text").split_whitespace().collect::<Vec<_>>().join(" ");
            let text = text.chars().take(100).collect();
            let (rows, blocks) = (
                rows(&plan["Plan"]),
                number(&plan["Plan"], "Shared Hit Blocks") + number(&plan["Plan"], "Shared Read Blocks"),
            );
            match found.iter_mut().find(|statement| statement.text == text) {
                Some(statement) => {
                    statement.rows += rows;
                    statement.blocks += blocks;
                }
                None => found.push(Statement { text, rows, blocks }),
            }
        }
        found
    }
}

/// Rows that a node and those below it returned or rejected, and one for each time that it was started.
fn rows(node: &serde_json::Value) -> i64 {
    let removed = ["Rows Removed by Filter", "Rows Removed by Join Filter", "Rows Removed by Index Recheck"];
    let each = 1 + number(node, "Actual Rows") + removed.iter().map(|name| number(node, name)).sum::<i64>();
    let below = node["Plans"].as_array().map_or(0, |nodes| nodes.iter().map(rows).sum());
    each * number(node, "Actual Loops") + below
}

/// Averages over a node's executions may be fractions from PostgreSQL 18 on.
fn number(node: &serde_json::Value, name: &str) -> i64 {
    node[name].as_f64().unwrap_or(0.0) as i64
}
