//! Proof that the agent of a session is alive, asked for when another agent names the same identity.
//!
//! A connection that is half open looks like an idle one. The server asks, and the agent answers with a heartbeat. On a slow link the
//! answer waits behind other data, so any sign of life on the connection after the question proves it alive, too.

use super::Session;
use pcfarm_proto::v1::{self, server_message};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Time for a sign of life.
const ANSWER_DEADLINE: Duration = Duration::from_secs(2);

/// Interval of looks for one.
const LOOK: Duration = Duration::from_millis(20);

/// A look that comes so much later than planned proves nothing: this process stood still, and answers may wait to be read.
const STOOD_STILL: Duration = Duration::from_secs(1);

impl Session {
    /// Asks the agent for a sign of life. False if none comes in time, or if the session ends.
    pub async fn is_alive(&self) -> bool {
        let (signs, silence_began) = (self.signs.count(), std::time::Instant::now());
        let message = server_message::Message::Probe(v1::Probe {});
        // Without room for it there is something that the agent reads if it is alive.
        drop(self.out.try_send(Ok(v1::ServerMessage { message: Some(message) }).into()));
        let has_answered = || self.signs.count() != signs || self.silence() < silence_began.elapsed();
        let (mut deadline, mut looked) = (Instant::now() + ANSWER_DEADLINE, Instant::now());
        while !has_answered() {
            if self.ended.is_cancelled() || self.out.is_closed() || Instant::now() > deadline {
                return false;
            }
            sleep(LOOK).await;
            if looked.elapsed() > LOOK + STOOD_STILL {
                deadline = Instant::now() + ANSWER_DEADLINE;
            }
            looked = Instant::now();
        }
        !self.ended.is_cancelled()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcfarm_proto::v1::Hello;

    #[tokio::test]
    async fn an_agent_that_answers_in_time_is_alive() {
        let (session, receiver) = Session::that_listens(1, &Hello::default());
        let mut receiver = receiver;
        let answer = async {
            let asked = receiver.recv().await.expect("a question").written().expect("a message");
            assert_eq!(asked.message, Some(server_message::Message::Probe(v1::Probe {})));
            sleep(LOOK * 3).await;
            session.heard();
        };
        let (alive, ()) = tokio::join!(session.is_alive(), answer);
        assert!(alive);
    }

    #[tokio::test]
    async fn silence_and_the_end_of_the_session_are_no_answers() {
        let (session, _receiver) = Session::that_listens(1, &Hello::default());
        let began = Instant::now();
        assert!(!session.is_alive().await);
        assert!(began.elapsed() >= ANSWER_DEADLINE);
        let ends = async {
            sleep(LOOK).await;
            session.ended.cancel();
        };
        let (began, (alive, ())) = (Instant::now(), tokio::join!(session.is_alive(), ends));
        assert!(!alive && began.elapsed() < ANSWER_DEADLINE);
    }
}
