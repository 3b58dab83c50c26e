//! TLS to a real server: libpq's modes, good and bad certificates, client certificates, cancel requests.

use std::time::Duration;

use pcfarm_sql::pool;
use pcfarm_sql::settings::DatabaseSettings;

use crate::network::{Authority, Network, self_signed};

const RULES: &str = "hostssl all tls all trust\nhostnossl all plain all trust";

/// Result of connecting: encrypted, plain, or an error with all its causes.
async fn outcome(settings: &DatabaseSettings) -> String {
    let (client, _connection) = match settings.target.connect().await {
        Ok(connected) => connected,
        Err(error) => return text(&error),
    };
    let query = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";
    match client.query_one(query, &[]).await.expect("asked").get(0) {
        true => "encrypted".to_owned(),
        false => "plain".to_owned(),
    }
}

pub fn text(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", text(source)),
        None => error.to_string(),
    }
}

impl Network {
    async fn outcome(&self, words: &str, variables: &[(&str, &str)]) -> String {
        let conninfo = format!("hostaddr={} dbname=postgres {words}", self.address);
        match self.settings(&conninfo, variables) {
            Ok(settings) => outcome(&settings).await,
            Err(error) => text(&error),
        }
    }

    async fn expect(&self, table: &[(&str, &str)]) {
        for (words, expected) in table {
            let got = self.outcome(words, &[]).await;
            assert!(got.contains(expected), "{words}: {got}");
        }
    }
}

async fn with_roles() -> Network {
    let network = Network::start_default().await;
    let roles = "create role tls login superuser; create role plain login; create role cert login; \
         create role secret login password 'hush'";
    network.administrator().await.batch_execute(roles).await.expect("roles");
    network
}

#[tokio::test]
async fn modes_do_what_they_do_in_libpq() {
    let network = with_roles().await;
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    network.let_in("host all all all trust").await;
    // Without TLS on the server.
    network
        .expect(&[
            ("user=tls", "plain"),
            ("user=tls sslmode=disable", "plain"),
            ("user=tls sslmode=allow", "plain"),
            ("user=tls sslmode=prefer", "plain"),
            ("user=tls sslmode=require", "does not speak TLS, which sslmode=require demands. Set ssl = on"),
        ])
        .await;

    let root = network.at_home("ours.crt", &ours.certificate);
    let other = network.at_home("theirs.crt", &theirs.certificate);
    network.serve(&ours.issue("db", &["db.example.org", "db"], false), &theirs).await;
    network.let_in(RULES).await;
    network
        .expect(&[
            ("user=tls host=db", "encrypted"),
            ("user=plain host=db", "plain"), // prefer tries the other way when the login is refused
            ("user=tls host=db sslmode=allow", "encrypted"),
            ("user=plain host=db sslmode=allow", "plain"),
            ("user=tls host=db sslmode=disable", "no encryption"),
            ("user=tls host=db sslmode=require", "encrypted"),
            ("user=tls host=db sslmode=require ssl_min_protocol_version=TLSv1.3", "encrypted"),
            ("user=tls host=db sslmode=require ssl_max_protocol_version=TLSv1.2", "encrypted"),
            ("user=tls host=db sslmode=require sslsni=0", "encrypted"),
            // A root file that does not exist leaves the certificate unchecked below `require`, and is refused from there on.
            ("user=tls host=db sslrootcert=/nowhere.crt", "encrypted"),
            ("user=tls host=db sslmode=allow sslrootcert=/nowhere.crt", "encrypted"),
            ("user=tls host=db sslmode=require sslrootcert=/nowhere.crt", "cannot read /nowhere.crt"),
            ("user=tls host=db sslmode=verify-ca", "root.crt does not exist"),
        ])
        .await;
    let cases = [
        ("host=db sslmode=verify-full", "ours", "encrypted"),
        ("host=elsewhere sslmode=verify-ca", "ours", "encrypted"),
        ("host=elsewhere sslmode=require", "ours", "encrypted"),
        ("host=elsewhere sslmode=verify-full", "ours", "not for elsewhere but for"),
        ("sslmode=verify-full", "ours", "connect by such a name"), // by address
        ("host=db sslmode=verify-full", "theirs", "unknown authority: name the file of its authority by sslrootcert"),
        ("host=db sslmode=verify-ca", "theirs", "unknown authority"),
        ("host=db sslmode=require", "theirs", "unknown authority"),
        ("host=db sslmode=verify-full", "system", "unknown authority"),
        ("host=db sslmode=require", "system", "too weak for sslrootcert=system"),
    ];
    for (words, roots, expected) in cases {
        let roots = match roots {
            "ours" => root.as_str(),
            "theirs" => other.as_str(),
            system => system,
        };
        let got = network.outcome(&format!("user=tls {words} sslrootcert={roots}"), &[]).await;
        assert!(got.contains(expected), "{words} {roots}: {got}");
    }
    let words = format!("host=db hostaddr={} user=tls sslrootcert=/nowhere.crt", network.address);
    let warned = network.settings(&words, &[]).expect("read").warnings;
    assert!(warned.len() == 1 && warned[0].contains("not checked"), "{warned:?}");
    // The default file makes `require` verify.
    network.at_home(".postgresql/root.crt", &theirs.certificate);
    network.expect(&[("user=tls host=db sslmode=require", "unknown authority")]).await;
    network.at_home(".postgresql/root.crt", &ours.certificate);
    network.expect(&[("user=tls host=db sslmode=verify-full", "encrypted")]).await;

    network.serve(&ours.issue("db", &["db"], true), &theirs).await;
    network.expect(&[("user=tls host=db sslmode=verify-full", "has expired")]).await;
    let itself = self_signed("db");
    network.at_home(".postgresql/root.crt", &itself.certificate);
    network.serve(&itself, &theirs).await;
    network
        .expect(&[
            ("user=tls host=db sslmode=verify-full", "encrypted"),
            ("user=tls host=elsewhere sslmode=verify-full", "not for elsewhere"),
        ])
        .await;
}

