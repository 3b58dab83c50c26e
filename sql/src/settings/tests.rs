use tokio_postgres::config::TargetSessionAttrs;

use super::*;
use crate::tls::Roots;

fn environment(variables: &[(&str, &str)]) -> Environment {
    Environment {
        variables: variables.iter().map(|(name, value)| (name.to_string(), OsString::from(value))).collect(),
        os_user: Some("olga".to_owned()),
        home: None,
        socket_directory: PathBuf::from("/run/pg"),
    }
}

#[test]
fn the_database_is_found_as_libpq_finds_it() {
    type Variables = &'static [(&'static str, &'static str)];
    let table: &[(Option<&str>, Variables, &str)] = &[
        (
            None,
            &[],
            "database olga as olga at /run/pg/.s.PGSQL.5432 (from PostgreSQL's defaults, as no database was named)",
        ),
        (
            None,
            &[("PGHOST", "db,/tmp,"), ("PGPORT", "1,,3"), ("PGUSER", "ann"), ("PGDATABASE", "farm")],
            "database farm as ann at db:1, /tmp/.s.PGSQL.5432, /run/pg/.s.PGSQL.3 (from the PG* variables)",
        ),
        (
            None,
            &[("PGHOST", "db"), ("PGHOSTADDR", "10.0.0.7"), ("PGUSER", "ann")],
            "database ann as ann at db:5432 (10.0.0.7) (from the PG* variables)",
        ),
        (None, &[("PGHOSTADDR", "::1")], "database olga as olga at [::1]:5432 (from the PG* variables)"),
        (
            None,
            &[("DATABASE_URL", "postgres://a@x/y"), ("PGHOST", "no")],
            "database y as a at x:5432 (from DATABASE_URL)",
        ),
        (
            None,
            &[("DATABASE_URL", "postgres://a@x/y"), ("PCFARM_DATABASE_URL", "host=z")],
            "database olga as olga at z:5432 (from PCFARM_DATABASE_URL)",
        ),
        (
            Some("postgresql://f"),
            &[("PCFARM_DATABASE_URL", "host=z"), ("PGPORT", "7"), ("PGUSER", "u"), ("PGHOSTADDR", "10.0.0.7")],
            "database u as u at f:7 (from --database-url)",
        ),
        (Some(""), &[("DATABASE_URL", "host=z")], "database olga as olga at z:5432 (from DATABASE_URL)"),
        (
            Some("postgresql:///d?sslmode=verify-full"),
            &[],
            "database d as olga at /run/pg/.s.PGSQL.5432 (from --database-url)",
        ),
        (Some("postgresql://h?sslmode=allow"), &[], "database olga as olga at h:5432 (from --database-url)"),
    ];
    for (flag, variables, expected) in table {
        let settings = DatabaseSettings::resolve_in(*flag, &environment(variables));
        let shown = settings.map(|settings| settings.to_string());
        assert_eq!(shown.ok().as_deref(), Some(*expected), "{flag:?} {variables:?}");
    }
}

#[test]
fn what_cannot_be_obeyed_is_refused() {
    let table = [
        ("postgresql://h?sslmode=verify-full", "name a file by sslrootcert"),
        ("postgresql://h?sslmode=verify-full&sslrootcert=/nowhere", "cannot read /nowhere"),
        ("postgresql://h?sslmode=require&sslrootcert=system", "use sslmode=verify-full"),
        ("postgresql://h?sslmode=maybe", "sslmode must be"),
        ("postgresql://h?sslnegotiation=direct", "use sslmode=require"),
        ("host=h,/tmp sslmode=require", "cannot hold for Unix sockets"),
        ("postgresql://h?sslcrl=x", "not supported"),
        ("postgresql://h?gssencmode=require", "not supported"),
        ("postgresql://h?ssl_max_protocol_version=TLSv1.1", "ssl_max_protocol_version must be"),
        ("postgresql://h?channel_binding=maybe", "channel_binding cannot be used"),
        ("postgresql://h?require_auth=scram-sha-256", "not supported"),
        ("postgresql://h:0", "port must be"),
        ("postgresql://h:65536", "port must be"),
        ("host=a,b,c port=1,2", "2 ports for 3 hosts"),
        ("host=a hostaddr=1.1.1.1,2.2.2.2", "2 host addresses for 1 hosts"),
        ("host=a,b hostaddr=1.1.1.1,", "2 host addresses for 2 hosts"),
        ("hostaddr=name", "hostaddr must be"),
        ("connect_timeout=soon", "connect_timeout cannot be used"),
        ("target_session_attrs=fast", "target_session_attrs cannot be used"),
        ("host=@abstract", "not supported"),
        ("service=nowhere", "\"nowhere\""),
    ];
    for (flag, expected) in table {
        let error = DatabaseSettings::resolve_in(Some(flag), &environment(&[])).expect_err(flag);
        assert!(error.to_string().contains(expected), "{flag}: {error}");
    }
    let nobody = Environment::default();
    assert!(matches!(DatabaseSettings::resolve_in(None, &nobody), Err(SettingsError::NoUser)));
}

