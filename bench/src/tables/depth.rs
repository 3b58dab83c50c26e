//! Table `depth`: the rate with ten million problems queued against the rate with a hundred thousand, over the same
//! number of problems.

use crate::context::Context;
use crate::night::Site;
use crate::plot::{Kind, Plot};
use crate::report::{Figures, Report};

/// Bytes of disk that a queued problem and its part of the log need.
const BYTES_EACH: u64 = 450;

const CHECKOUT: &str = "1000";

pub async fn run(context: &Context, report: &mut Report) -> anyhow::Result<()> {
    let depths = context.scaled(10_000_000, 400_000);
    let shallow = context.scaled(100_000, 50_000);
    let processed = context.scaled(2_000_000, 100_000);
    context.need_disk((depths + 2 * processed * context.runs as u64) * BYTES_EACH, "depth")?;
    report.note(format!(
        "processed in each run: {processed} problems, in pieces of {shallow}, without the first and the last tenth of each; \
         shallow: a piece is a job, in a database where nothing else is queued; deep: a piece is the next of what is left of {depths} \
         queued in one job, in another, whose server and agent wait meanwhile. Before each piece the database is vacuumed, analysed and brought to disk, for both: else the deep one alone would pay for it"
    ));
    report.note("1,000 problems a checkout, convoys of 1, jsonb of about 100 bytes in and out");
    let start = || Site::start(context, &["--checkout-problems", CHECKOUT]);
    let mut queued = None;
    for run in 0..context.runs {
        let mut figures = Figures::default();
        let mut pieces = Pieces::default();
        let site = start().await?;
        while pieces.problems < processed {
            let job = site.load(shallow, 1).await?;
            context.settle(&site.database).await?;
            site.crunch(job).await?;
            pieces.add(shallow, &site.tenths(job).await?);
        }
        site.check_invariants().await?;
        site.end(context).await?;
        let rate = pieces.rate();
        context.progress(&format!("run {run}: {shallow} deep: {rate:.0} a second"));
        figures.add("shallow_per_second", rate);
        // The deep job serves all runs, each from where the one before it held it.
        let (site, job) = match &queued {
            Some(queued) => queued,
            None => {
                context.progress(&format!("loading {depths} problems"));
                let site = start().await?;
                let job = site.load(depths, 1).await?;
                context.settle(&site.database).await?;
                queued.insert((site, job))
            }
        };
        let mut deep = Pieces::default();
        while deep.problems < processed.min(depths / context.runs as u64) {
            context.settle(&site.database).await?;
            let since = site.now().await?;
            let measured = site.crunch_more(*job, shallow).await?;
            deep.add(measured.problems, &site.tenths_since(*job, since).await?);
        }
        context.progress(&format!("run {run}: {depths} deep: {:.0} a second", deep.rate()));
        figures.add("deep_per_second", deep.rate());
        figures.add_ratio("deep_of_shallow_ratio", "deep_per_second", "shallow_per_second");
        report.processed(pieces.problems + deep.problems);
        report.run(figures);
    }
    if let Some((site, _)) = queued {
        site.check_invariants().await?;
        site.end(context).await?;
    }
    report.promise_at_least("deep_of_shallow_ratio", 0.9);
    let bars = [("queued: 100,000", "shallow_per_second"), ("queued: 10,000,000", "deep_per_second")];
    let bars = bars.iter().filter_map(|(name, figure)| Some(((*name).to_owned(), report.median(figure)?))).collect();
    report.plot(Plot {
        name: "rate".to_owned(),
        title: "Problems a second by the depth of the queue".to_owned(),
        y: "problems a second".to_owned(),
        kind: Kind::Bars(bars),
    });
    Ok(())
}

/// Stretches of work, of each of which the beginning and the end do not count.
#[derive(Default)]
struct Pieces {
    problems: u64,
    seconds: f64,
    counted: f64,
}

impl Pieces {
    /// One more, by the rates of its tenths.
    fn add(&mut self, problems: u64, tenths: &[f64]) {
        let tenth = problems as f64 / 10.0;
        self.problems += problems;
        for rate in tenths.iter().skip(1).take(8) {
            self.seconds += tenth / rate;
            self.counted += tenth;
        }
    }

    fn rate(&self) -> f64 {
        self.counted / self.seconds
    }
}