#[tokio::test]
async fn each_of_several_hosts_is_tried_in_its_own_time() {
    let network = with_roles().await;
    let authority = Authority::new("ours");
    network.serve(&authority.issue("db", &["db"], false), &authority).await;
    network.let_in(RULES).await;
    let good = (network.address.as_str(), 5432);
    // Takes connections and says nothing, as a host that is frozen does.
    let frozen = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let frozen = ("127.0.0.1", frozen.local_addr().expect("bound").port());
    let gone = ("127.0.0.1", 1);
    // A host that refuses one way is tried the other way, although another host is out of reach.
    for (first, second, words, expected) in [
        (frozen, good, "user=tls", "encrypted"),
        (good, frozen, "user=plain sslmode=prefer", "plain"),
        (good, gone, "user=tls sslmode=allow", "encrypted"),
        (good, gone, "user=plain sslmode=prefer", "plain"),
        (gone, good, "user=tls sslmode=require", "encrypted"),
        (good, gone, "user=tls sslmode=disable", "no encryption"),
        (gone, gone, "user=tls", "onnection refused"),
        (frozen, frozen, "user=tls", "did not answer within"),
    ] {
        let hosts = format!("host={},{} port={},{} connect_timeout=2", first.0, second.0, first.1, second.1);
        let conninfo = format!("{hosts} dbname=postgres {words}");
        let got = outcome(&network.settings(&conninfo, &[]).expect("read")).await;
        assert!(got.contains(expected), "{conninfo}: {got}");
    }
    let hosts = format!("host={},{} port={},{} dbname=postgres user=tls", frozen.0, good.0, frozen.1, good.1);
    let settings = network.settings(&hosts, &[]).expect("read");
    let checked = pcfarm_sql::connect::pooler::refuse_transaction_pooling(&settings.target).await;
    assert!(checked.is_ok(), "{checked:?}");
    let pool = pool::pool(settings.target, 1, "several");
    assert!(pool.get().await.is_ok(), "a connection within the pool's limit");
}

