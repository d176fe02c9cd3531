//! A drawn chart with its legend ([`Drawing`]), which can be embedded in an HTML page or written to an SVG file.
//! [`Line`] is the style of its lines.

use std::fmt::Write;

use super::escape::escaped;
use super::style::{CHART, COLOUR_SCHEME, COLOURS};

/// The width of a chart, in the units of SVG coordinates.
pub(super) const WIDTH: f64 = 640.0;
/// The height of a chart without its legend, in the units of SVG coordinates.
pub(super) const HEIGHT: f64 = 320.0;
/// The left edge of a chart's legend in an SVG file, in the units of SVG coordinates.
const LEGEND_LEFT: f64 = 76.0;
/// The height of a row of a chart's legend in an SVG file, in the units of SVG coordinates.
const LEGEND_ROW: f64 = 18.0;

/// The style of a line in a chart: solid, dashed or dotted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// Draw the chart line solid, as for measured values.
    Solid,
    /// Draw the chart line dashed, as for simulated values.
    Dashed,
    /// Draw the chart line dotted, as for values that a formula gives.
    Dotted,
}

impl Line {
    /// Returns the SVG attributes that make an element's line solid, dashed or dotted.
    pub(super) fn dashes(self) -> &'static str {
        match self {
            Self::Solid => "",
            Self::Dashed => " stroke-dasharray='6 4'",
            Self::Dotted => " stroke-dasharray='1 5' stroke-linecap='round'",
        }
    }
}

/// An entry of a chart's legend: a name, and the style and colour of the line or bar that it explains.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    name: String,
    /// Zero-based index of the legend entry's colour among the 8 colours of a page's style.
    colour: usize,
    line: Line,
}

impl Entry {
    pub(super) fn new(name: &str, colour: usize, line: Line) -> Self {
        Self { name: name.to_owned(), colour: colour % COLOURS, line }
    }
}

/// A drawn chart: its title, the SVG elements inside it, and its legend.
pub(super) struct Drawing {
    pub(super) title: String,
    pub(super) body: String,
    pub(super) legend: Vec<Entry>,
}

impl Drawing {
    /// Returns a drawn chart as an element of an HTML page: an SVG element, and its legend as a list.
    pub(super) fn element(self) -> String {
        let Self { title, body, legend } = self;
        let mut html = format!(
            "<svg class='chart' viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='{}'>{body}</svg><ul class='legend'>",
            escaped(&title)
        );
        for Entry { name, colour, line } in legend {
            let _ = write!(
                html,
                "<li><svg viewBox='0 0 24 8'><line class='line c{colour}'{} x1='1' x2='23' y1='4' y2='4'/></svg>{}</li>",
                line.dashes(),
                escaped(&name)
            );
        }
        html + "</ul>"
    }

    /// Returns a drawn chart as the contents of a complete SVG file, with its CSS, and with its legend below it.
    pub(super) fn file(self) -> String {
        let Self { title, body, legend } = self;
        let longest = legend.iter().map(|entry| entry.name.chars().count()).max().unwrap_or(0);
        // A letter of the font is at most 7 units wide. The line before a name and the spaces around it take 44 units.
        let column = 7.0 * longest as f64 + 44.0;
        let columns = (((WIDTH - LEGEND_LEFT) / column) as usize).max(1);
        let height = HEIGHT + LEGEND_ROW * legend.len().div_ceil(columns) as f64 + 8.0;
        let mut svg = format!(
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' height='{height}' \
             role='img' aria-label='{}'><style>{COLOUR_SCHEME}{CHART}text{{font-family:system-ui,sans-serif}}</style>\
             <rect class='paper' width='{WIDTH}' height='{height}'/>{body}",
            escaped(&title)
        );
        for (at, Entry { name, colour, line }) in legend.iter().enumerate() {
            let x = LEGEND_LEFT + column * (at % columns) as f64;
            let y = HEIGHT + LEGEND_ROW * (at / columns) as f64 + 8.0;
            let _ = write!(
                svg,
                "<line class='line c{colour}'{} x1='{x}' x2='{}' y1='{y}' y2='{y}'/><text class='axis' x='{}' y='{}'>{}</text>",
                line.dashes(),
                x + 24.0,
                x + 30.0,
                y + 4.0,
                escaped(name)
            );
        }
        svg + "</svg>\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_its_style_and_a_legend_that_fits() {
        let names: Vec<_> = (0..9).map(|at| format!("P = {at}, in theory <&>")).collect();
        let legend = names.iter().enumerate().map(|(at, name)| Entry::new(name, at, Line::Dotted)).collect();
        let svg = Drawing { title: "a 'b'".into(), body: "<text>c</text>".into(), legend }.file();
        assert!(svg.starts_with("<svg xmlns='http://www.w3.org/2000/svg'") && svg.contains("prefers-color-scheme"));
        assert!(svg.contains("<text>c</text>") && svg.contains("P = 8, in theory &lt;&amp;&gt;"));
        // Three names fit beside each other, so nine take three rows below the chart.
        assert!(svg.contains(&format!("height='{}'", HEIGHT + 3.0 * LEGEND_ROW + 8.0)), "{svg}");
    }
}
