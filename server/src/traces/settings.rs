//! Whether spans are sent, where to and which: a setting of the server's, over the variables that OpenTelemetry has for it.

use std::time::Duration;

/// Spans that wait to be sent, some hundred bytes each: as many as OpenTelemetry has by default.
const DEFAULT_QUEUE: usize = 2_048;
const DEFAULT_BATCH: usize = 512;
/// Shorter than OpenTelemetry's own 5 s: what a server has not sent is lost when it is killed.
const DEFAULT_DELAY: Duration = Duration::from_secs(1);

/// What was wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// Of the collector, which speaks OTLP over gRPC.
    pub endpoint: String,
    pub sampler: Which,
    /// Spans that wait at most, those that are sent at once, and how long the first of them waits for others.
    pub queue: usize,
    pub batch: usize,
    pub delay: Duration,
    /// The collector's authority, a PEM file, if not one that this system trusts.
    pub certificate: Option<String>,
}

/// Which traces are seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Which {
    /// Of those that begin here, the share.
    pub share: f64,
    /// What came from elsewhere is as it was decided there.
    pub by_parent: bool,
}

/// `setting`: an address, or none. `variable`: the environment. Nothing: no spans are made.
pub fn wanted(setting: Option<&str>, variable: impl Fn(&str) -> Option<String>) -> Result<Option<Wanted>, String> {
    // An empty variable is as none: the standard says so.
    let variable = |name: &str| variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
    let of_traces = |name: &str| {
        variable(&format!("OTEL_EXPORTER_OTLP_TRACES_{name}"))
            .or_else(|| variable(&format!("OTEL_EXPORTER_OTLP_{name}")))
    };
    if variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Ok(None);
    }
    let exporter = variable("OTEL_TRACES_EXPORTER");
    let endpoint = match setting {
        Some("none") => return Ok(None),
        Some(address) => address.to_owned(),
        None if exporter.as_deref() == Some("none") => return Ok(None),
        None => match of_traces("ENDPOINT") {
            Some(address) => address,
            None => return Ok(None),
        },
    };
    if !(endpoint.starts_with("http://") || endpoint.starts_with("https://")) {
        return Err(format!("traces: {endpoint:?} is not an address such as http://collector:4317, nor none"));
    }
    // It is in logs.
    if endpoint.contains('@') {
        return Err("traces: a key is not for the address: show it with OTEL_EXPORTER_OTLP_HEADERS".to_owned());
    }
    if let Some(protocol) = of_traces("PROTOCOL").filter(|protocol| protocol != "grpc") {
        return Err(format!("OTEL_EXPORTER_OTLP_PROTOCOL is {protocol}: traces are sent by grpc, to port 4317 mostly"));
    }
    let number = |name: &str, default: usize| match variable(name) {
        None => Ok(default),
        Some(text) => match text.parse() {
            Ok(0) | Err(_) => Err(format!("{name} is {text:?}: let it be a number above 0")),
            Ok(number) => Ok(number),
        },
    };
    let queue = number("OTEL_BSP_MAX_QUEUE_SIZE", DEFAULT_QUEUE)?;
    let delay = number("OTEL_BSP_SCHEDULE_DELAY", DEFAULT_DELAY.as_millis() as usize)?;
    Ok(Some(Wanted {
        endpoint,
        sampler: which(variable("OTEL_TRACES_SAMPLER"), variable("OTEL_TRACES_SAMPLER_ARG"))?,
        queue,
        batch: number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", DEFAULT_BATCH)?.min(queue),
        delay: Duration::from_millis(delay as u64),
        certificate: of_traces("CERTIFICATE"),
    }))
}

