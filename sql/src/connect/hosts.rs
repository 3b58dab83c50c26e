//! Copies of configurations, each with some of the hosts.

use std::ops::Range;

use rand::seq::SliceRandom;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, LoadBalanceHosts};

pub(super) fn number_of_hosts(config: &Config) -> usize {
    config.get_hosts().len().max(config.get_hostaddrs().len())
}

/// A configuration for each host, in the order in which they are tried.
pub(super) fn each_host(config: &Config) -> Vec<Config> {
    let hosts = number_of_hosts(config);
    if hosts < 2 {
        return vec![config.clone()];
    }
    let one = |n: usize| {
        let mut one = without_login(config, n..n + 1);
        log_in_as(&mut one, config);
        if let Some(options) = config.get_options() {
            one.options(options);
        }
        one
    };
    let mut all: Vec<Config> = (0..hosts).map(one).collect();
    if config.get_load_balance_hosts() == LoadBalanceHosts::Random {
        all.shuffle(&mut rand::rng());
    }
    all
}

pub(super) fn log_in_as(config: &mut Config, given: &Config) {
    if let Some(user) = given.get_user() {
        config.user(user);
    }
    if let Some(password) = given.get_password() {
        config.password(password);
    }
    if let Some(name) = given.get_application_name() {
        config.application_name(name);
    }
}

/// A copy with some of the hosts, without user, password, application name and options; tokio-postgres can set options, but not
/// unset them.
pub(super) fn without_login(given: &Config, hosts: Range<usize>) -> Config {
    let mut config = Config::new();
    let chosen = |n: &usize| hosts.contains(n);
    for (_, host) in given.get_hosts().iter().enumerate().filter(|(n, _)| chosen(n)) {
        match host {
            Host::Tcp(name) => config.host(name),
            #[cfg(unix)]
            Host::Unix(directory) => config.host_path(directory),
        };
    }
    for (_, address) in given.get_hostaddrs().iter().enumerate().filter(|(n, _)| chosen(n)) {
        config.hostaddr(*address);
    }
    // A single port is that of all hosts.
    let ports = given.get_ports();
    for (_, port) in ports.iter().enumerate().filter(|(n, _)| ports.len() == 1 || chosen(n)) {
        config.port(*port);
    }
    if let Some(database) = given.get_dbname() {
        config.dbname(database);
    }
    if let Some(limit) = given.get_connect_timeout() {
        config.connect_timeout(*limit);
    }
    if let Some(limit) = given.get_tcp_user_timeout() {
        config.tcp_user_timeout(*limit);
    }
    if let Some(interval) = given.get_keepalives_interval() {
        config.keepalives_interval(interval);
    }
    if let Some(retries) = given.get_keepalives_retries() {
        config.keepalives_retries(retries);
    }
    config
        .keepalives(given.get_keepalives())
        .keepalives_idle(given.get_keepalives_idle())
        .ssl_negotiation(given.get_ssl_negotiation())
        .channel_binding(given.get_channel_binding())
        .target_session_attrs(given.get_target_session_attrs())
        .load_balance_hosts(given.get_load_balance_hosts());
    config
}