#[tokio::test]
async fn certificates_of_the_manual_are_verified_as_libpq_verifies_them() {
    let network = with_roles().await;
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let root = network.at_home("ours.crt", &ours.certificate);
    let other = network.at_home("theirs.crt", &theirs.certificate);
    network.let_in(RULES).await;
    // The common name, the alternative names, X.509 version 1 or 3; host, root file, expected.
    let (unknown, wrong) = ("unknown authority", "not for db but for");
    for (pair, cases) in [
        (
            ours.issue_version_1("db"),
            [("db", &root, "encrypted"), ("x", &root, "not for x but for db"), ("db", &other, unknown)],
        ),
        (
            ours.issue("DB", &[], false),
            [("db", &root, "encrypted"), ("x", &root, "not for x but for DB"), ("db", &other, unknown)],
        ),
        (
            ours.issue("*.lab", &[], false),
            [("db.lab", &root, "encrypted"), ("a.db.lab", &root, "but for *.lab"), ("db", &root, wrong)],
        ),
        (
            ours.issue("db", &["other"], false),
            [("other", &root, "encrypted"), ("db", &root, wrong), ("other", &other, unknown)],
        ),
        // An address among the alternative names leaves the common name to hosts.
        (
            ours.issue("db", &["192.0.2.1"], false),
            [("db", &root, "encrypted"), ("x", &root, "not for x"), ("db", &other, unknown)],
        ),
    ] {
        network.serve(&pair, &theirs).await;
        for (host, roots, expected) in cases {
            let words = format!("user=tls host={host} sslmode=verify-full sslrootcert={roots}");
            network.expect(&[(&words, expected)]).await;
        }
        let by_authority = format!("user=tls host=elsewhere sslmode=verify-ca sslrootcert={root}");
        network.expect(&[(&by_authority, "encrypted"), ("user=tls sslmode=require", "encrypted")]).await;
    }
}

#[tokio::test]
async fn variables_services_and_client_certificates_count() {
    let network = with_roles().await;
    let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
    network.serve(&servers.issue("db", &["db"], false), &clients).await;
    network.let_in("hostssl all cert all cert\nhostssl all secret all scram-sha-256\nhostssl all all all trust").await;
    let root = network.at_home("root.crt", &servers.certificate);
    let own = clients.issue("cert", &[], false);
    let certificate = network.at_home("own.crt", &own.certificate);
    let key = network.at_home("own.key", &own.key);
    let variables = [
        ("PGSSLMODE", "verify-full"),
        ("PGSSLROOTCERT", root.as_str()),
        ("PGSSLCERT", certificate.as_str()),
        ("PGSSLKEY", key.as_str()),
        ("PGHOST", "db"),
        ("PGHOSTADDR", network.address.as_str()),
        ("PGUSER", "cert"),
        ("PGDATABASE", "postgres"),
    ];
    assert_eq!(outcome(&network.settings("", &variables).expect("read")).await, "encrypted");

    let service = format!(
        "[farm]\nhost=db\nhostaddr={}\ndbname=postgres\nuser=cert\nsslmode=verify-full\nsslrootcert={root}\n\
         sslcert={certificate}\nsslkey={key}\n",
        network.address
    );
    let file = network.at_home("services", &service);
    let named = network.settings("service=farm", &[("PGSERVICEFILE", &file)]).expect("read");
    assert_eq!(outcome(&named).await, "encrypted");

    let base = format!("host=db user=cert sslmode=verify-full sslrootcert={root}");
    network.expect(&[(&base, "demands a client certificate. Name it and its key by sslcert and sslkey")]).await;
    network.at_home(".postgresql/postgresql.crt", &own.certificate);
    network.expect(&[(&base, "has no key")]).await;
    let default_key = network.at_home(".postgresql/postgresql.key", &own.key);
    network.expect(&[(&base, "encrypted")]).await;
    std::fs::set_permissions(&default_key, std::os::unix::fs::PermissionsExt::from_mode(0o644)).expect("opened");
    network.expect(&[(&base, "chmod 0600")]).await;
    key_rules_are_those_of_libpq(&network, &base, &default_key).await;
    let stranger = servers.issue("cert", &[], false);
    network.at_home("stranger.crt", &stranger.certificate);
    let home = network.home.path().display();
    network.at_home("stranger.key", &stranger.key);
    let words = format!("{base} sslcert={home}/stranger.crt sslkey={home}/stranger.key");
    network.expect(&[(&words, "client certificate")]).await;
    let words = format!("{base} sslcert={certificate} sslkey={home}/stranger.key");
    network.expect(&[(&words, "do not belong together")]).await;

    // SCRAM, bound to the channel.
    let words = format!("host=db user=secret password=hush sslrootcert={root} sslcertmode=disable sslmode=verify-full");
    network.expect(&[(&format!("{words} channel_binding=require"), "encrypted")]).await;
}