fn which(name: Option<String>, argument: Option<String>) -> Result<Which, String> {
    let name = name.unwrap_or_else(|| "parentbased_always_on".to_owned());
    let share = || match argument.as_deref().map(str::parse) {
        None => Ok(1.0),
        Some(Ok(share)) if (0.0..=1.0).contains(&share) => Ok(share),
        Some(_) => Err(format!(
            "OTEL_TRACES_SAMPLER_ARG is {:?}: let it be a share from 0 to 1",
            argument.as_deref().unwrap_or_default()
        )),
    };
    let (own, by_parent) = match name.strip_prefix("parentbased_") {
        Some(own) => (own, true),
        None => (name.as_str(), false),
    };
    let share = match own {
        "always_on" => 1.0,
        "always_off" => 0.0,
        "traceidratio" => share()?,
        _ => {
            return Err(format!(
                "OTEL_TRACES_SAMPLER is {name:?}: let it be always_on, always_off or traceidratio, or one of these behind \
                 parentbased_"
            ));
        }
    };
    Ok(Which { share, by_parent })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(setting: Option<&str>, variables: &[(&str, &str)]) -> Result<Option<Wanted>, String> {
        wanted(setting, |name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    /// A setting, and variables.
    type Case<'a> = (Option<&'a str>, &'a [(&'a str, &'a str)]);

    const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4317");

    #[test]
    fn nothing_is_sent_unless_somebody_says_where() {
        let off: [Case; 6] = [
            (None, &[]),
            (None, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]),
            (None, &[ENDPOINT, ("OTEL_TRACES_EXPORTER", "none")]),
            (None, &[ENDPOINT, ("OTEL_SDK_DISABLED", "true")]),
            (Some("none"), &[ENDPOINT]),
            (Some("http://b:4317"), &[("OTEL_SDK_DISABLED", "TRUE")]),
        ];
        for (setting, variables) in off {
            assert_eq!(of(setting, variables), Ok(None), "{setting:?} {variables:?}");
        }
    }

    #[test]
    fn the_setting_goes_before_the_variables_and_the_signals_own_before_the_common_one() {
        let endpoint = |setting, variables: &[(&str, &str)]| {
            of(setting, variables).expect("sensible").map(|wanted| wanted.endpoint).unwrap_or_default()
        };
        assert_eq!(endpoint(Some("http://b:4317"), &[ENDPOINT]), "http://b:4317");
        let refused = of(Some("https://me:secret@b:4317"), &[]).expect_err("a key in an address");
        assert!(refused.contains("OTEL_EXPORTER_OTLP_HEADERS") && !refused.contains("secret"), "{refused}");
        assert_eq!(endpoint(None, &[ENDPOINT]), "http://a:4317");
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://c:4317");
        assert_eq!(endpoint(None, &[ENDPOINT, own]), "https://c:4317");
    }

    #[test]
    fn samplers_are_those_of_the_standard() {
        let which = |name: &str, share: &str| {
            of(None, &[ENDPOINT, ("OTEL_TRACES_SAMPLER", name), ("OTEL_TRACES_SAMPLER_ARG", share)])
                .map(|wanted| wanted.expect("on").sampler)
        };
        assert_eq!(which("", ""), Ok(Which { share: 1.0, by_parent: true }));
        assert_eq!(which("always_off", ""), Ok(Which { share: 0.0, by_parent: false }));
        assert_eq!(which("parentbased_traceidratio", "0.25"), Ok(Which { share: 0.25, by_parent: true }));
        for (name, share) in [("xray", ""), ("traceidratio", "2"), ("traceidratio", "NaN"), ("parentbased_x", "1")] {
            assert!(which(name, share).expect_err("refused").contains("OTEL_TRACES_SAMPLER"), "{name} {share}");
        }
    }

    #[test]
    fn nonsense_is_named() {
        assert!(of(Some("collector"), &[]).expect_err("no address").contains("http://"));
        let http = ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
        assert!(of(None, &[ENDPOINT, http]).expect_err("another protocol").contains("grpc"));
        assert_eq!(of(None, &[http]), Ok(None), "for whoever else reads it");
        let queue = ("OTEL_BSP_MAX_QUEUE_SIZE", "0");
        assert!(of(None, &[ENDPOINT, queue]).expect_err("no queue").contains("above 0"));
    }
}
