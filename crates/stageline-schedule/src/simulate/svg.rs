//! Draws a timeline as an SVG picture for documents, with a row of bars per worker, a time axis and a legend.

use std::fmt::{self, Write};

use super::timeline::Timeline;
use crate::check::Span;
use crate::plan::Compute;

const WIDTH: f64 = 1200.0;
const LEFT: f64 = 80.0;
const TOP: f64 = 34.0;
const ROW: f64 = 26.0;
const BAR: f64 = 22.0;
/// Approximate width of a letter in a label of the timeline picture, in pixels; it decides whether a label fits its
/// bar.
const LETTER: f64 = 6.4;

/// The CSS style sheet of the timeline picture, with colours for light and dark pages; the text on bars is dark on
/// both.
const STYLE: &str = "<style>\
text{font:11px system-ui,sans-serif;fill:#222}.page{fill:#fff}.idle{fill:#eee}.tick{stroke:#ccc}\
@media(prefers-color-scheme:dark){text{fill:#ddd}.page{fill:#111}.idle{fill:#2a2a2a}.tick{stroke:#444}}\
.F{fill:#8ecae6}.B{fill:#f4a261}.I{fill:#f6bd60}.W{fill:#95d5b2}.O{fill:#cdb4db}.bar{fill:#111;font-size:9px}\
.F,.B,.I,.W,.O{stroke:#555;stroke-width:.5}\
</style>";

impl Timeline {
    /// Draws the timeline of a step as an SVG picture without scripts or fonts.
    ///
    /// There is one row per worker, and time runs to the right in `unit`, for example `ms`. Each forward pass, backward
    /// pass and optimizer step is a bar in the colour of its kind, with its name if there is space. The title states
    /// the length of the step, the bubble (the idle fraction of the total stage time) and the bubble by span
    /// ([`span_bubble`](Self::span_bubble)).
    pub fn svg(&self, unit: &str) -> String {
        let mut svg = String::new();
        self.draw(&mut svg, &escaped(unit)).expect("writing to a string never fails");
        svg
    }

    fn draw(&self, svg: &mut String, unit: &str) -> fmt::Result {
        let step = self.step();
        let scale = if step > 0.0 { (WIDTH - LEFT - 10.0) / step } else { 0.0 };
        let bottom = TOP + ROW * self.rows().len() as f64;
        let height = bottom + 44.0;
        write!(svg, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">{STYLE}")?;
        write!(svg, "<rect class=\"page\" width=\"{WIDTH}\" height=\"{height}\"/>")?;
        let (bubble, span_bubble) = (100.0 * self.bubble(), 100.0 * self.span_bubble());
        write!(
            svg,
            "<text x=\"{LEFT}\" y=\"18\">step {} {unit}, bubble {bubble:.1}% of the total, {span_bubble:.1}% by span</text>",
            rounded(step)
        )?;
        for worker in 0..self.rows().len() {
            let y = TOP + ROW * worker as f64;
            write!(svg, "<text x=\"8\" y=\"{}\">worker {worker}</text>", y + 15.0)?;
            write!(
                svg,
                "<rect class=\"idle\" x=\"{LEFT}\" y=\"{y}\" width=\"{:.2}\" height=\"{BAR}\"/>",
                step * scale
            )?;
        }
        axis(svg, step, scale, bottom, unit)?;
        for (worker, row) in self.rows().iter().enumerate() {
            let y = TOP + ROW * worker as f64;
            for Span { action, start, end } in row {
                bar(svg, action.compute.letter(), &action.to_string(), (y, start * scale, (end - start) * scale))?;
            }
            let optimizer = self.optimizers()[worker];
            if optimizer > 0.0 {
                bar(svg, 'O', "optimizer", (y, self.flush() * scale, optimizer * scale))?;
            }
        }
        self.legend(svg, bottom + 36.0)?;
        writeln!(svg, "</svg>")
    }

    fn legend(&self, svg: &mut String, y: f64) -> fmt::Result {
        let computes = Compute::ALL.map(|compute| match compute {
            Compute::Forward => ('F', "F forward"),
            Compute::Backward => ('B', "B backward"),
            Compute::InputGradient => ('I', "I input gradient"),
            Compute::WeightGradient => ('W', "W weight gradient"),
        });
        let used = |letter| self.rows().iter().flatten().any(|span| span.action.compute.letter() == letter);
        let optimizer = self.optimizers().iter().any(|optimizer| *optimizer > 0.0);
        let named = computes.into_iter().filter(|(letter, _)| used(*letter));
        let named = named.chain(optimizer.then_some(('O', "optimizer step"))).chain([('-', "idle")]);
        let mut x = LEFT;
        for (letter, name) in named {
            let class = if letter == '-' { "idle".to_owned() } else { letter.to_string() };
            write!(svg, "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{}\" width=\"12\" height=\"12\"/>", y - 10.0)?;
            write!(svg, "<text x=\"{:.1}\" y=\"{y}\">{name}</text>", x + 17.0)?;
            x += 40.0 + LETTER * name.len() as f64;
        }
        Ok(())
    }
}

