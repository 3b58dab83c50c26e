//! A faculty office, as a user of PC Farm would write it: seven job types on one queue.
//!
//! - [`file`]: a CSV file of enrolments, cut into pieces and read line by line
//! - [`enrolment`]: reads a file in steps, each of which enqueues its lines and the next step; judges one line
//! - [`mail`]: the SMTP relay
//! - [`message`]: one message, a mailing that enqueues its messages, and reports
//! - [`submit`]: the submitting side, by the queue and, to compare with, without it
//! - [`statements`]: the SQL files

pub mod enrolment;
pub mod file;
pub mod mail;
pub mod message;
pub mod statements;
pub mod submit;
