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
        "processed in each run: {processed} problems; deep: the first of {depths} queued; shallow: jobs of {shallow}, one \
         after the other, at most that many queued, without the first and the last tenth of each"
    ));
    report.note("1,000 problems a checkout, convoys of 1, jsonb of about 100 bytes in and out");
    let site = Site::start(context, &["--checkout-problems", CHECKOUT]).await?;
    let mut deep = None;
    for run in 0..context.runs {
        let mut figures = Figures::default();
        // Of equal length: the shallow queue is many short jobs, each loaded before the clock runs, of which the beginning
        // and the end do not count, as the deep one's end is not reached.
        let (mut seconds, mut count) = (0.0, 0);
        while count < processed {
            let job = site.load(shallow, 1).await?;
            context.settle(&site.database).await?;
            count += site.crunch(job).await?.problems;
            let tenth = shallow as f64 / 10.0;
            let middle = site.tenths(job).await?.into_iter().skip(1).take(8);
            seconds += middle.map(|rate| tenth / rate).sum::<f64>();
        }
        let rate = count as f64 * 0.8 / seconds;
        context.progress(&format!("run {run}: {shallow} deep: {rate:.0} a second"));
        figures.add("shallow_per_second", rate);
        // The deep job serves all runs, each from where the one before it held it.
        let job = match deep {
            Some(job) => job,
            None => {
                context.progress(&format!("loading {depths} problems"));
                let job = site.load(depths, 1).await?;
                context.settle(&site.database).await?;
                deep = Some(job);
                job
            }
        };
        let measured = site.crunch_more(job, processed.min(depths / context.runs as u64)).await?;
        context.progress(&format!("run {run}: {depths} deep: {:.0} a second", measured.per_second()));
        figures.add("deep_per_second", measured.per_second());
        figures.add_ratio("deep_of_shallow_ratio", "deep_per_second", "shallow_per_second");
        report.processed(count + measured.problems);
        report.run(figures);
    }
    site.end(context).await?;
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
