//! The office's SQL, in the order in which it is run.

/// Schema `office`; safe to run again.
pub const SCHEMA: &str = include_str!("../sql/schema.sql");
/// The job types, with all that they need; safe to run again.
pub const JOB_TYPES: &str = include_str!("../sql/job_types.sql");
/// People and courses to try it with.
pub const SAMPLE: &str = include_str!("../sql/sample.sql");

/// A job of each of the seven types.
pub const SUBMITS: [&str; 7] = [
    include_str!("../sql/submit_enrolments.sql"),
    include_str!("../sql/submit_enrolment_file.sql"),
    include_str!("../sql/submit_mailing.sql"),
    include_str!("../sql/submit_single_message.sql"),
    include_str!("../sql/submit_weekly_report.sql"),
    include_str!("../sql/submit_daily_logon_report.sql"),
    include_str!("../sql/submit_offering_copy.sql"),
];

/// For `submit::direct`: what is to be known of a line, and its enrolment.
pub const DIRECT_FACTS: &str = include_str!("../sql/direct_facts.sql");
pub const DIRECT_ENROL: &str = include_str!("../sql/direct_enrol.sql");
