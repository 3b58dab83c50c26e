//! libpq's service files: named sets of connection parameters.

use std::path::PathBuf;

use super::conninfo::{self, Parameters};
use super::{Environment, SettingsError};

/// Fills parameters that were not given from a named service, which stands above the `PG*` variables.
pub(super) fn add_service(parameters: &mut Parameters, environment: &Environment) -> Result<(), SettingsError> {
    let service = match parameters.get("service") {
        Some(service) => service.clone(),
        None => match environment.get("PGSERVICE")? {
            Some(service) => service.to_owned(),
            None => return Ok(()),
        },
    };
    let own = match parameters.get("servicefile").map(String::as_str).or(environment.get("PGSERVICEFILE")?) {
        Some(path) => Some(PathBuf::from(path)),
        None => environment.home.as_ref().map(|home| home.join(".pg_service.conf")),
    };
    let system = environment.get("PGSYSCONFDIR")?.unwrap_or("/etc/postgresql-common");
    let files: Vec<PathBuf> = own.into_iter().chain([PathBuf::from(system).join("pg_service.conf")]).collect();
    for path in &files {
        if let Some(found) = service_in(path, &service)? {
            for (key, value) in found {
                parameters.entry(key).or_insert(value);
            }
            return Ok(());
        }
    }
    Err(SettingsError::NoService { service, files })
}

/// Parameters of one section. As in libpq, the first value of a repeated key counts.
fn service_in(path: &PathBuf, service: &str) -> Result<Option<Parameters>, SettingsError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            return Err(SettingsError::ServiceFile { path: path.clone(), source });
        }
    };
    let mut found: Option<Parameters> = None;
    for (index, line) in text.lines().map(str::trim).enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix('[') {
            if found.is_some() {
                break;
            }
            found = (name.trim_end_matches(']') == service).then(Parameters::new);
            continue;
        }
        if let Some(parameters) = &mut found {
            match line.split_once('=') {
                Some((key, value)) if conninfo::is_known(key) && key != "service" => {
                    parameters.entry(key.to_owned()).or_insert_with(|| value.to_owned());
                }
                _ => {
                    return Err(SettingsError::ServiceLine { path: path.clone(), line: index + 1 });
                }
            }
        }
    }
    Ok(found)
}
