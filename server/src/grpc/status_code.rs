//! The one place that turns errors of the database into gRPC statuses. What the caller did wrong is told in the words and
//! hints of the database's functions, which are written for people; what went wrong here is logged, whole and once, and
//! told without detail.

use super::{FIELD, LOST_UPDATE};
use deadpool_postgres::PoolError;
use pcfarm_sql::sharing;
use pcfarm_sql::submit::LoadError;
use std::error::Error as _;
use tokio_postgres::Error;
use tokio_postgres::error::{DbError, SqlState};
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};
use tracing::{debug, error, warn};

const UNAVAILABLE: &str = "the database does not answer: try again";
const INTERNAL: &str = "this failed for a reason of the server's own: its log says more";

/// For `map_err`, as is [`of_pool`].
pub fn of(failed: Error) -> Status {
    log(code(&failed), &failed);
    status(&failed, None)
}

pub fn of_pool(failed: PoolError) -> Status {
    match failed {
        PoolError::Backend(failed) => of(failed),
        PoolError::Timeout(_) | PoolError::Closed | PoolError::PostCreateHook(_) | PoolError::NoRuntimeSpecified => {
            log(Code::Unavailable, &failed);
            Status::unavailable(UNAVAILABLE)
        }
    }
}

pub fn of_load(failed: LoadError) -> Status {
    let message = failed.to_string();
    match &failed {
        LoadError::Convoy(_) | LoadError::TooMany => {
            log(Code::InvalidArgument, &failed);
            Status::invalid_argument(message)
        }
        LoadError::Refused { source, .. } => {
            log(code(source), &failed);
            status(source, Some(&message))
        }
        LoadError::Busy(_) => {
            log(Code::Aborted, &failed);
            Status::aborted(message)
        }
        LoadError::Database(source) => {
            log(code(source), &failed);
            status(source, None)
        }
    }
}

/// What the database says goes to the caller where it is about what the caller asked for.
fn status(failed: &Error, doing: Option<&str>) -> Status {
    let code = code(failed);
    let message = match (code, failed.as_db_error()) {
        (Code::Unavailable, _) => UNAVAILABLE.to_owned(),
        (Code::Internal, _) | (_, None) => INTERNAL.to_owned(),
        (_, Some(said)) => told(said),
    };
    let mut status = match doing {
        Some(doing) => Status::new(code, format!("{doing}: {message}")),
        None => Status::new(code, message),
    };
    let field = failed.as_db_error().and_then(DbError::constraint).and_then(field);
    if let Some(field) = field {
        status.metadata_mut().insert(FIELD, MetadataValue::from_static(field));
    }
    if is_lost_update(failed) {
        status.metadata_mut().insert(LOST_UPDATE, MetadataValue::from_static("true"));
    }
    status
}

/// Whether it names this field, which [`field`] has.
pub fn is_about(status: &Status, field: &str) -> bool {
    status.metadata().get(FIELD).is_some_and(|named| named == field)
}

fn is_lost_update(failed: &Error) -> bool {
    failed.code().is_some_and(|state| state.code() == sharing::LOST_UPDATE)
}

/// What a constraint is about, as requests call it.
fn field(constraint: &str) -> Option<&'static str> {
    Some(match constraint {
        "job_name_length" => "name",
        "key_at_most_1_kib" => "key",
        "payload_at_most_1_mib" => "payload",
        "info_is_an_object" | "info_at_most_64_kib" => "info",
        "job_type_name" => "name",
        "controller_name" | "job_type_controller" => "controller",
        "positive_duration" => "default_duration_seconds",
        "attempts_range" => "max_attempts",
        "positive_time_limit" => "time_limit_seconds",
        "positive_retry_delay" => "retry_delay_seconds",
        "positive_retry_delay_limit" => "retry_delay_limit_seconds",
        "retention_range" => "retention_seconds",
        "job_type_resources" | "tokens_positive" => "resources",
        "labels" => "labels",
        "note_at_most_1000" => "note",
        "drain_reason_at_most_200" => "reason",
        "require" => "require",
        "files" | "job_file_name" => "files",
        "quota_period" => "period",
        "quota_problems" => "problems",
        "quota_cpu_seconds" => "cpu_seconds",
        "most_file_bytes" => "most_file_bytes",
        _ => return None,
    })
}

/// The message, in our words where it is a constraint that speaks, and what to do.
fn told(said: &DbError) -> String {
    if let Some(words) = said.constraint().and_then(constraint_words) {
        return words.to_owned();
    }
    let mut text = match *said.code() {
        SqlState::LOCK_NOT_AVAILABLE | SqlState::T_R_DEADLOCK_DETECTED | SqlState::T_R_SERIALIZATION_FAILURE => {
            "somebody else is changing the same job: try again".to_owned()
        }
        SqlState::QUERY_CANCELED => "the database took too long over this".to_owned(),
        _ => said.message().to_owned(),
    };
    // Only our own functions' details are written for people; a constraint's shows the row.
    let detail = said.detail().filter(|_| said.constraint().is_none() && *said.code() == SqlState::UNIQUE_VIOLATION);
    for (what, more) in [("", detail), ("Hint: ", said.hint())] {
        if let Some(more) = more {
            text.push_str(if text.ends_with('.') { " " } else { ". " });
            text.push_str(what);
            text.push_str(more);
        }
    }
    text
}

