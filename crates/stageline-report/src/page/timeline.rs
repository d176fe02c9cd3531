//! Draws the timeline of a step as SVG: the forward and backward passes of every stage over time, and the transfers
//! between stages.

use std::collections::HashMap;
use std::fmt::Write;

use stageline_schedule::{Activity, Compute, Instruction};

use super::chart::number;
use crate::log::record::Event;

/// Returns an SVG picture of the timeline of a step that took `seconds` seconds, with a row for every stage. `rows` has
/// a list of events for each worker. An event is drawn in the row of its stage. If steps overlap, events may end after
/// the step, and the picture extends to the last one.
pub(crate) fn timeline(rows: &[Vec<Event>], seconds: f64) -> String {
    const WIDTH: f64 = 1200.0;
    const ROW: f64 = 34.0;
    const LEFT: f64 = 70.0;
    let stages = rows.iter().flatten().map(|event| event.stage + 1).max().unwrap_or(0);
    let ends = rows.iter().flatten().map(|event| event.end.as_secs_f64());
    let length = ends.fold(seconds, f64::max).max(f64::MIN_POSITIVE);
    let at = |time: f64| LEFT + time / length * (WIDTH - LEFT);
    let height = ROW * stages as f64 + 30.0;
    let mut svg = format!("<svg class='chart' viewBox='0 0 {WIDTH} {height}' role='img' aria-label='timeline'>");
    for stage in 0..stages {
        let y = ROW * stage as f64 + 20.0;
        let _ = write!(svg, "<text class='tick' x='0' y='{y}'>stage {stage}</text>");
    }
    for event in rows.iter().flatten() {
        let Some((colour, label)) = style(event.activity) else { continue };
        let (start, end) = (event.start.as_secs_f64(), event.end.as_secs_f64());
        let (x, width, y) = (at(start), at(end) - at(start), ROW * event.stage as f64 + 4.0);
        let _ = write!(
            svg,
            "<rect class='act c{colour}' x='{x:.2}' y='{y}' width='{width:.2}' height='{}'><title>{}: {} to {} ms</title></rect>",
            ROW - 8.0,
            event.activity.name(),
            number(1e3 * start),
            number(1e3 * end)
        );
        if width > 7.0 * label.len() as f64 + 4.0 {
            let (middle, baseline) = (x + width / 2.0, y + ROW / 2.0);
            let _ =
                write!(svg, "<text class='label' x='{middle:.1}' y='{baseline}' text-anchor='middle'>{label}</text>");
        }
    }
    for ((from, sender), (to, receiver)) in transfers(rows) {
        let middle = |stage: usize| ROW * stage as f64 + ROW / 2.0;
        let (x1, y1, x2, y2) = (at(from), middle(sender), at(to), middle(receiver));
        let _ = write!(svg, "<line class='arrow' x1='{x1:.1}' y1='{y1}' x2='{x2:.1}' y2='{y2}'/>");
    }
    for tick in 0..=5 {
        let time = length * f64::from(tick) / 5.0;
        let anchor = if tick == 5 { "end" } else { "middle" };
        let (x, y) = (at(time), height - 6.0);
        let _ = write!(
            svg,
            "<text class='tick' x='{x:.1}' y='{y}' text-anchor='{anchor}'>{} ms</text>",
            number(1e3 * time)
        );
    }
    svg + "</svg>"
}

/// A point in the picture of a step's timeline: a time in seconds, and the index of a stage.
type Point = (f64, usize);

/// Returns the lines that mark transfers between stages in a step's timeline, each from the start of the send to the
/// end of the receive. `rows` has the events of each worker.
fn transfers(rows: &[Vec<Event>]) -> Vec<(Point, Point)> {
    let events = || rows.iter().flatten();
    let sent = events().filter_map(|event| match event.activity {
        Activity::Instruction(Instruction::Send(transfer)) => {
            Some((transfer, (event.start.as_secs_f64(), event.stage)))
        }
        _ => None,
    });
    let sent: HashMap<_, _> = sent.collect();
    let received = events().filter_map(|event| match event.activity {
        Activity::Instruction(Instruction::Receive(transfer)) => {
            Some((*sent.get(&transfer)?, (event.end.as_secs_f64(), event.stage)))
        }
        _ => None,
    });
    received.collect()
}

/// Returns the colour number and the label of a worker's activity in the timeline. The timeline shows forward passes,
/// backward passes (whole or split), gradient norms and the optimizer step. Returns `None` for other activities, which
/// are not drawn.
fn style(activity: Activity) -> Option<(usize, String)> {
    match activity {
        Activity::Instruction(Instruction::Compute(action)) => {
            let colour = match action.compute {
                Compute::Forward => 0,
                Compute::Backward | Compute::InputGradient => 1,
                Compute::WeightGradient => 3,
            };
            Some((colour, format!("{}{}", action.compute.letter(), action.micro_batch)))
        }
        Activity::Finish | Activity::OptimizerStep => Some((2, String::new())),
        _ => None,
    }
}
