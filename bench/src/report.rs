//! What one table of figures says: runs, their medians, what was promised, what was skipped. Written as one JSON
//! document, and for people.

use crate::machine::Machine;
use crate::plot::Plot;
use comfy_table::{CellAlignment, Table};
use serde_json::{Value, json};
use std::time::Instant;

/// Named values of one run, in the order in which they are to be shown. Names end in their unit: `_per_second`, `_ms`,
/// `_ratio`, `_percent`, `_mib`.
#[derive(Clone, Debug, Default)]
pub struct Figures(Vec<(String, f64)>);

impl Figures {
    pub fn add(&mut self, name: impl Into<String>, value: f64) {
        self.0.push((name.into(), value));
    }

    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
    }

    /// Adds `name`, one figure over another of the same run, if both are there.
    pub fn add_ratio(&mut self, name: impl Into<String>, over: &str, under: &str) {
        if let (Some(over), Some(under)) = (self.get(over), self.get(under))
            && under > 0.0
        {
            self.add(name, over / under);
        }
    }

    fn json(&self) -> Value {
        self.0.iter().map(|(name, value)| (name.clone(), json!(value))).collect::<serde_json::Map<_, _>>().into()
    }
}

/// Something that was not measured, and why.
#[derive(Clone, Debug)]
pub struct Skipped {
    pub what: String,
    pub why: String,
}

/// A bound that a figure should keep, and whether these runs kept it.
#[derive(Clone, Debug)]
pub struct Promise {
    pub text: String,
    pub kept: bool,
    /// It is of no rate or time, which a quick run is too short for.
    pub is_of_any_run: bool,
}

/// One table of figures, as it grows.
#[derive(Debug)]
pub struct Report {
    pub table: &'static str,
    quick: bool,
    started: Instant,
    seconds: f64,
    processed: u64,
    runs: Vec<Figures>,
    notes: Vec<String>,
    skipped: Vec<Skipped>,
    promises: Vec<Promise>,
    plots: Vec<Plot>,
}

impl Report {
    pub fn new(table: &'static str, quick: bool) -> Report {
        Report {
            table,
            quick,
            started: Instant::now(),
            seconds: 0.0,
            processed: 0,
            runs: Vec::new(),
            notes: Vec::new(),
            skipped: Vec::new(),
            promises: Vec::new(),
            plots: Vec::new(),
        }
    }

    /// A whole run. A figure that only some runs have gets its median over those.
    pub fn run(&mut self, figures: Figures) {
        self.runs.push(figures);
    }

    /// Problems, rows or jobs that were put through, in all.
    pub fn processed(&mut self, count: u64) {
        self.processed += count;
    }

    /// A setting, a version, whatever a reader must know to believe the figures.
    pub fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    pub fn skip(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.skipped.push(Skipped { what: what.into(), why: why.into() });
    }

    pub fn promise(&mut self, text: impl Into<String>, kept: bool) {
        self.promises.push(Promise { text: text.into(), kept, is_of_any_run: false });
    }

    /// The same, of what a quick run can break as well: nothing is lost, everything is measured.
    fn promise_of_any_run(&mut self, text: String, kept: bool) {
        self.promises.push(Promise { text, kept, is_of_any_run: true });
    }

    /// The table ended before it was measured.
    pub fn fail(&mut self, error: &anyhow::Error) {
        self.promise_of_any_run(format!("it is measured to its end: {error:#}"), false);
    }

    pub fn has_runs(&self) -> bool {
        !self.runs.is_empty()
    }

    /// Promises that a figure's median is at least so much. What was not measured was not kept.
    pub fn promise_at_least(&mut self, name: &str, bound: f64) {
        self.promise_of(name, "least", bound, |median| median >= bound);
    }

    /// The same, at most.
    pub fn promise_at_most(&mut self, name: &str, bound: f64) {
        self.promise_of(name, "most", bound, |median| median <= bound);
    }

