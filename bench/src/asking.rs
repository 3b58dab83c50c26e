//! A client that submits a job under a key, and asks again with the same key until a server says that it is loaded.

use std::time::Duration;

use pcfarm_proto::v1;
use pcfarm_proto::v1::job_service_client::JobServiceClient;
use pcfarm_proto::v1::submit_request::Part;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

/// For one answer.
const PATIENCE: Duration = Duration::from_secs(5);

const POLL: Duration = Duration::from_millis(50);

/// What is asked for, and what was answered.
#[derive(Debug)]
pub struct Asked {
    /// The job's name and idempotency key.
    pub key: String,
    pub problems: usize,
    /// The newest answer's.
    pub job: Option<i64>,
    messages: [v1::SubmitRequest; 3],
}

impl Asked {
    /// Problems with these payloads in convoys; in groups of two, which no single statement loads, if `grouped`.
    pub fn new(key: &str, job_type: &str, convoy: u32, payloads: Vec<Value>, grouped: bool) -> Asked {
        let header = v1::SubmitHeader {
            name: key.to_owned(),
            job_type: job_type.to_owned(),
            options: json!({"idempotency_key": key}).to_string().into(),
            convoy,
            open: true,
            ..v1::SubmitHeader::default()
        };
        let count = payloads.len();
        let problem = |(n, payload): (usize, Value)| v1::SubmitProblem {
            key: format!("{key} {n}"),
            payload: payload.to_string().into(),
            group_key: if grouped { (n / 2).to_string() } else { String::new() },
            details: None,
        };
        let problems = v1::SubmitProblems { problems: payloads.into_iter().enumerate().map(problem).collect() };
        let end = v1::SubmitEnd { problems: count as i64 };
        let messages = [Part::Header(header), Part::Problems(problems), Part::End(end)]
            .map(|part| v1::SubmitRequest { part: Some(part) });
        Asked { key: key.to_owned(), problems: count, job: None, messages }
    }

    /// Asks once; says whether there was an answer.
    pub async fn ask(&mut self, url: &str) -> bool {
        let asked = async {
            let mut client = JobServiceClient::connect(url.to_owned()).await.ok()?;
            let answer = client.submit(tokio_stream::iter(self.messages.clone())).await.ok()?;
            Some(answer.into_inner().job_id)
        };
        self.job = timeout(PATIENCE, asked).await.ok().flatten();
        self.job.is_some()
    }

    /// Asks until there is an answer, which must be the one given before, if one was.
    pub async fn ask_again(&mut self, url: &str, within: Duration) {
        let (before, deadline) = (self.job, Instant::now() + within);
        while !self.ask(url).await {
            assert!(Instant::now() < deadline, "nobody takes {}", self.key);
            sleep(POLL).await;
        }
        assert!(before.is_none() || before == self.job, "{} was {before:?} and is {:?} now", self.key, self.job);
    }
}