#[test]
fn limits_and_names_reach_the_configuration() {
    let variables = [("PGAPPNAME", "mine"), ("PGCONNECT_TIMEOUT", "3"), ("PGOPTIONS", "-c work_mem=8MB")];
    let settings = DatabaseSettings::resolve_in(
        Some("host=h target_session_attrs=primary tcp_user_timeout=1500"),
        &environment(&variables),
    )
    .expect("resolved");
    let config = settings.target.config();
    assert_eq!(config.get_application_name(), Some("mine"));
    assert_eq!(config.get_connect_timeout(), Some(&Duration::from_secs(3)));
    assert_eq!(config.get_tcp_user_timeout(), Some(&Duration::from_millis(1500)));
    assert_eq!(config.get_options(), Some("-c work_mem=8MB"));
    assert_eq!(config.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);

    let without = DatabaseSettings::resolve_in(Some("connect_timeout=0"), &environment(&[])).expect("resolved");
    assert_eq!(without.target.config().get_connect_timeout(), None);
    let default = DatabaseSettings::resolve_in(None, &environment(&[])).expect("resolved");
    assert_eq!(default.target.config().get_connect_timeout(), Some(&CONNECT_TIMEOUT));
}

#[test]
fn encryption_is_read_as_libpq_reads_it() {
    let mut at_home = environment(&[]);
    at_home.home = Some(PathBuf::from("/home/olga"));
    let of = |text: &str, variables: &[(&str, &str)]| {
        at_home.variables = environment(variables).variables;
        let settings = DatabaseSettings::resolve_in(Some(text), &at_home).expect(text);
        settings.target.encryption().clone()
    };
    let mut of = of;
    let default = of("host=h", &[]);
    assert_eq!((default.mode, default.sni), (Mode::Prefer, true));
    assert_eq!(default.roots, Roots::Default(PathBuf::from("/home/olga/.postgresql/root.crt")));
    let identity = default.identity.expect("the default files");
    assert_eq!((identity.key, identity.by_default), (PathBuf::from("/home/olga/.postgresql/postgresql.key"), true));
    assert_eq!(of("host=/tmp sslmode=require", &[]).mode, Mode::Disable, "a Unix socket");
    assert_eq!(of("host=h sslmode=allow", &[("PGSSLMODE", "require")]).mode, Mode::Allow);
    assert_eq!(of("host=h", &[("PGSSLMODE", "require")]).mode, Mode::Require);
    assert_eq!(of("host=h", &[("PGREQUIRESSL", "1")]).mode, Mode::Require);
    assert_eq!(of("host=h", &[("PGREQUIRESSL", "0")]).mode, Mode::Prefer);
    assert_eq!(of("host=h", &[("PGREQUIRESSL", "1"), ("PGSSLMODE", "allow")]).mode, Mode::Allow);
    assert!(of("host=h sslcertmode=disable sslsni=0", &[]).identity.is_none());
    assert_eq!(of("host=h ssl_min_protocol_version=TLSv1.3", &[]).versions.len(), 1);
    assert_eq!(of("host=h sslmode=disable sslrootcert=/nowhere", &[]).roots, Roots::None, "not looked at");
}

