//! Hosts, addresses and ports: libpq's parallel comma lists.

use std::net::IpAddr;
use std::path::PathBuf;

use tokio_postgres::config::Host;

use super::conninfo::Parameters;
use super::{DEFAULT_PORT, Environment, SettingsError, wrong};

/// One host and port with the name that password files know it by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub host: Host,
    pub address: Option<IpAddr>,
    pub port: u16,
    pub passfile_name: String,
}

/// Joins the comma lists of hosts, addresses and ports.
pub(super) fn places(parameters: &Parameters, environment: &Environment) -> Result<Vec<Place>, SettingsError> {
    let list = |key: &str| -> Vec<&str> {
        let values = parameters.get(key).map(|value| value.split(',').map(str::trim).collect());
        values.unwrap_or_default()
    };
    let addresses = list("hostaddr");
    let mut hosts = list("host");
    if hosts.is_empty() {
        hosts = vec![""; addresses.len().max(1)];
    }
    let incomplete = addresses.iter().any(|address| address.is_empty());
    if !addresses.is_empty() && (addresses.len() != hosts.len() || incomplete) {
        return Err(SettingsError::AddressCount { hosts: hosts.len(), addresses: addresses.len() });
    }
    let ports = list("port");
    if ports.len() > 1 && ports.len() != hosts.len() {
        return Err(SettingsError::PortCount { hosts: hosts.len(), ports: ports.len() });
    }
    let mut places = Vec::with_capacity(hosts.len());
    for (index, name) in hosts.into_iter().enumerate() {
        let port = match ports.get(index).or(ports.first()).copied().unwrap_or("") {
            "" => DEFAULT_PORT,
            text => match text.parse() {
                Ok(port) if port != 0 => port,
                _ => return Err(wrong("port", "a number from 1 to 65535")),
            },
        };
        places.push(place(name, addresses.get(index).copied().unwrap_or(""), port, environment)?);
    }
    Ok(places)
}

/// An address is connected to instead of the name that it stands beside; the certificate and the password file go by the name.
fn place(name: &str, address: &str, port: u16, environment: &Environment) -> Result<Place, SettingsError> {
    if !address.is_empty() {
        let address: IpAddr = address.parse().map_err(|_| wrong("hostaddr", "a list of IP addresses"))?;
        let name = if name.is_empty() { address.to_string() } else { name.to_owned() };
        return Ok(Place { host: Host::Tcp(name.clone()), address: Some(address), port, passfile_name: name });
    }
    if name.starts_with('@') {
        return Err(SettingsError::Unsupported { name: "host", value: name.to_owned() });
    }
    #[cfg(unix)]
    if name.is_empty() || name.starts_with('/') {
        let is_default = name.is_empty() || environment.socket_directory.as_os_str() == name;
        let directory = match name {
            "" => environment.socket_directory.clone(),
            path => PathBuf::from(path),
        };
        return Ok(Place {
            host: Host::Unix(directory),
            address: None,
            port,
            passfile_name: if is_default { "localhost" } else { name }.to_owned(),
        });
    }
    #[cfg(not(unix))]
    let _ = environment;
    let name = if name.is_empty() { "localhost" } else { name };
    Ok(Place { host: Host::Tcp(name.to_owned()), address: None, port, passfile_name: name.to_owned() })
}