fn constraint_words(name: &str) -> Option<&'static str> {
    Some(match name {
        "job_name_length" => "a job's name has from 1 to 200 characters",
        "resource_name" | "signal_name" | "job_type_name" => {
            "a name has at most 63 letters, digits, dots, hyphens and underscores"
        }
        "controller_name" => {
            "a controller is a name of at most 63 letters, digits, dots, hyphens and underscores, a program, exec:NAME, or a \
             module, wasm: and its SHA-256 in 64 small hexadecimal digits"
        }
        "file_name_length" => "a file's name has at most 255 characters",
        "queue_limit_not_negative" | "concurrency_not_negative" => "a limit is a number from 0 on",
        "allocation_range" => "an allocation is from 0 to 1000000 turns in a round",
        "tokens_not_negative" => "there are 0 tokens of a resource, or more",
        "problems_per_hour_not_negative" => "problems per hour are 0 or more",
        "problems_per_checkout_positive" => "a checkout has 1 problem or more",
        "positive_duration" => "the duration of a job is more than 0 seconds",
        "attempts_range" => "a problem has from 1 to 100 attempts",
        "positive_time_limit" => "a time limit is more than 0 seconds",
        "positive_retry_delay" | "positive_retry_delay_limit" => "a delay is more than 0 seconds",
        "retention_range" => "a retention is from 0 seconds to a thousand years",
        "tokens_positive" => "a problem has 1 token or more of a resource that it needs",
        "quota_problems" => "a quota is of 0 problems or more",
        "quota_cpu_seconds" => "a quota is of 0 CPU seconds or more",
        "info_at_most_64_kib" => "a job's info takes 64 KiB at most",
        "info_is_an_object" => "a job's info is a JSON object",
        "key_at_most_1_kib" => "a problem's key is longer than 1 KiB",
        "payload_at_most_1_mib" => {
            "its payload takes more than 1 MiB in the database, where numbers take more room than their text"
        }
        "note_at_most_1000" => "a note has at most 1000 characters",
        "drain_reason_at_most_200" => "why a workstation is drained is said in 200 characters at most",
        "account_pkey" => "there is an account of that name already",
        "account_name" => {
            "a user's name has letters, digits and _ . @ -, begins with a letter or digit, and has 63 at most"
        }
        _ => return None,
    })
}

fn code(failed: &Error) -> Code {
    let Some(state) = failed.code() else {
        // Not an answer of the database: the connection broke, or we and it do not understand each other.
        let broken = failed.is_closed() || failed.source().is_some_and(|cause| cause.is::<std::io::Error>());
        return if broken { Code::Unavailable } else { Code::Internal };
    };
    if is_lost_update(failed) {
        return Code::Aborted;
    }
    match *state {
        SqlState::NO_DATA_FOUND => Code::NotFound,
        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE => Code::FailedPrecondition,
        SqlState::UNDEFINED_OBJECT
        | SqlState::DATATYPE_MISMATCH
        | SqlState::FEATURE_NOT_SUPPORTED
        | SqlState::CHECK_VIOLATION
        | SqlState::NOT_NULL_VIOLATION
        | SqlState::STATEMENT_TOO_COMPLEX => Code::InvalidArgument,
        SqlState::UNIQUE_VIOLATION => Code::AlreadyExists,
        // A queue limit.
        SqlState::CONFIGURATION_LIMIT_EXCEEDED => Code::ResourceExhausted,
        SqlState::INSUFFICIENT_PRIVILEGE => Code::PermissionDenied,
        SqlState::QUERY_CANCELED => Code::DeadlineExceeded,
        SqlState::LOCK_NOT_AVAILABLE => Code::Aborted,
        SqlState::READ_ONLY_SQL_TRANSACTION => Code::Unavailable,
        _ => match state.code().get(..2) {
            // Data exceptions, of which an invalid parameter value is one; constraints; limits of a value.
            Some("22" | "23" | "54") => Code::InvalidArgument,
            Some("40") => Code::Aborted,
            // Connection exceptions, no resources, an operator's intervention, an I/O error.
            Some("08" | "53" | "57" | "58") => Code::Unavailable,
            Some(_) | None => Code::Internal,
        },
    }
}

fn log(code: Code, failed: &(dyn std::error::Error + 'static)) {
    match code {
        Code::Internal => error!(error = failed, "a call failed"),
        Code::Unavailable | Code::Aborted | Code::DeadlineExceeded => {
            warn!(error = failed, ?code, "a call was not done")
        }
        _ => debug!(error = failed, ?code, "a call was refused"),
    }
}