#[cfg(unix)]
fn private_file(directory: &std::path::Path, name: &str, text: &str, mode: u32) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = directory.join(name);
    std::fs::write(&path, text).expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("chmod");
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
#[cfg(unix)]
fn the_password_comes_from_the_first_place_that_has_one() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let text = "second:5432:*:ann:of-second\nlocalhost:*:*:*:of-socket\ndb:5432:farm:reader:of-reader\n";
    let passfile = private_file(directory.path(), "pass", text, 0o600);
    let open = private_file(directory.path(), "open", text, 0o644);
    type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], Option<&'a str>);
    let table: &[Case] = &[
        ("postgresql://ann:own@second", &[("PGPASSFILE", &passfile), ("PGPASSWORD", "env")], Some("own")),
        ("postgresql://ann@second", &[("PGPASSFILE", &passfile), ("PGPASSWORD", "env")], Some("env")),
        ("postgresql://ann@second", &[("PGPASSFILE", &passfile)], Some("of-second")),
        ("postgresql://ann@first,second", &[("PGPASSFILE", &passfile)], Some("of-second")),
        ("postgresql://ann@first", &[("PGPASSFILE", &passfile)], None),
        ("", &[("PGPASSFILE", &passfile)], Some("of-socket")),
        ("host=/run/pg", &[("PGPASSFILE", &passfile)], Some("of-socket")),
        ("host=/tmp", &[("PGPASSFILE", &passfile)], None),
        ("postgresql://ann@second", &[("PGPASSFILE", &open)], None),
        ("postgresql://ann@second", &[], None),
    ];
    for (flag, variables, expected) in table {
        let settings = DatabaseSettings::resolve_in(Some(flag), &environment(variables)).expect("resolved");
        assert_eq!(settings.target.config().get_password(), expected.map(str::as_bytes), "{flag} {variables:?}");
        let warns = variables.iter().any(|(_, value)| *value == open);
        assert_eq!(settings.warnings.len(), usize::from(warns), "{flag} {variables:?}");
        assert!(!format!("{settings} {settings:?}").contains("of-second"), "{flag}");
    }
    let variables = [("PGPASSFILE", passfile.as_str())];
    let settings = DatabaseSettings::resolve_in(Some("postgresql://ann@db/farm"), &environment(&variables));
    let settings = settings.expect("resolved");
    assert_eq!(settings.password_for("reader").as_deref(), Some("of-reader"));
    assert_eq!(settings.password_for("stranger"), None);

    // ~/.pgpass needs no variable.
    let mut at_home = environment(&[]);
    at_home.home = Some(directory.path().to_owned());
    private_file(directory.path(), ".pgpass", text, 0o600);
    let settings = DatabaseSettings::resolve_in(Some("postgresql://ann@second"), &at_home).expect("resolved");
    assert_eq!(settings.target.config().get_password(), Some("of-second".as_bytes()));
}

#[test]
#[cfg(unix)]
fn a_service_stands_between_the_url_and_the_variables() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let text = "# ours\n[other]\nhost=o\n[farm]\nhost=s\nport=9\nuser=su\nport=10\n\n[later]\nnonsense\n";
    let file = private_file(directory.path(), "service", text, 0o644);
    let variables = [("PGSERVICE", "farm"), ("PGSERVICEFILE", file.as_str()), ("PGUSER", "eve"), ("PGDATABASE", "d")];
    let shown = |flag| DatabaseSettings::resolve_in(flag, &environment(&variables)).expect("resolved").to_string();
    assert_eq!(shown(None), "database d as su at s:9 (from the PG* variables)");
    assert_eq!(shown(Some("host=u")), "database d as su at u:9 (from --database-url)");
    let broken = [("PGSERVICE", "later"), ("PGSERVICEFILE", file.as_str())];
    let error = DatabaseSettings::resolve_in(None, &environment(&broken)).expect_err("nonsense");
    assert!(matches!(error, SettingsError::ServiceLine { line: 11, .. }), "{error}");
}

#[test]
fn a_variable_that_is_not_text_is_named() {
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStringExt;
        let mut odd = environment(&[]);
        odd.variables.insert("PGUSER".to_owned(), OsString::from_vec(vec![0xff]));
        let error = DatabaseSettings::resolve_in(None, &odd).expect_err("not UTF-8");
        assert!(error.to_string().contains("PGUSER"), "{error}");
    }
}

proptest::proptest! {
    /// Whatever somebody writes as a connection string: parameters, or an error that does not quote it.
    #[test]
    fn any_connection_string_is_read_or_refused(
        pieces in proptest::collection::vec(proptest::sample::select(vec![
            "postgresql://", "host", "port", "=", "'", "\\", " ", "@", ":", "/", "?", "&", ",", "[", "]", "::1", "5432", "%41", "%", "%0",
            "dbname", "user:secret@", "user", "\u{0}", "ä", "target_session_attrs=read-write",
        ]), 0..16),
    ) {
        let text = pieces.concat();
        if let Err(error) = super::conninfo::parse(&text) {
            proptest::prop_assert!(!error.to_string().contains("secret"), "{} of {}", error, text);
        }
    }

    #[test]
    fn a_quoted_value_is_read_as_it_was_written(value in "[^\u{0}]{1,30}") {
        let quoted = value.replace('\\', "\\\\").replace('\'', "\\'");
        let parameters = super::conninfo::parse(&format!("user='{quoted}' host=h")).expect("it is well quoted");
        proptest::prop_assert_eq!(parameters.get("user"), Some(&value));
    }
}

mod fuzz {
    use super::super::conninfo;

    #[test]
    fn a_connection_string() {
        bolero::check!().for_each(|bytes: &[u8]| {
            if let Ok(text) = std::str::from_utf8(bytes) {
                drop(conninfo::parse(text));
            }
        });
    }
}
