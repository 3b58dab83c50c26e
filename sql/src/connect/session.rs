//! The settings of our sessions, all in one list. A database, a role and `postgresql.conf` may have other defaults, so
//! every setting that PC Farm's statements rest on stands here.
//!
//! Settings travel in the startup packet, so that `RESET ALL`, which an acceptance runs after an administrator's write-back,
//! returns to them. A pooler such as PgBouncer refuses or drops them there. [`Session::settle`] notices that and sends them by
//! `set_config`, with a copy in the setting `pcfarm.session`, from which the acceptance restores them.

use tokio_postgres::{Client, SimpleQueryMessage};

/// Defaults that the URL's `options` or PGOPTIONS may change. Each is known to every version from 15 on; an unknown one would
/// refuse the connection. `client_connection_check_interval` is missing because servers on Windows refuse it.
const DEFAULTS: &[(&str, &str)] = &[
    ("statement_timeout", "30s"),
    ("lock_timeout", "5s"),
    ("idle_in_transaction_session_timeout", "10s"),
    ("tcp_user_timeout", "30s"),
    ("tcp_keepalives_idle", "10s"),
    ("tcp_keepalives_interval", "5s"),
    ("tcp_keepalives_count", "4"),
    ("jit", "off"),
    ("client_min_messages", "notice"),
    ("plan_cache_mode", "auto"),
    ("enable_indexscan", "on"),
    ("enable_indexonlyscan", "on"),
    ("enable_nestloop", "on"),
];

/// Plans by index alone, where nothing runs but our own statements, each of which has its index. A plan is made once for a
/// connection, often while a table is empty, and reading all of an empty table costs nothing: with a hundred thousand
/// checkouts a night that plan would be the end of it; and a merge join reads an index from end to end. An administrator's
/// SQL is planned as ever.
pub const BY_INDEX: &str = "-c enable_seqscan=off -c enable_bitmapscan=off -c enable_mergejoin=off";

/// Settings that nothing changes, as correctness rests on them. Acknowledged work is on disk. A statement after a lock wait sees
/// the newest rows. Names and literals are read in one way, and so are values. Idle connections stay.
const FIXED: &[(&str, &str)] = &[
    ("synchronous_commit", "on"),
    ("search_path", "pg_catalog,pg_temp"),
    ("default_transaction_isolation", "read committed"),
    ("default_transaction_read_only", "off"),
    ("default_transaction_deferrable", "off"),
    ("timezone", "UTC"),
    ("datestyle", "ISO,YMD"),
    ("intervalstyle", "postgres"),
    ("bytea_output", "hex"),
    ("extra_float_digits", "1"),
    ("standard_conforming_strings", "on"),
    ("transform_null_equals", "off"),
    ("array_nulls", "on"),
    ("row_security", "on"),
    ("quote_all_identifiers", "off"),
    ("exit_on_error", "off"),
    ("check_function_bodies", "on"),
    ("idle_session_timeout", "0"),
    ("plpgsql.extra_errors", "none"),
];

/// Says where a session's settings came from: `startup`, or their copy in JSON.
const MARK: &str = "pcfarm.session";
const AT_STARTUP: &str = "startup";

const LOOK: &str = "select pg_catalog.current_setting('pcfarm.session', true), \
     pg_catalog.current_setting('transaction_timeout', true)";

/// Settings of one kind of connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Session {
    settings: Vec<(String, String)>,
    /// Words of the caller's options that are no `name=value`: they only fit the startup packet.
    rest: Vec<String>,
}

impl Session {
    /// Our settings around the caller's `options`.
    pub fn new(given: &str, by_index: bool) -> Session {
        let mut session = Session { settings: Vec::new(), rest: Vec::new() };
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        DEFAULTS.iter().map(owned).for_each(|(name, value)| session.set(name, value));
        if by_index {
            session.read(BY_INDEX);
        }
        session.read(given);
        FIXED.iter().map(owned).for_each(|(name, value)| session.set(name, value));
        session
    }

    /// Settings of a user's own session, in which the public SQL functions are called.
    pub fn of_user(given: &str) -> Session {
        let mut session = Session { settings: Vec::new(), rest: Vec::new() };
        // A database's defaults for these are meant for other programs. A load has the caller's `--timeout`.
        for (name, value) in [
            ("statement_timeout", "0"),
            ("lock_timeout", "20s"),
            ("idle_in_transaction_session_timeout", "10s"),
            ("idle_session_timeout", "0"),
        ] {
            session.set(name.to_owned(), value.to_owned());
        }
        session.read(given);
        for name in ["default_transaction_isolation", "default_transaction_read_only", "default_transaction_deferrable"]
        {
            let fixed = FIXED.iter().find(|(known, _)| *known == name);
            fixed.into_iter().for_each(|(name, value)| session.set((*name).to_owned(), (*value).to_owned()));
        }
        session
    }