/// Draws a bar of a timeline picture, for an action or an optimizer step. `class` is the letter of its colour, such as
/// `F` for a forward pass. `name` is its tooltip, and also its label if there is space.
fn bar(svg: &mut String, class: char, name: &str, (y, x, width): (f64, f64, f64)) -> fmt::Result {
    let x = LEFT + x;
    write!(svg, "<rect class=\"{class}\" x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"{BAR}\">")?;
    write!(svg, "<title>{name}</title></rect>")?;
    if width > LETTER * name.len() as f64 {
        let middle = x + width / 2.0;
        write!(svg, "<text class=\"bar\" x=\"{middle:.2}\" y=\"{}\" text-anchor=\"middle\">{name}</text>", y + 15.0)?;
    }
    Ok(())
}

/// Draws the time axis of the timeline picture, with a tick at 0 and at most ten more ticks at round numbers. `scale`
/// is the number of pixels per unit of time, and `bottom` the lower edge of the bars.
fn axis(svg: &mut String, step: f64, scale: f64, bottom: f64, unit: &str) -> fmt::Result {
    if step <= 0.0 {
        return Ok(());
    }
    let magnitude = 10.0_f64.powf((step / 10.0).log10().floor());
    let distance = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * magnitude).into_iter().find(|each| step / each <= 10.0);
    let distance = distance.unwrap_or(step);
    for tick in 0..=(step / distance) as usize {
        let time = tick as f64 * distance;
        let x = LEFT + time * scale;
        write!(svg, "<line class=\"tick\" x1=\"{x:.2}\" x2=\"{x:.2}\" y1=\"{}\" y2=\"{bottom}\"/>", TOP - 4.0)?;
        let unit = if tick == 0 { format!(" {unit}") } else { String::new() };
        write!(
            svg,
            "<text x=\"{x:.2}\" y=\"{}\" text-anchor=\"middle\">{}{unit}</text>",
            bottom + 14.0,
            rounded(time)
        )?;
    }
    Ok(())
}

/// Formats a time for a label of the timeline picture, with about four digits.
fn rounded(time: f64) -> String {
    let power = if time == 0.0 { 0 } else { time.abs().log10().floor() as i32 };
    let digits = (3 - power).clamp(0, 300) as usize;
    let text = format!("{time:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use crate::{Costs, OneFOneB, Schedule, StageCost, ZbH1, check, simulate};

    fn picture(schedule: &dyn Schedule, optimizer: f64) -> String {
        let costs = Costs::equal(2, StageCost::new(1.0, 1.0, 1.0)).with_optimizer(vec![optimizer; 2]);
        simulate(&check(schedule.plan(2, 3).unwrap(), 1).unwrap(), &costs).svg("m<s")
    }

    #[test]
    fn every_compute_is_a_bar_at_its_time() {
        let svg = picture(&OneFOneB, 0.0);
        // The step takes 4 x 3 units of time in a width of 1110, and F1 of stage 0 begins at 1.
        assert!(
            svg.contains("<rect class=\"F\" x=\"172.50\" y=\"34\" width=\"92.50\" height=\"22\"><title>0F1</title>"),
            "{svg}"
        );
        assert_eq!(svg.matches("<title>").count(), 12);
        assert!(svg.contains("step 12 m&lt;s, bubble 25.0% of the total, 25.0% by span"), "{svg}");
    }

    #[test]
    fn the_legend_names_only_kinds_in_the_picture() {
        let (whole, split) = (picture(&OneFOneB, 0.0), picture(&ZbH1, 1.0));
        assert!(whole.contains("B backward") && !whole.contains("W weight gradient") && !whole.contains("optimizer"));
        assert!(
            split.contains("W weight gradient") && split.contains("optimizer step") && !split.contains("B backward")
        );
    }

    #[test]
    fn tags_are_closed() {
        let svg = picture(&ZbH1, 1.0);
        for tag in ["svg", "text", "title", "style"] {
            assert_eq!(svg.matches(&format!("<{tag}")).count(), svg.matches(&format!("</{tag}>")).count(), "{tag}");
        }
    }
}