/// The owner alone may read a key, and the group, too, if root owns it. Any owner will do.
async fn key_rules_are_those_of_libpq(network: &Network, base: &str, key: &str) {
    if !rustix::process::geteuid().is_root() {
        return; // only root can give files away
    }
    for (owner, mode, expected) in
        [(65_534, 0o600, "encrypted"), (65_534, 0o640, "chmod 0600"), (0, 0o640, "encrypted"), (0, 0o650, "chmod 0600")]
    {
        std::os::unix::fs::chown(key, Some(owner), None).expect("given away");
        std::fs::set_permissions(key, std::os::unix::fs::PermissionsExt::from_mode(mode)).expect("changed");
        network.expect(&[(base, expected)]).await;
    }
    network.at_home(".postgresql/root.crl", "");
    network.expect(&[(base, "lists of revoked certificates are not supported")]).await;
    std::fs::remove_file(network.home.path().join(".postgresql/root.crl")).expect("removed");
}

#[tokio::test]
async fn pools_logins_and_cancel_requests_are_encrypted() {
    let network = with_roles().await;
    let authority = Authority::new("servers");
    network.serve(&authority.issue("db", &["db"], false), &authority).await;
    network.let_in("hostssl all all all trust").await;
    network.at_home(".postgresql/root.crt", &authority.certificate);
    let conninfo = format!("host=db hostaddr={} dbname=postgres user=tls sslmode=verify-full", network.address);
    let settings = network.settings(&conninfo, &[]).expect("read");
    let is_encrypted = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";
    for pool in [
        pool::pool(settings.target.clone(), 1, "tls"),
        pool::pool_for_queries(settings.target.for_login("secret", None), 1, "tls"),
    ] {
        let client = pool.get().await.expect("connected");
        assert!(client.query_one(is_encrypted, &[]).await.expect("asked").get::<_, bool>(0));
    }
    let (client, mut connection) =
        pool::session_config(settings.target.clone(), "listening").connect().await.expect("connected");
    client.batch_execute("listen bell").await.expect("listening");
    network.administrator().await.batch_execute("notify bell, 'one'").await.expect("rung");
    assert!(matches!(connection.next().await, Some(tokio_postgres::AsyncMessage::Notification(_))));

    let cancel = client.cancel_token();
    let long = client.batch_execute("select pg_sleep(60)");
    let cancelling = async {
        let running = "select count(*) from pg_stat_activity where query like '%pg_sleep(60)%' and state = 'active' \
             and pid <> pg_backend_pid()";
        let administrator = network.administrator().await;
        while administrator.query_one(running, &[]).await.expect("asked").get::<_, i64>(0) == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // One that does not trust the server sends nothing.
        network.at_home(".postgresql/root.crt", &Authority::new("another").certificate);
        settings.target.cancel(&cancel).await;
        assert_eq!(administrator.query_one(running, &[]).await.expect("asked").get::<_, i64>(0), 1);
        network.at_home(".postgresql/root.crt", &authority.certificate);
        settings.target.cancel(&cancel).await;
    };
    let (ended, ()) = tokio::join!(tokio::time::timeout(Duration::from_secs(30), long), cancelling);
    let error = ended.expect("it was stopped").expect_err("cancelled");
    assert_eq!(error.code(), Some(&tokio_postgres::error::SqlState::QUERY_CANCELED));

    // Certificates are read at each connection: a renewed authority needs no restart.
    let other = Authority::new("renewed");
    network.serve(&other.issue("db", &["db"], false), &other).await;
    let refused = settings.target.connect().await.map(drop).expect_err("an unknown authority");
    assert!(refused.is_lasting(), "{refused}");
    network.at_home(".postgresql/root.crt", &other.certificate);
    settings.target.connect().await.map(drop).expect("known now");
}
