//! Predicts the step times of all cases of the bubble bench from the measured steps of one or two cases, as the command
//! `stageline predict` does from a log (the JSON-lines file that a training writes).

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{Context, Result};
use stageline_report::record::{Layer, Run};
use stageline_report::{Cut, Measured, RunLog, Target, Unit};
use stageline_train::record_of_step;

use crate::bubble::flags::{Case, Flags, Kind};
use crate::bubble::measure::{Measurement, shape};
use crate::model::costs;

/// The largest number of chunks (stages) per worker in any published schedule.
const MOST_CHUNKS: usize = 2;

/// Returns the predicted step time of each case of the bubble bench in seconds. An entry is `None` if the plan of the
/// case cannot be predicted. All entries are `None` if steps overlap, or if the costs of a reference case cannot be
/// computed.
///
/// The prediction uses the measured steps of a reference case: the first schedule, with the middle one of the given
/// values of M (the number of micro-batches). If the batch size is fixed, the size of a micro-batch depends on M. There
/// are then two reference cases: the first schedule with the smallest M and with the largest M.
pub fn predict(flags: &Flags, measured: &[&Measurement]) -> Vec<Option<f64>> {
    let of_first = |run: &&&Measurement| run.case.schedule.name() == measured[0].case.schedule.name();
    let references: Vec<_> = measured.iter().filter(of_first).collect();
    let (Some(first), Some(last), false) = (references.first(), references.last(), flags.overlap) else {
        return vec![None; measured.len()];
    };
    let one_size = flags.batch.is_none() || first.case.micro_batch_size == last.case.micro_batch_size;
    let reference = if one_size { references[references.len() / 2] } else { first };
    let other = (!one_size).then(|| of_run(flags, last)).transpose();
    let (Ok(costs), Ok(other)) = (of_run(flags, reference), other) else { return vec![None; measured.len()] };
    let step = |case: &Case| -> Result<f64> {
        let target = Target {
            workers: case.workers,
            micro_batches: case.micro_batches,
            schedule: case.schedule,
            cut: Cut::Given(cut(&layers(flags, case)?, case.stages())),
        };
        let prediction = match &other {
            Some(other) => costs.with_size(other, case.micro_batch_size as f64)?.predict(&target)?,
            None => costs.predict(&target)?,
        };
        Ok(prediction.step)
    };
    measured.iter().map(|run| step(&run.case).ok()).collect()
}

/// Computes the costs of the model's layers from the measured steps of a case of the bubble bench, in the same way as
/// from the log (JSON-lines file) of a training.
fn of_run(flags: &Flags, run: &Measurement) -> Result<Measured> {
    let last = run.reports.last().context("the case made no step")?;
    let plan = last.recording.plan().plan();
    let log = RunLog {
        run: Run {
            stageline: env!("CARGO_PKG_VERSION").to_owned(),
            schedule: run.case.schedule.name().to_owned(),
            plan: plan.to_csv(),
            replicas: 1,
            channel_capacity: run.case.micro_batches,
            layers: layers(flags, &run.case)?,
            links: Vec::new(),
            memory: Vec::new(),
            cut_by_hand: false,
            batch_bytes: 0,
            unit: Unit::Samples,
            tokens_per_micro_batch: run.case.micro_batch_size as f64,
            machine: BTreeMap::new(),
            configuration: BTreeMap::new(),
        },
        plan: plan.clone(),
        // The events of one step tell how long a step takes outside its actions.
        steps: run
            .reports
            .iter()
            .enumerate()
            .map(|(at, report)| record_of_step(report, at + 1 == run.reports.len()))
            .collect(),
        validations: Vec::new(),
        resumed_at: 0,
    };
    Ok(Measured::of(&log)?)
}

/// Returns the layers of the measured model, each with its stage in the given case. If stages sleep instead of
/// computing, all layers are equal. Each worker then has as many layers as any schedule has chunks (stages) per worker
/// at most.
fn layers(flags: &Flags, case: &Case) -> Result<Vec<Layer>> {
    if flags.kind == Kind::Paced {
        let count = case.workers * MOST_CHUNKS;
        let layer = |at| Layer {
            name: format!("paced {at}"),
            stage: at * case.stages() / count,
            weight: 1.0,
            parameters: 0,
            trained: None,
        };
        return Ok((0..count).map(layer).collect());
    }
    let costs = costs(shape(flags));
    let ranges = costs.cut(case.stages())?.ranges(costs.layers().len())?;
    let layer = |at: usize| {
        let cost = &costs.layers()[at];
        let stage = ranges.iter().position(|range| range.contains(&at)).expect("a cut has every layer");
        Layer {
            name: cost.name.clone(),
            stage,
            weight: cost.flops,
            parameters: cost.parameters,
            trained: Some(cost.trained),
        }
    };
    Ok((0..costs.layers().len()).map(layer).collect())
}

/// Returns the partition of the given layers into stages: the range of layer indices of each stage.
fn cut(layers: &[Layer], stages: usize) -> Vec<Range<usize>> {
    let start = |stage: usize| layers.partition_point(|layer| layer.stage < stage);
    (0..stages).map(|stage| start(stage)..start(stage + 1)).collect()
}
