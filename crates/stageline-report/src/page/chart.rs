//! Draws line charts and stacked bars as SVG: [`LineChart`] and [`StackedBars`]. Colours and fonts come from the page's
//! CSS, so charts fit light and dark pages.

use std::fmt::Write;

use super::drawing::{Drawing, Entry, HEIGHT, Line, WIDTH};
use super::escape::escaped;
use super::style::COLOURS;

const LEFT: f64 = 76.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 32.0;
const BOTTOM: f64 = 48.0;
/// Maximum number of category labels below the horizontal axis of a bar chart. With more categories, some bars have no
/// label.
const MOST_LABELS: usize = 20;

/// A line of a line chart: its name, points, line style and colour.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Name of this chart line in the legend.
    pub name: String,
    /// Points (x, y) of this chart line, from left to right. Points that are not finite are skipped.
    pub points: Vec<(f64, f64)>,
    /// Style of this chart line: solid, dashed or dotted.
    pub line: Line,
    /// Zero-based index of this chart line's colour among 8 colours; an index above 7 wraps around. Lines that show the
    /// same quantity share an index.
    pub colour: usize,
}

/// The scale of a chart's horizontal axis: linear or logarithmic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Use a linear scale for the chart's horizontal axis.
    Linear,
    /// Use a logarithmic scale for the chart's horizontal axis, with a tick at each power of two.
    Doubling,
}

/// A chart of lines over a common horizontal axis, drawn as SVG.
#[derive(Clone, Debug, PartialEq)]
pub struct LineChart<'a> {
    /// The title above a line chart.
    pub title: &'a str,
    /// The label of a line chart's horizontal axis, with its unit.
    pub x: &'a str,
    /// The label of a line chart's vertical axis, with its unit.
    pub y: &'a str,
    /// The scale (linear or logarithmic) of a line chart's horizontal axis.
    pub scale: Scale,
    /// The lines that a line chart shows, each with its points.
    pub series: Vec<Series>,
}

/// A bar chart with one stacked bar for each category, drawn as SVG.
#[derive(Clone, Debug, PartialEq)]
pub struct StackedBars<'a> {
    /// The title above a chart of stacked bars.
    pub title: &'a str,
    /// The label of the horizontal axis, which names the kind of categories, such as `worker`.
    pub x: &'a str,
    /// The label of the vertical axis, with its unit.
    pub y: &'a str,
    /// The categories of a chart of stacked bars: the label below each bar, from left to right. With many bars, some
    /// labels are not drawn.
    pub categories: Vec<String>,
    /// Segments that are stacked in each bar, from the bottom up. An entry has a segment's name, and its value in each
    /// category's bar.
    pub parts: Vec<(&'a str, Vec<f64>)>,
}

impl LineChart<'_> {
    /// Returns a line chart as SVG for a [`Page`](crate::Page), with its legend. If no point is finite, returns an HTML
    /// paragraph that says that nothing was measured.
    pub fn svg(&self) -> String {
        self.drawing().map_or_else(|| nothing(self.title), Drawing::element)
    }

    /// Returns a line chart as SVG for an HTML page, with its legend; `None` if no point is finite.
    pub(super) fn svg_if_measured(&self) -> Option<String> {
        self.drawing().map(Drawing::element)
    }

    /// Returns a line chart as the contents of a complete SVG file, with legend, CSS, and colours for light and dark
    /// pages. Returns `None` if no point is finite.
    pub fn file(&self) -> Option<String> {
        self.drawing().map(Drawing::file)
    }

    fn drawing(&self) -> Option<Drawing> {
        let finite = |point: &&(f64, f64)| point.0.is_finite() && point.1.is_finite();
        let points: Vec<_> = self.series.iter().flat_map(|series| series.points.iter().filter(finite)).collect();
        if points.is_empty() {
            return None;
        }
        let place = |x: f64| if self.scale == Scale::Doubling { x.max(f64::MIN_POSITIVE).log2() } else { x };
        let xs = Span::of(points.iter().map(|point| place(point.0)));
        let ys = Span::of(points.iter().map(|point| point.1).chain([0.0]));
        let mut svg = frame(self.title, self.x, self.y);
        let ticks = match self.scale {
            Scale::Linear => xs.ticks().into_iter().map(|tick| (tick, number(tick))).collect(),
            Scale::Doubling => doublings(&points),
        };
        for (tick, label) in ticks {
            tick_x(&mut svg, xs.across(tick), &label);
        }
        ticks_y(&mut svg, ys);
        for series in &self.series {
            let points: Vec<_> = series.points.iter().filter(finite).collect();
            let path: Vec<_> =
                points.iter().map(|(x, y)| format!("{:.1},{:.1}", xs.across(place(*x)), ys.up(*y))).collect();
            let colour = series.colour % COLOURS;
            let _ =
                write!(svg, "<polyline class='line c{colour}'{} points='{}'/>", series.line.dashes(), path.join(" "));
            if series.line == Line::Solid && points.len() <= 64 {
                for (x, y) in points {
                    let (across, up) = (xs.across(place(*x)), ys.up(*y));
                    let _ = write!(
                        svg,
                        "<circle class='dot c{colour}' cx='{across:.1}' cy='{up:.1}' r='3'><title>{}: {} at {}</title></circle>",
                        escaped(&series.name),
                        number(*y),
                        number(*x)
                    );
                }
            }
        }
        let legend = self.series.iter().map(|series| Entry::new(&series.name, series.colour, series.line));
        Some(Drawing { title: self.title.to_owned(), body: svg, legend: legend.collect() })
    }
}

