//! Makes logs of synthetic runs for the tests of predictions, with costs that the test gives.

use std::collections::BTreeMap;

use stageline_report::record::{Account, Layer, Line, Run, StageCosts, Step, WorkerMemory};
use stageline_report::{RunLog, Unit};
use stageline_schedule::{Costs, OneFOneB, Plan, Schedule, StageCost, check, simulate};

fn costs_of(forward: f64) -> StageCosts {
    let activation_bytes = Some(1000.0 * forward);
    StageCosts { forward, backward: 2.0 * forward, flush: 0.5 * forward, activation_bytes, ..StageCosts::default() }
}

/// Returns the simulated step time, in seconds, of a plan whose stages have the given costs.
pub fn simulated(plan: &Plan, stages: &[StageCosts]) -> f64 {
    let cost = |stage: &StageCosts| {
        let half = stage.backward / 2.0;
        StageCost::new(stage.forward + stage.send_activation, half + stage.send_gradient, half)
    };
    let flush = stages.iter().map(|stage| stage.flush).collect();
    let costs = Costs::by_stage(stages.iter().map(cost).collect()).with_optimizer(flush);
    simulate(&check(plan.clone(), plan.micro_batches()).unwrap(), &costs).step()
}

/// Makes the log of a synthetic run under 1F1B. `layers` has the time of each layer's forward pass, in seconds. A
/// backward pass takes twice as long, and the flush half as long. `other` is the overhead of a step, in seconds. For
/// each micro-batch, stage i sends i + 1 MB to the next stage.
pub fn log(layers: &[f64], stages: usize, micro_batches: usize, other: f64) -> RunLog {
    let plan = OneFOneB.plan(stages, micro_batches).unwrap();
    let of_stage = |layer: usize| layer * stages / layers.len();
    let stage_costs = |stage: usize| {
        let own = layers.iter().enumerate().filter(|(layer, _)| of_stage(*layer) == stage).map(|(_, cost)| cost);
        let forward: f64 = own.sum();
        StageCosts { output_bytes: (stage + 1 < stages).then_some(1e6 * (stage + 1) as f64), ..costs_of(forward) }
    };
    let memory = |stage: usize| {
        let own = (0..layers.len()).filter(|&layer| of_stage(layer) == stage).count() as u64;
        let activations = plan.peak_live()[stage] as f64 * stage_costs(stage).activation_bytes.unwrap();
        WorkerMemory { resident: 12 * own, peak: 12 * own + 4 * own + activations as u64 + 500 }
    };
    let layer = |(layer, cost): (usize, &f64)| {
        let (name, stage) = (format!("layer {layer}"), of_stage(layer));
        Layer { name, stage, weight: *cost, parameters: 1, trained: Some(1) }
    };
    let run = Run {
        stageline: "0".to_owned(),
        schedule: "1f1b".to_owned(),
        plan: plan.to_csv(),
        replicas: 1,
        channel_capacity: micro_batches,
        links: Vec::new(),
        memory: Vec::new(),
        layers: layers.iter().enumerate().map(layer).collect(),
        cut_by_hand: false,
        batch_bytes: 0,
        unit: Unit::Tokens,
        tokens_per_micro_batch: 100.0,
        machine: BTreeMap::new(),
        configuration: BTreeMap::from([("data".to_owned(), "made up".into())]),
    };
    let step_seconds = simulated(&plan, &(0..stages).map(stage_costs).collect::<Vec<_>>()) + other;
    let step = |step| Step {
        step,
        loss: Some(1.0),
        metrics: BTreeMap::new(),
        weight: 100.0 * micro_batches as f64,
        tokens_per_s: 1.0,
        epoch: None,
        model_flop_utilisation: None,
        step_seconds,
        batch_wait_seconds: 0.0,
        synchronised: false,
        bubble: 0.25,
        bubble_ideal: 0.2,
        bubble_simulated: 0.2,
        learning_rate: Some(0.1),
        gradient_norm: Some(1.0),
        clipped: Some(false),
        loss_scale: 1.0,
        workers: vec![Account { imbalance: 0.1, other, ..Account::default() }; stages],
        stages: (0..stages).map(stage_costs).collect(),
        memory: (0..stages).map(memory).collect(),
        device_memory: Vec::new(),
        health: Vec::new(),
        noise: None,
        timeline: Vec::new(),
    };
    RunLog::read(text(&run, (0..5).map(step)).as_bytes()).unwrap()
}

/// Returns the text of a log with the description of a run and the given steps.
pub fn text(run: &Run, steps: impl IntoIterator<Item = Step>) -> String {
    let lines = steps.into_iter().map(|step| Line::Step(Box::new(step)));
    let lines = [Line::Run(Box::new(run.clone()))].into_iter().chain(lines);
    lines.map(|line| serde_json::to_string(&line).unwrap() + "\n").collect()
}