    /// The same, of every run.
    pub fn promise_always_at_most(&mut self, name: &str, bound: f64) {
        let worst = self.runs.iter().filter_map(|run| run.get(name)).max_by(f64::total_cmp);
        let bound_shown = shown(bound);
        match worst.filter(|_| self.runs.iter().all(|run| run.get(name).is_some())) {
            Some(worst) => {
                let text = format!("{name} is never more than {bound_shown}: {}", shown(worst));
                self.promise_figure(text, bound, worst <= bound);
            }
            None => self.promise_of_any_run(format!("{name} is never more than {bound_shown}: not measured"), false),
        }
    }

    fn promise_of(&mut self, name: &str, at: &str, bound: f64, keeps: impl Fn(f64) -> bool) {
        let bound_shown = shown(bound);
        match self.median(name) {
            Some(median) => {
                let text = format!("{name} is at {at} {bound_shown}: {}", shown(median));
                self.promise_figure(text, bound, keeps(median));
            }
            None => self.promise_of_any_run(format!("{name} is at {at} {bound_shown}: not measured"), false),
        }
    }

    fn promise_figure(&mut self, text: String, bound: f64, kept: bool) {
        if bound == 0.0 { self.promise_of_any_run(text, kept) } else { self.promise(text, kept) }
    }

    pub fn plot(&mut self, plot: Plot) {
        self.plots.push(plot);
    }

    pub fn plots(&self) -> &[Plot] {
        &self.plots
    }

    /// The time stops here.
    pub fn finish(&mut self) {
        self.seconds = self.started.elapsed().as_secs_f64();
    }

    /// All that such a run can keep.
    pub fn promises_kept(&self) -> bool {
        self.promises.iter().all(|promise| promise.kept || self.is_too_short_for(promise))
    }

    fn is_too_short_for(&self, promise: &Promise) -> bool {
        self.quick && !promise.is_of_any_run
    }

    pub fn median(&self, name: &str) -> Option<f64> {
        median(self.runs.iter().filter_map(|run| run.get(name)).collect())
    }

    /// Every figure's name, in the order of its first appearance.
    fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in self.runs.iter().flat_map(|run| &run.0) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        names
    }

    pub fn json(&self, machine: &Machine) -> Value {
        let figures: serde_json::Map<String, Value> =
            self.names().iter().map(|name| ((*name).to_owned(), json!(self.median(name)))).collect();
        json!({
            "table": self.table,
            "quick": self.quick,
            "machine": machine.json(),
            "seconds": self.seconds,
            "processed": self.processed,
            "names": self.names(),
            "figures": figures,
            "runs": self.runs.iter().map(Figures::json).collect::<Vec<_>>(),
            "notes": self.notes,
            "skipped": self.skipped.iter().map(|s| json!({"what": s.what, "why": s.why})).collect::<Vec<_>>(),
            "promises": self.promises.iter().map(|p| json!({"promise": p.text, "kept": p.kept})).collect::<Vec<_>>(),
            "points": self.plots.iter().map(Plot::json).collect::<Vec<_>>(),
        })
    }

    /// Each figure with its median and the range of its runs.
    pub fn text(&self) -> String {
        let mut table = Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        table.set_header(["figure", "median", "least", "most", "runs"]);
        for name in self.names() {
            let values: Vec<f64> = self.runs.iter().filter_map(|run| run.get(name)).collect();
            let least = values.iter().copied().fold(f64::INFINITY, f64::min);
            let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let median = median(values.clone()).unwrap_or(f64::NAN);
            table.add_row([name.to_owned(), shown(median), shown(least), shown(most), values.len().to_string()]);
        }
        for n in 1..5 {
            if let Some(column) = table.column_mut(n) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let label = if self.quick { " (quick: too short to be believed)" } else { "" };
        let mut text = format!("{}{label}, {:.0} s, {} processed\n{table}\n", self.table, self.seconds, self.processed);
        self.notes.iter().for_each(|note| text += &format!("  {note}\n"));
        self.skipped.iter().for_each(|s| text += &format!("  skipped: {}: {}\n", s.what, s.why));
        for promise in &self.promises {
            let outcome = match promise.kept {
                true => "kept",
                false if self.is_too_short_for(promise) => "missed, in too short a run to tell",
                false => "BROKEN",
            };
            text += &format!("  {outcome}: {}\n", promise.text);
        }
        text
    }
}