impl StackedBars<'_> {
    /// Returns a chart of stacked bars as SVG for a [`Page`](crate::Page), with its legend. If there is no category,
    /// returns an HTML paragraph that says that nothing was measured.
    pub fn svg(&self) -> String {
        self.drawing().map_or_else(|| nothing(self.title), Drawing::element)
    }

    /// Returns a chart of stacked bars as the contents of a complete SVG file, with legend, CSS, and colours for light
    /// and dark pages. Returns `None` if there is no category.
    pub fn file(&self) -> Option<String> {
        self.drawing().map(Drawing::file)
    }

    fn drawing(&self) -> Option<Drawing> {
        let total = |at: usize| self.parts.iter().map(|(_, values)| values[at].max(0.0)).sum::<f64>();
        if self.categories.is_empty() {
            return None;
        }
        let ys = Span::of((0..self.categories.len()).map(total).chain([0.0]));
        let mut svg = frame(self.title, self.x, self.y);
        ticks_y(&mut svg, ys);
        let room = (WIDTH - LEFT - RIGHT) / self.categories.len() as f64;
        for (at, category) in self.categories.iter().enumerate() {
            let left = LEFT + room * at as f64;
            if at % self.categories.len().div_ceil(MOST_LABELS) == 0 {
                tick_x(&mut svg, left + room / 2.0, category);
            }
            let mut below = 0.0;
            for (colour, (name, values)) in self.parts.iter().enumerate() {
                let value = values[at].max(0.0);
                let (top, height) = (ys.up(below + value), ys.up(below) - ys.up(below + value));
                let _ = write!(
                    svg,
                    "<rect class='bar c{}' x='{:.1}' y='{top:.1}' width='{:.1}' height='{height:.1}'><title>{}: {}</title></rect>",
                    colour % COLOURS,
                    left + room * 0.15,
                    room * 0.7,
                    escaped(name),
                    number(value)
                );
                below += value;
            }
        }
        let legend = self.parts.iter().enumerate().map(|(colour, (name, _))| Entry::new(name, colour, Line::Solid));
        Some(Drawing { title: self.title.to_owned(), body: svg, legend: legend.collect() })
    }
}

/// Returns the paragraph that an HTML page shows in place of a chart without points.
fn nothing(title: &str) -> String {
    format!("<p>{}: nothing was measured</p>", escaped(title))
}

fn frame(title: &str, x: &str, y: &str) -> String {
    let (title, x, y) = (escaped(title), escaped(x), escaped(y));
    let (middle, bottom, up) = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 8.0, (TOP + HEIGHT - BOTTOM) / 2.0);
    format!(
        "<text class='title' x='{LEFT}' y='18'>{title}</text>\
         <text class='axis' x='{middle}' y='{bottom}' text-anchor='middle'>{x}</text>\
         <text class='axis' transform='translate(14 {up}) rotate(-90)' text-anchor='middle'>{y}</text>"
    )
}

fn tick_x(svg: &mut String, at: f64, label: &str) {
    let y = HEIGHT - BOTTOM + 18.0;
    let _ = write!(svg, "<text class='tick' x='{at:.1}' y='{y}' text-anchor='middle'>{}</text>", escaped(label));
}

fn ticks_y(svg: &mut String, ys: Span) {
    for tick in ys.ticks() {
        let (y, right, beside) = (ys.up(tick), WIDTH - RIGHT, LEFT - 8.0);
        let _ = write!(
            svg,
            "<line class='grid' x1='{LEFT}' x2='{right}' y1='{y:.1}' y2='{y:.1}'/>\
             <text class='tick' x='{beside}' y='{:.1}' text-anchor='end'>{}</text>",
            y + 4.0,
            number(tick)
        );
    }
}

/// Returns the ticks of a chart's logarithmic axis: the powers of two within the range of the points. A tick is the
/// base-2 logarithm of its value, and a label.
fn doublings(points: &[&(f64, f64)]) -> Vec<(f64, String)> {
    let exponents = Span::of(points.iter().map(|point| point.0.max(f64::MIN_POSITIVE).log2()));
    let (first, last) = (exponents.from.floor() as i32, exponents.to.ceil() as i32);
    let inside = |exponent: &i32| (exponents.from..=exponents.to).contains(&f64::from(*exponent));
    (first..=last).filter(inside).map(|exponent| (f64::from(exponent), number(2.0_f64.powi(exponent)))).collect()
}

