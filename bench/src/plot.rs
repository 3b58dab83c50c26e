//! Plots of figures as SVG: lines over a number, or bars by name.

use anyhow::Context;
use plotters::prelude::*;
use serde_json::{Value, json};
use std::path::Path;

const SIZE: (u32, u32) = (900, 480);
const FONT: &str = "sans-serif";

/// Told apart by people who see few colours, too.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

#[derive(Clone, Debug)]
pub struct Plot {
    /// Of the file, after the table's.
    pub name: String,
    pub title: String,
    pub y: String,
    pub kind: Kind,
}

#[derive(Clone, Debug)]
pub enum Kind {
    Lines {
        x: String,
        logarithmic: bool,
        series: Vec<(String, Vec<(f64, f64)>)>,
    },
    /// From top to bottom.
    Bars(Vec<(String, f64)>),
}

impl Plot {
    pub fn json(&self) -> Value {
        let data = match &self.kind {
            Kind::Lines { x, series, .. } => json!({"x": x, "series": series}),
            Kind::Bars(bars) => json!({"bars": bars}),
        };
        json!({"name": self.name, "title": self.title, "y": self.y, "data": data})
    }

    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        self.draw(path)
            .map_err(|error| anyhow::anyhow!("{error}"))
            .with_context(|| format!("drawing {}", path.display()))
    }

    fn draw(&self, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
        let area = SVGBackend::new(path, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        match &self.kind {
            Kind::Lines { x, logarithmic: false, series } => {
                let (right, top) = extent(series);
                let mut chart = self.frame(&area).build_cartesian_2d(0.0..right, 0.0..top * 1.1)?;
                chart.configure_mesh().x_desc(x).y_desc(&self.y).draw()?;
                draw_lines(&mut chart, series)?;
            }
            Kind::Lines { x, logarithmic: true, series } => {
                let (right, top) = extent(series);
                let left =
                    series.iter().flat_map(|s| &s.1).map(|p| p.0).fold(f64::INFINITY, f64::min).clamp(1e-9, right);
                // A scale from a number to itself would have plotters look for its marks for ever.
                let right = right.max(left * 10.0);
                let mut chart = self.frame(&area).build_cartesian_2d((left..right).log_scale(), 0.0..top * 1.1)?;
                chart.configure_mesh().x_desc(x).y_desc(&self.y).draw()?;
                draw_lines(&mut chart, series)?;
            }
            Kind::Bars(bars) => {
                let top = bars.iter().map(|bar| bar.1).fold(0.0, f64::max).max(1e-9);
                let count = bars.len() as i32;
                let mut chart = self
                    .frame(&area)
                    .y_label_area_size(260)
                    .build_cartesian_2d(0.0..top * 1.1, (0..count).into_segmented())?;
                let label = |place: &SegmentValue<i32>| match place {
                    SegmentValue::CenterOf(n) if (0..count).contains(n) => bars[(count - 1 - n) as usize].0.clone(),
                    _ => String::new(),
                };
                chart
                    .configure_mesh()
                    .disable_y_mesh()
                    .y_labels(bars.len())
                    .y_label_formatter(&label)
                    .x_desc(&self.y)
                    .draw()?;
                chart.draw_series(bars.iter().enumerate().map(|(n, (_, value))| {
                    let place = count - 1 - n as i32;
                    let corners = [(0.0, SegmentValue::Exact(place)), (*value, SegmentValue::Exact(place + 1))];
                    let mut bar = Rectangle::new(corners, COLOURS[0].filled());
                    bar.set_margin(4, 4, 0, 0);
                    bar
                }))?;
            }
        }
        area.present()?;
        Ok(())
    }

    fn frame<'a, 'b>(
        &self,
        area: &'a DrawingArea<SVGBackend<'b>, plotters::coord::Shift>,
    ) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
        let mut builder = ChartBuilder::on(area);
        builder.caption(&self.title, (FONT, 20)).margin(16).x_label_area_size(44).y_label_area_size(84);
        builder
    }
}

fn extent(series: &[(String, Vec<(f64, f64)>)]) -> (f64, f64) {
    let points = || series.iter().flat_map(|s| &s.1);
    (points().map(|p| p.0).fold(1e-9, f64::max), points().map(|p| p.1).fold(1e-9, f64::max))
}

fn draw_lines<'a, X>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, plotters::coord::types::RangedCoordf64>>,
    series: &[(String, Vec<(f64, f64)>)],
) -> Result<(), Box<dyn std::error::Error>>
where
    X: plotters::coord::ranged1d::Ranged<ValueType = f64> + 'a,
{
    for (n, (name, points)) in series.iter().enumerate() {
        let colour = COLOURS[n % COLOURS.len()];
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)).point_size(3))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3)).draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_can_be_drawn() {
        let directory = tempfile::tempdir().expect("a directory");
        let series = vec![("one".to_owned(), vec![(10.0, 1.0), (10_000.0, 2.0)])];
        for (n, kind) in [
            Kind::Bars(vec![("this".to_owned(), 3.0), ("that".to_owned(), 1.0)]),
            Kind::Lines { x: "n".to_owned(), logarithmic: true, series: series.clone() },
            Kind::Lines { x: "n".to_owned(), logarithmic: false, series },
        ]
        .into_iter()
        .enumerate()
        {
            let path = directory.path().join(format!("{n}.svg"));
            let plot = Plot { name: n.to_string(), title: "a <title>".to_owned(), y: "rate".to_owned(), kind };
            plot.write(&path).expect("it can be drawn");
            let text = std::fs::read_to_string(path).expect("it was written");
            assert!(text.contains("a &lt;title&gt;"), "{text}");
        }
    }
}