/// A table's document as a part of `RESULTS.md`.
pub fn page(document: &Value) -> String {
    let texts = |of: &Value| of.as_array().cloned().unwrap_or_default();
    let text_of = |of: &Value| of.as_str().unwrap_or_default().to_owned();
    let label = if document["quick"] == true { " (quick)" } else { "" };
    let mut text = format!(
        "## {}{label}\n\n| figure | median | least | most | runs |\n| --- | ---: | ---: | ---: | ---: |\n",
        text_of(&document["table"])
    );
    let runs = texts(&document["runs"]);
    for name in texts(&document["names"]).iter().map(text_of) {
        let values: Vec<f64> = runs.iter().filter_map(|run| run[&name].as_f64()).collect();
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let count = values.len();
        let median = median(values).unwrap_or(f64::NAN);
        text += &format!("| {name} | {} | {} | {} | {count} |\n", shown(median), shown(least), shown(most));
    }
    let (seconds, processed) = (document["seconds"].as_f64().unwrap_or_default(), &document["processed"]);
    let machine = &document["machine"];
    text += &format!("\n{} runs, {seconds:.0} s, {processed} processed; commit ", runs.len());
    text +=
        &format!("{}, {}, on {}.\n", text_of(&machine["commit"]), text_of(&machine["date"]), text_of(&machine["text"]));
    let mut list = |title: &str, lines: Vec<String>| {
        if !lines.is_empty() {
            let lines: Vec<String> = lines.iter().map(|line| format!("- {line}")).collect();
            text += &format!("\n{title}\n\n{}\n", lines.join("\n"));
        }
    };
    list("Read with:", texts(&document["notes"]).iter().map(text_of).collect());
    let skipped = |s: &Value| format!("{}: {}", text_of(&s["what"]), text_of(&s["why"]));
    list("Skipped:", texts(&document["skipped"]).iter().map(skipped).collect());
    let promise = |p: &Value| {
        let kept = if p["kept"] == true { "kept" } else { "**broken**" };
        format!("{kept}: {}", text_of(&p["promise"]))
    };
    list("Bounds:", texts(&document["promises"]).iter().map(promise).collect());
    let again = &document["tried_again"];
    let machine = &again["machine"];
    let title =
        format!("Tried again with commit {}, {}, in vain:", text_of(&machine["commit"]), text_of(&machine["date"]));
    list(&title, texts(&again["promises"]).iter().map(promise).collect());
    text
}

/// The bounds of a table's document that were not kept, the last attempt's among them.
pub fn broken(document: &Value) -> Vec<String> {
    let promises =
        [&document["promises"], &document["tried_again"]["promises"]].into_iter().filter_map(Value::as_array);
    promises.flatten().filter(|p| p["kept"] != true).filter_map(|p| Some(p["promise"].as_str()?.to_owned())).collect()
}

/// A table's document after an attempt to measure it again which ended before its first run.
pub fn tried_again(mut before: Value, attempt: &Value) -> Value {
    before["tried_again"] = json!({"machine": attempt["machine"], "promises": attempt["promises"]});
    before
}

/// Whether all tables are of one program, on one machine.
pub fn recorded_together(documents: &[Value]) -> &'static str {
    let of_one = |name: &str| documents.windows(2).all(|pair| pair[0]["machine"][name] == pair[1]["machine"][name]);
    if of_one("commit") && of_one("processor") {
        "All tables are of one commit and one machine."
    } else {
        "Not all tables were recorded together, but one by one, as what they measure was changed: each names its commit, its day and \
         its machine."
    }
}

pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// The value below which so many (0 to 1) of the values are.
pub fn quantile(values: &[f64], at: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    Some(sorted[((last as f64) * at).round() as usize])
}

