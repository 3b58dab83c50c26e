//! Time zone rules and collations, of which the server and PostgreSQL each have a copy. The server warns of differences at start.

use deadpool_postgres::Pool;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use pcfarm_sql::clock::{self, ChangedCollation, ZoneOffset};
use std::collections::BTreeMap;

/// Span that is compared. Longer than the longest time that a schedule is computed ahead.
const AHEAD_SECONDS: i64 = 2 * 365 * 86_400;
/// Instants between the server's own transitions find rules that PostgreSQL alone has.
const BETWEEN_SECONDS: i64 = 7 * 86_400;
/// Zones have at most four transitions a year.
const MOST_TRANSITIONS: usize = 16;

/// Warnings for administrators, one of them if the comparison fails.
pub async fn warnings(pool: &Pool) -> Vec<String> {
    match found(pool).await {
        Ok(warnings) => warnings,
        Err(error) => vec![format!("cannot compare time zone rules and collations with PostgreSQL's: {error:#}")],
    }
}

async fn found(pool: &Pool) -> anyhow::Result<Vec<String>> {
    let client = pool.get().await?;
    let mut zones = clock::zones_in_use(&*client).await?;
    let own = TimeZone::system().iana_name().map(str::to_owned);
    zones.extend(own.filter(|own| !zones.iter().any(|zone| zone.eq_ignore_ascii_case(own))));
    let now = Timestamp::now().as_second();
    let compared: Vec<(String, i64)> =
        zones.iter().flat_map(|zone| instants(zone, now).into_iter().map(|at| (zone.clone(), at))).collect();
    let mut warnings = zone_warnings(&clock::zone_offsets(&*client, &compared).await?);
    warnings.extend(clock::changed_collations(&*client).await?.iter().map(collation_warning));
    Ok(warnings)
}

/// Seconds since 1970 at which a zone is compared: one second before and at each of the server's own transitions, since rules often
/// differ for a few days alone, and one instant a week.
fn instants(zone: &str, now: i64) -> Vec<i64> {
    let end = now.saturating_add(AHEAD_SECONDS);
    let mut instants: Vec<i64> = (now..end).step_by(BETWEEN_SECONDS as usize).collect();
    if let (Ok(zone), Ok(from)) = (TimeZone::get(zone), Timestamp::from_second(now)) {
        let transitions = zone.following(from).map(|transition| transition.timestamp().as_second());
        instants.extend(transitions.take_while(|at| *at < end).take(MOST_TRANSITIONS).flat_map(|at| [at - 1, at]));
    }
    instants
}

/// One warning for each zone of which the server has other rules than PostgreSQL.
fn zone_warnings(of_database: &[ZoneOffset]) -> Vec<String> {
    let mut warnings = BTreeMap::new();
    for ZoneOffset { zone, at, seconds } in of_database {
        let own = TimeZone::get(zone).ok().zip(Timestamp::from_second(*at).ok());
        let own = own.map(|(zone, at)| i64::from(zone.to_offset(at).seconds()));
        if own == *seconds {
            continue;
        }
        let told =
            |offset: Option<i64>| offset.map_or_else(|| "no such zone".to_owned(), |s| format!("{s} s from UTC"));
        warnings.entry(zone).or_insert_with(|| {
            format!(
                "time zone {zone}: this server has other rules than PostgreSQL (at {at} s since 1970: {}; PostgreSQL: {}): \
                 update the package tzdata on both machines and restart both, or schedules and digests come at different times",
                told(own),
                told(*seconds)
            )
        });
    }
    warnings.into_values().collect()
}

fn collation_warning(of: &ChangedCollation) -> String {
    let version = |version: &Option<String>| version.clone().unwrap_or_else(|| "none".to_owned());
    format!(
        "{} has version {} now, and indexes were built with version {}: indexes of text may be in the wrong order; run \
         `reindex database`, and then `{}`",
        of.name,
        version(&of.actual),
        version(&of.recorded),
        of.refresh
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_with_other_rules_are_told_once() {
        let offset = |zone: &str, at, seconds| ZoneOffset { zone: zone.to_owned(), at, seconds };
        let same =
            [offset("Europe/Vienna", 1_700_000_000, Some(3600)), offset("Europe/Vienna", 1_720_000_000, Some(7200))];
        assert_eq!(zone_warnings(&same), Vec::<String>::new());
        let other = [offset("Europe/Vienna", 1_700_000_000, Some(0)), offset("Europe/Vienna", 1_720_000_000, Some(0))];
        let told = zone_warnings(&other);
        assert_eq!(told.len(), 1);
        assert!(told[0].contains("Europe/Vienna") && told[0].contains("tzdata"), "{told:?}");
        assert!(zone_warnings(&[offset("Europe/Vienna", 1_720_000_000, None)])[0].contains("PostgreSQL: no such zone"));
    }

    #[test]
    fn rules_that_differ_for_a_day_are_found() {
        let now = 1_700_000_000;
        let vienna = TimeZone::get("Europe/Vienna").expect("known");
        // PostgreSQL has the same rules, but for a day around a transition of 2025.
        let of_database: Vec<ZoneOffset> = instants("europe/vienna", now)
            .into_iter()
            .map(|at| {
                let own = vienna.to_offset(Timestamp::from_second(at).expect("near")).seconds();
                let seconds = if (1_743_296_400..1_743_382_800).contains(&at) { 3600 } else { i64::from(own) };
                ZoneOffset { zone: "europe/vienna".to_owned(), at, seconds: Some(seconds) }
            })
            .collect();
        let told = zone_warnings(&of_database);
        assert!(told.len() == 1 && told[0].contains("at 1743296400 s since 1970"), "{told:?}");
        let transitions = instants("Europe/Vienna", now).len() - instants("nowhere", now).len();
        assert_eq!(transitions, 2 * 4, "two instants for each of four transitions");
    }

    #[test]
    fn a_changed_collation_says_what_to_run() {
        let told = collation_warning(&ChangedCollation {
            name: "the default collation of database farm".to_owned(),
            recorded: Some("2.31".to_owned()),
            actual: Some("2.36".to_owned()),
            refresh: "alter database farm refresh collation version".to_owned(),
        });
        assert!(
            told.contains("2.36 now") && told.contains("version 2.31") && told.contains("alter database farm"),
            "{told}"
        );
    }
}
