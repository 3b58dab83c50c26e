//! A cluster that listens on a network address of its own, with certificates, for tests of TLS, poolers and rights.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use pcfarm_sql::cluster::{Cluster, ClusterOptions};
use pcfarm_sql::connect::connect;
use pcfarm_sql::settings::{DatabaseSettings, Environment, SettingsError};
use pcfarm_sql::testing::test_cluster_options;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use tempfile::TempDir;
use tokio_postgres::Client;

pub struct Network {
    pub cluster: Cluster,
    /// Its address, where port 5432 is its own.
    pub address: String,
    /// Home directory of the client.
    pub home: TempDir,
}

/// A certificate with its key, in PEM.
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

pub struct Authority {
    pub certificate: String,
    pub issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn new(name: &str) -> Authority {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let certificate = params.self_signed(&key).expect("an authority").pem();
        Authority { certificate, issuer: Issuer::new(params, key) }
    }

    pub fn issue(&self, common_name: &str, names: &[&str], is_expired: bool) -> Pair {
        let key = KeyPair::generate().expect("a key");
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        if is_expired {
            params.not_before = rcgen::date_time_ymd(2020, 1, 1);
            params.not_after = rcgen::date_time_ymd(2020, 2, 1);
        }
        let certificate = params.signed_by(&key, &self.issuer).expect("signed").pem();
        Pair { certificate, key: key.serialize_pem() }
    }
}

/// Certificate that is its own authority, as PostgreSQL's manual makes it for a quick start.
pub fn self_signed(name: &str) -> Pair {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    Pair { certificate: params.self_signed(&key).expect("signed").pem(), key: key.serialize_pem() }
}

impl Network {
    pub async fn start(options: ClusterOptions) -> Network {
        // All of 127.0.0.0/8 leads to this machine. Tests of other processes have other numbers.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = std::process::id().wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed) << 16);
        let address = format!("127.{}.{}.{}", 64 + (id >> 16) % 64, (id >> 8) & 255, 1 + (id & 255) % 254);
        let mut options = options;
        options.settings.push(("listen_addresses".to_owned(), address.clone()));
        let cluster = Cluster::start(options).await.expect("a cluster");
        Network { cluster, address, home: tempfile::tempdir().expect("a home") }
    }

    pub async fn start_default() -> Network {
        Network::start(test_cluster_options()).await
    }

    /// The administrator, over the socket.
    #[expect(clippy::disallowed_methods, reason = "the connection ends with the client, which the test drops")]
    pub async fn administrator(&self) -> Client {
        let (client, connection) = connect(&self.cluster.config()).await.expect("it answers");
        tokio::spawn(async move { drop(connection.ended().await) });
        client
    }

    fn data(&self) -> PathBuf {
        self.cluster.directory().join("data")
    }

    /// A file that only PostgreSQL may read.
    pub fn write(&self, name: &str, text: &str) {
        let path = self.data().join(name);
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("private");
        let owner = fs::metadata(self.data()).expect("the data");
        chown(&path, Some(owner.uid()), Some(owner.gid())).expect("given");
    }

    /// A file of the client's home.
    pub fn at_home(&self, name: &str, text: &str) -> String {
        let path = self.home.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("private");
        path.to_str().expect("UTF-8").to_owned()
    }

    /// Rules of `pg_hba.conf` for the network. PostgreSQL reads them and its certificates again.
    pub async fn let_in(&self, rules: &str) {
        self.write("pg_hba.conf", &format!("local all all trust\n{rules}\n"));
        self.reload().await;
    }

    pub async fn reload(&self) {
        let administrator = self.administrator().await;
        let loaded = "select pg_conf_load_time()::text";
        let before: String = administrator.query_one(loaded, &[]).await.expect("asked").get(0);
        administrator.batch_execute("select pg_reload_conf()").await.expect("told");
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        loop {
            // A new session is made by the postmaster, which has read them; an old one may not have yet.
            let now: String = self.administrator().await.query_one(loaded, &[]).await.expect("asked").get(0);
            if now != before {
                return;
            }
            assert!(std::time::Instant::now() < deadline, "the settings were not read again");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    /// Turns TLS on, with this certificate, and asks clients for theirs.
    pub async fn serve(&self, pair: &Pair, clients: &Authority) {
        self.write("server.crt", &pair.certificate);
        self.write("server.key", &pair.key);
        self.write("clients.crt", &clients.certificate);
        let administrator = self.administrator().await;
        for setting in ["ssl = on", "ssl_ca_file = 'clients.crt'"] {
            administrator.batch_execute(&format!("alter system set {setting}")).await.expect("set");
        }
        self.reload().await;
    }

    /// Settings as a program with this home would find them.
    pub fn settings(&self, url: &str, variables: &[(&str, &str)]) -> Result<DatabaseSettings, SettingsError> {
        settings_at(self.home.path(), url, variables)
    }
}

pub fn settings_at(home: &Path, url: &str, variables: &[(&str, &str)]) -> Result<DatabaseSettings, SettingsError> {
    let environment = Environment {
        variables: variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect(),
        os_user: Some("olga".to_owned()),
        home: Some(home.to_owned()),
        socket_directory: PathBuf::from("/nowhere"),
    };
    DatabaseSettings::resolve_in(Some(url).filter(|url| !url.is_empty()), &environment)
}