/// Three or four digits that matter.
pub fn shown(value: f64) -> String {
    if value.abs() >= 1000.0 {
        let whole = format!("{value:.0}");
        let (sign, digits) = whole.strip_prefix('-').map_or(("", whole.as_str()), |digits| ("-", digits));
        let groups: Vec<&str> =
            digits.as_bytes().rchunks(3).rev().filter_map(|g| std::str::from_utf8(g).ok()).collect();
        return format!("{sign}{}", groups.join(","));
    }
    let digits = if value.abs() >= 100.0 {
        1
    } else if value.abs() >= 10.0 {
        2
    } else {
        3
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_of_the_runs_that_have_the_figure() {
        let mut report = Report::new("throughput", false);
        for value in [3.0, 1.0, 2.0] {
            let mut figures = Figures::default();
            figures.add("rate_per_second", value);
            figures.add("limit_per_second", 4.0);
            figures.add_ratio("of_limit_ratio", "rate_per_second", "limit_per_second");
            figures.add_ratio("of_nothing_ratio", "rate_per_second", "missing");
            report.run(figures);
        }
        report.promise_at_least("of_limit_ratio", 0.5);
        assert!(report.promises_kept());
        report.promise_at_most("rate_per_second", 1.5);
        report.promise_at_least("missing", 0.5);
        let document = report.json(&Machine::for_tests());
        assert_eq!(
            broken(&document),
            ["rate_per_second is at most 1.500: 2.000", "missing is at least 0.500: not measured"]
        );
        let document = report.json(&Machine::for_tests());
        assert_eq!(document["figures"]["rate_per_second"], json!(2.0));
        assert_eq!(document["figures"].as_object().map(|figures| figures.len()), Some(3));
        assert_eq!(document["runs"].as_array().map(Vec::len), Some(3));
    }

    #[test]
    fn what_cannot_be_measured_is_told_and_takes_nothing_away() {
        let mut measured = Report::new("depth", false);
        measured.run(Figures(vec![("rate_per_second".to_owned(), 2.0)]));
        let measured = measured.json(&Machine::for_tests());
        let mut failed = Report::new("depth", false);
        failed.fail(&anyhow::anyhow!("no disk"));
        assert!(!failed.has_runs() && !failed.promises_kept());
        let failed = failed.json(&Machine { commit: Some("abc".to_owned()), ..Machine::for_tests() });
        assert_eq!(broken(&failed), ["it is measured to its end: no disk"]);
        let both = tried_again(measured, &failed);
        assert_eq!(both["figures"]["rate_per_second"], json!(2.0));
        assert_eq!(broken(&both), ["it is measured to its end: no disk"]);
        assert!(page(&both).contains("Tried again with commit abc"), "{}", page(&both));
        assert!(recorded_together(&[both.clone(), both.clone()]).starts_with("All"));
        assert!(recorded_together(&[both, failed]).starts_with("Not all"));
    }

    #[test]
    fn a_quick_run_breaks_only_what_needs_no_time() {
        let measured = |quick: bool, lost: f64| {
            let mut report = Report::new("throughput", quick);
            let mut figures = Figures::default();
            figures.add("rate_per_second", 2.0);
            figures.add("lost", lost);
            report.run(figures);
            report.promise_at_least("rate_per_second", 5.0);
            report.promise_always_at_most("lost", 0.0);
            report
        };
        assert!(!measured(false, 0.0).promises_kept());
        let quick = measured(true, 0.0);
        assert!(quick.promises_kept() && quick.text().contains("too short a run to tell"), "{}", quick.text());
        assert!(!measured(true, 1.0).promises_kept());
        let mut unmeasured = measured(true, 0.0);
        unmeasured.promise_at_least("missing", 5.0);
        assert!(!unmeasured.promises_kept() && unmeasured.text().contains("BROKEN: missing"));
    }

    #[test]
    fn numbers_are_short() {
        let cases =
            [(1_234_567.8, "1,234,568"), (999.94, "999.9"), (52.5, "52.50"), (0.9163, "0.916"), (-1234.0, "-1,234")];
        for (value, expected) in cases {
            assert_eq!(shown(value), expected);
        }
    }

    #[test]
    fn quantiles_are_values() {
        let values: Vec<f64> = (0..=100).map(f64::from).collect();
        assert_eq!(quantile(&values, 0.99), Some(99.0));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