    /// Reads `-c name=value`, `-cname=value` and `--name=value`; a backslash protects a space.
    fn read(&mut self, options: &str) {
        let mut words = words(options).into_iter();
        while let Some(word) = words.next() {
            let setting = match word.strip_prefix("--").or(word.strip_prefix("-c")) {
                Some("") if word == "-c" => words.next(),
                Some(setting) => Some(setting.to_owned()),
                None => None,
            };
            match setting.as_deref().and_then(|setting| setting.split_once('=')) {
                Some((name, value)) => self.set(name.replace('-', "_"), value.to_owned()),
                None => self.rest.push(word),
            }
        }
    }

    /// The last one wins, as on a command line.
    fn set(&mut self, name: String, value: String) {
        let name = name.to_ascii_lowercase();
        self.settings.retain(|(known, _)| *known != name);
        self.settings.push((name, value));
    }

    /// For the startup packet.
    pub fn options(&self) -> String {
        let protect = |text: &str| text.replace('\\', "\\\\").replace(' ', "\\ ");
        let mut words: Vec<String> = self.rest.iter().map(|word| protect(word)).collect();
        let mark = (MARK.to_owned(), AT_STARTUP.to_owned());
        words.extend(
            self.settings
                .iter()
                .chain([&mark])
                .map(|(name, value)| format!("-c {}", protect(&format!("{name}={value}")))),
        );
        words.join(" ")
    }

    /// Looks whether the settings arrived, and sends those that did not. Returns the statement that did so: after a
    /// `RESET ALL` it is needed again.
    pub async fn settle(&self, client: &Client) -> Result<Option<String>, tokio_postgres::Error> {
        let shown = client.simple_query(LOOK).await?;
        let row = shown.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let column = |n: usize| row.and_then(|row| row.try_get(n).ok().flatten());
        let mut missing = if column(0) == Some(AT_STARTUP) { Vec::new() } else { self.settings.clone() };
        // New in version 17, so that it cannot stand in the startup packet.
        if column(1).is_some_and(|limit| limit != "0") {
            missing.push(("transaction_timeout".to_owned(), "0".to_owned()));
        }
        if missing.is_empty() {
            return Ok(None);
        }
        let statement = statement(&missing);
        client.batch_execute(&statement).await?;
        Ok(Some(statement))
    }
}

/// Sets them all and keeps the copy.
fn statement(settings: &[(String, String)]) -> String {
    let rows: Vec<String> =
        settings.iter().map(|(name, value)| format!("({}, {})", literal(name), literal(value))).collect();
    format!(
        "with s(name, value) as materialized (values {}) \
         select pg_catalog.set_config(name, value, false) from s \
         union all select pg_catalog.set_config('{MARK}', (select pg_catalog.jsonb_object_agg(name, value)::text from s), false)",
        rows.join(", ")
    )
}

/// A literal that does not depend on `standard_conforming_strings`.
fn literal(text: &str) -> String {
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

fn words(options: &str) -> Vec<String> {
    let (mut words, mut word) = (Vec::new(), None::<String>);
    let mut characters = options.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => word.get_or_insert_default().extend(characters.next()),
            space if space.is_whitespace() => words.extend(word.take()),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_the_caller_change_defaults_and_nothing_that_is_fixed() {
        let given = r"-c statement_timeout=7s --lock-timeout=1s -cwork_mem=8MB -c a.b=x\ y\\z -d 2 -c SEARCH_PATH=evil";
        let session = Session::new(given, true);
        let value =
            |name: &str| session.settings.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
        let table = [
            ("statement_timeout", "7s"),
            ("lock_timeout", "1s"),
            ("work_mem", "8MB"),
            ("a.b", r"x y\z"),
            ("search_path", "pg_catalog,pg_temp"),
            ("enable_seqscan", "off"),
            ("default_transaction_isolation", "read committed"),
        ];
        for (name, expected) in table {
            assert_eq!(value(name), Some(expected), "{name}");
        }
        assert_eq!(session.rest, ["-d", "2"]);
        assert_eq!(words(&session.options()).iter().filter(|word| word.contains("search_path")).count(), 1);
        assert!(session.options().contains(r"-c a.b=x\ y\\z"), "{}", session.options());
        assert!(Session::new("", false).options().ends_with("-c pcfarm.session=startup"));
    }
}