/// The range of values, from the smallest to the largest, that an axis of a chart shows.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Span {
    from: f64,
    to: f64,
}

impl Span {
    /// Returns the range of a chart's axis, from the smallest to the largest of `values`. If all values are equal, the
    /// range has the length 1, with the value in its middle. `values` must not be empty.
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let (from, to) =
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(from, to), value| (from.min(value), to.max(value)));
        // If all values are equal, the range gets the length 1, because placing a value divides by the length.
        if from < to { Self { from, to } } else { Self { from: from - 0.5, to: to + 0.5 } }
    }

    fn share(self, value: f64) -> f64 {
        (value - self.from) / (self.to - self.from)
    }

    fn across(self, value: f64) -> f64 {
        LEFT + self.share(value) * (WIDTH - LEFT - RIGHT)
    }

    fn up(self, value: f64) -> f64 {
        HEIGHT - BOTTOM - self.share(value) * (HEIGHT - TOP - BOTTOM)
    }

    /// Returns the round numbers, such as multiples of 0.2 or 5, where an axis with this range of values has ticks.
    /// Returns an empty list if the range is too small or too large for evenly spaced ticks.
    fn ticks(self) -> Vec<f64> {
        let rough = (self.to - self.from) / 5.0;
        let power = 10.0_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|unit| unit * power).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(10.0 * power);
        if !step.is_normal() {
            return Vec::new();
        }
        let (first, last) = ((self.from / step - 1e-9).ceil() as i64, (self.to / step + 1e-9).floor() as i64);
        (first..=last).map(|tick| tick as f64 * step).collect()
    }
}

/// Formats a number for a chart or table: four significant digits, without trailing zeros; very large and small ones
/// with an exponent.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    match size {
        0.0 => "0".to_owned(),
        _ if !(1e-3..1e6).contains(&size) => format!("{value:.2e}"),
        _ => {
            let decimals = (3 - size.log10().floor() as i32).clamp(0, 6) as usize;
            let text = format!("{value:.decimals$}");
            if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_significant_digits_and_no_trailing_zeros() {
        let cases = [
            (0.0, "0"),
            (0.25, "0.25"),
            (12.0, "12"),
            (1234.5678, "1235"),
            (0.1 + 0.2, "0.3"),
            (1e-5, "1.00e-5"),
            (-2.5, "-2.5"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn ticks_are_round_and_within_the_range() {
        assert_eq!(Span { from: 0.0, to: 1.0 }.ticks(), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        for (from, to) in [(0.0, 0.47), (-3.0, 17.0), (0.0, 1e9), (0.0, 1e-7)] {
            let ticks = Span { from, to }.ticks();
            assert!((3..=11).contains(&ticks.len()), "{from} to {to}: {ticks:?}");
            assert!(ticks.iter().all(|tick| (from..=to * (1.0 + 1e-9)).contains(tick)));
        }
    }

    #[test]
    fn a_range_that_is_too_small_or_too_large_has_no_ticks() {
        for (from, to) in [(0.0, 1e-323), (0.0, 4e-309), (-f64::MAX, f64::MAX), (1e17, 1e17), (0.0, f64::INFINITY)] {
            assert!(Span { from, to }.ticks().is_empty(), "{from} to {to}");
        }
        assert!(!Span { from: 0.0, to: 1e-300 }.ticks().is_empty());
    }

    #[test]
    fn points_are_placed_by_the_scale_and_points_that_are_not_finite_are_skipped() {
        let series = Series {
            name: "a<b".into(),
            points: vec![(1.0, 0.0), (2.0, 1.0), (4.0, f64::NAN)],
            line: Line::Solid,
            colour: 1,
        };
        let chart = LineChart { title: "t", x: "M", y: "share", scale: Scale::Doubling, series: vec![series] };
        let svg = chart.svg();
        assert!(svg.contains("points='76.0,272.0 624.0,32.0'"), "{svg}");
        assert!(svg.contains("a&lt;b") && !svg.contains("NaN"));
        let empty = LineChart { series: Vec::new(), ..chart };
        assert_eq!(empty.svg(), "<p>t: nothing was measured</p>");
    }

    #[test]
    fn parts_of_a_bar_are_stacked() {
        let parts = vec![("x", vec![1.0]), ("y", vec![3.0])];
        let svg = StackedBars { title: "t", x: "stage", y: "s", categories: vec!["0".into()], parts }.svg();
        assert!(svg.contains("y='212.0' width='383.6' height='60.0'"), "{svg}");
        assert!(svg.contains("y='32.0' width='383.6' height='180.0'"), "{svg}");
    }
}
