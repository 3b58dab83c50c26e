//! What is mailed: single messages, mailings that enqueue them, and reports.

use crate::mail::{Mail, NotSent, Post, RECIPIENTS_LIMIT};
use anyhow::Context;
use pcfarm_worker::{Controller, NewProblem, Problem};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// `message`: sends one message. It is sent again when its agent dies before the farm knows that it was; its `Message-ID`
/// is the same then.
#[derive(Clone, Debug)]
pub struct SingleMessage(pub Post);

/// Subject and body may be in the job's parameters instead, once for all messages.
#[derive(Debug, Serialize, Deserialize)]
pub struct Message {
    pub to: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
}

/// A job's parameters.
#[derive(Debug, Default, Deserialize)]
pub struct Parameters {
    #[serde(default)]
    pub subject: String,
    #[serde(default)]
    pub body: String,
    /// One unless said: then an address that the relay refuses is nobody else's trouble.
    pub recipients_per_message: Option<usize>,
}

#[derive(Debug, Serialize)]
pub struct Sent {
    recipients: usize,
    /// Why each recipient gets a message of its own instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    split: Option<String>,
}

impl Controller for SingleMessage {
    const NAME: &'static str = "message";
    type Payload = Message;
    type Solution = Sent;

    fn solve(&self, problem: &Problem<'_, Message>) -> anyhow::Result<Sent> {
        let Message { to, subject, body } = problem.payload();
        let shared: Parameters = problem.parameters()?.unwrap_or_default();
        let subject_text = subject.as_deref().unwrap_or(&shared.subject);
        let body_text = body.as_deref().unwrap_or(&shared.body);
        let mail = Mail { id: &message_id(problem), to, subject: subject_text, body: body_text };
        match self.0.send(&mail) {
            Ok(()) => Ok(Sent { recipients: to.len(), split: None }),
            // Which of them it is does not matter: the others shall not suffer.
            Err(NotSent::Refused(why)) if to.len() > 1 => {
                for one in to {
                    let message = Message { to: vec![one.clone()], subject: subject.clone(), body: body.clone() };
                    problem.enqueue(NewProblem::new(one, &message)?.job_type(problem.job_type()));
                }
                Ok(Sent { recipients: 0, split: Some(why) })
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn message_id<P>(problem: &Problem<'_, P>) -> String {
    format!("{}.{}", problem.job_id(), problem.problem_id())
}

/// `mailing`: reads some recipients, enqueues their messages, and then the step that reads the next ones. Its problem's key
/// is `mailing/recipient`, where the last step ended.
#[derive(Clone, Copy, Debug)]
pub struct Mailing;

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct MailingStep {
    #[serde(default)]
    recipients_before: usize,
}

/// A row of the related read `recipients`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Recipient {
    pub recipient_id: i64,
    pub email: String,
}

impl Controller for Mailing {
    const NAME: &'static str = "mailing";
    type Payload = MailingStep;
    /// How many recipients were read.
    type Solution = usize;

    fn solve(&self, problem: &Problem<'_, MailingStep>) -> anyhow::Result<usize> {
        let (mailing, _) = problem.key().split_once('/').context("the key is not mailing/recipient")?;
        let parameters: Parameters = problem.parameters()?.unwrap_or_default();
        let each = parameters.recipients_per_message.unwrap_or(1).clamp(1, RECIPIENTS_LIMIT);
        let recipients: Vec<Recipient> = problem.related("recipients")?;
        for some in recipients.chunks(each) {
            problem.enqueue(message(some)?);
        }
        let so_far = problem.payload().recipients_before + recipients.len();
        if let Some(last) = recipients.last() {
            let next = MailingStep { recipients_before: so_far };
            let key = format!("{mailing}/{}", last.recipient_id);
            problem.enqueue(NewProblem::new(key, &next)?.job_type(problem.job_type()));
        }
        problem.update_info(&json!({"recipients": so_far, "all_read": recipients.is_empty()}))?;
        Ok(recipients.len())
    }
}

/// Of its job's type, whose profile it counts against: as many as it has recipients.
fn message(some: &[Recipient]) -> anyhow::Result<NewProblem> {
    let to: Vec<String> = some.iter().map(|one| one.email.clone()).collect();
    let key = format!("message to {} and on", some[0].recipient_id);
    let message = NewProblem::new(key, &Message { to, subject: None, body: None })?;
    Ok(message.weight(u32::try_from(some.len())?))
}

/// `report`: mails what the related read `report` says, a line a row.
#[derive(Clone, Debug)]
pub struct Report(pub Post);

#[derive(Debug, Deserialize)]
pub struct Addressed {
    to: Vec<String>,
    subject: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct ReportRow {
    pub text: String,
}

impl Controller for Report {
    const NAME: &'static str = "report";
    type Payload = Addressed;
    /// Its lines.
    type Solution = usize;

    fn solve(&self, problem: &Problem<'_, Addressed>) -> anyhow::Result<usize> {
        let rows: Vec<ReportRow> = problem.related("report")?;
        let mut body: String = rows.iter().map(|row| format!("{}\n", row.text)).collect();
        if rows.is_empty() {
            body += "There is nothing to report.\n";
        }
        let Addressed { to, subject } = problem.payload();
        self.0.send(&Mail { id: &message_id(problem), to, subject, body: &body })?;
        Ok(rows.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcfarm_worker::trial::Trial;
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::thread::{JoinHandle, spawn};

    /// A relay for one connection, which knows nobody whose name is `gone`. Returns what was said to it.
    fn relay() -> (Post, JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("smtp://{}", listener.local_addr().expect("bound"));
        let saying = spawn(move || {
            let (stream, _) = listener.accept().expect("a connection");
            let mut answers = stream.try_clone().expect("one more descriptor");
            let mut answer = |text: &str| answers.write_all(format!("{text}\r\n").as_bytes()).expect("written");
            answer("220 relay");
            let mut said: Vec<String> = Vec::new();
            let mut is_body = false;
            for line in BufReader::new(stream).lines() {
                let line = line.unwrap_or_default();
                is_body &= line != ".";
                if !is_body {
                    answer(match line.split(' ').next().unwrap_or_default() {
                        "DATA" => "354 go on",
                        "RCPT" if line.contains("gone") => "550 5.1.1 no such mailbox",
                        "QUIT" => "221 bye",
                        _ => "250 fine",
                    });
                }
                is_body |= line == "DATA";
                let is_over = line == "QUIT";
                said.push(line);
                if is_over {
                    break;
                }
            }
            said
        });
        (Post::new(&url, "office@example.org").expect("sensible"), saying)
    }

    #[test]
    fn a_message_is_sent_with_the_jobs_subject_and_body() {
        let (post, relay) = relay();
        let trial = Trial::new("dean").parameters(&json!({"subject": "Room 12", "body": "It is free."}));
        let sent = trial.solve(&SingleMessage(post), &json!({"to": ["dean@example.org"]})).expect("sent");
        assert_eq!(sent, json!({"recipients": 1}));
        let said = relay.join().expect("it ends");
        for line in ["RCPT TO:<dean@example.org>", "Subject: Room 12", "Message-ID: <0.0@example.org>", "It is free."] {
            assert!(said.iter().any(|one| one == line), "{line}: {said:?}");
        }
    }

    #[test]
    fn a_refusal_fails_one_and_splits_several() {
        let (post, _relay) = relay();
        let error =
            Trial::new("x").solve(&SingleMessage(post), &json!({"to": ["gone@example.org"]})).expect_err("refused");
        assert!(format!("{error:#}").contains("no such mailbox"), "{error:#}");
        let (post, _relay) = relay();
        let to = json!({"to": ["a@example.org", "gone@example.org"], "subject": "News"});
        let solved = Trial::new("x").solve_whole(&SingleMessage(post), &to).expect("split");
        let keys: Vec<&str> = solved.enqueued.iter().map(NewProblem::key).collect();
        assert_eq!(keys, ["a@example.org", "gone@example.org"]);
        assert_eq!(solved.solution["recipients"], 0);
        let part: Message = solved.enqueued[0].payload().expect("a message");
        assert_eq!((part.to.as_slice(), part.subject.as_deref()), (&["a@example.org".to_owned()][..], Some("News")));
    }

    #[test]
    fn a_relay_that_is_away_is_a_failure() {
        let post = Post::new("smtp://127.0.0.1:1", "office@example.org").expect("sensible");
        let error = Trial::new("x").solve(&SingleMessage(post), &json!({"to": ["a@example.org", "b@example.org"]}));
        assert!(format!("{:#}", error.expect_err("nobody is there")).contains("did not take it"));
    }

    #[test]
    fn a_mailing_enqueues_messages_and_goes_on_until_nobody_is_left() {
        let mut trial = Trial::new("4/0").parameters(&json!({"recipients_per_message": 2}));
        for n in [11, 12, 15] {
            let row = Recipient { recipient_id: n, email: format!("p{n}@example.org") };
            trial = trial.related("recipients", Some("4/0"), &row);
        }
        let solved = trial.solve_whole(&Mailing, &json!({})).expect("a step");
        let keys: Vec<&str> = solved.enqueued.iter().map(NewProblem::key).collect();
        assert_eq!(keys, ["message to 11 and on", "message to 15 and on", "4/15"]);
        let expected = NewProblem::new("message to 11 and on", &json!({"to": ["p11@example.org", "p12@example.org"]}));
        assert_eq!(solved.enqueued[0], expected.expect("JSON").weight(2));
        assert_eq!(solved.info, Some(json!({"recipients": 3, "all_read": false})));
    }

    #[test]
    fn a_report_has_a_line_for_each_row() {
        let (post, relay) = relay();
        let mut trial = Trial::new("1");
        for text in ["two lines:", "the second"] {
            trial = trial.related("report", Some("1"), &ReportRow { text: text.to_owned() });
        }
        let to = json!({"to": ["dean@example.org"], "subject": "The week"});
        assert_eq!(trial.solve(&Report(post), &to).expect("sent"), json!(2));
        let said = relay.join().expect("it ends");
        assert!(said.windows(2).any(|pair| pair == ["two lines:", "the second"]), "{said:?}");
    }
}
