//! PgBouncer before the PostgreSQL of a test.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio_postgres::config::Host;
use tokio_postgres::{Config, NoTls};

pub struct Bouncer {
    process: Child,
    pub port: u16,
    directory: TempDir,
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

impl Bouncer {
    /// Before this database, as its server's account. Its databases have the names of modes. `None` without PgBouncer.
    pub async fn start(target: &Config, more: &str) -> Option<Bouncer> {
        let program = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/opt/homebrew/bin/pgbouncer"]
            .into_iter()
            .find(|path| fs::exists(path).unwrap_or(false));
        let Some(program) = program else {
            crate::left_out::for_want_of("pgbouncer");
            return None;
        };
        let Some(Host::Unix(socket)) = target.get_hosts().first() else { panic!("a socket") };
        let place = format!(
            "host={} port={} dbname={} user={}",
            socket.display(),
            target.get_ports().first().expect("a port"),
            target.get_dbname().expect("a database"),
            target.get_user().expect("a user"),
        );
        let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its number").port();
        let directory = tempfile::Builder::new()
            .prefix("pcfarm-bouncer-")
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir()
            .expect("a directory");
        let file = directory.path().join("pgbouncer.ini");
        let databases: String =
            ["session", "transaction", "statement"].map(|mode| format!("{mode} = {place} pool_mode={mode}\n")).concat();
        let text = format!(
            "[databases]\n{databases}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = any\ndefault_pool_size = 30\n{more}\n"
        );
        fs::write(&file, text).expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("readable");
        let mut command = Command::new(program);
        // PgBouncer does not run as root.
        if fs::metadata(Path::new("/proc/self")).is_ok_and(|itself| itself.uid() == 0) {
            let owner = fs::metadata(socket).expect("the socket's folder");
            command.uid(owner.uid()).gid(owner.gid());
        }
        let log = fs::File::create(directory.path().join("log")).expect("a log");
        let process = command
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("pgbouncer starts");
        let bouncer = Bouncer { process, port, directory };
        let deadline = Instant::now() + Duration::from_secs(30);
        while let Err(error) = bouncer.config("session").connect(NoTls).await {
            assert!(Instant::now() < deadline, "pgbouncer does not answer: {error:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Some(bouncer)
    }

    /// Turns clients without TLS away from now on. `client_tls_sslmode = allow` was there before.
    pub async fn demand_tls(&self) {
        let file = self.directory.path().join("pgbouncer.ini");
        let text = fs::read_to_string(&file).expect("its settings");
        fs::write(&file, text.replace("client_tls_sslmode = allow", "client_tls_sslmode = require")).expect("written");
        let id = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(id, rustix::process::Signal::HUP).expect("told");
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.config("session").connect(NoTls).await.is_ok() {
            assert!(Instant::now() < deadline, "pgbouncer takes clients without TLS");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub fn config(&self, mode: &str) -> Config {
        let mut config = Config::new();
        config.host("127.0.0.1").port(self.port).user("anybody").dbname(mode);
        config
    }
}
