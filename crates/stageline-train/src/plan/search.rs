//! `--schedule search`: finds the plan with the shortest simulated step for a model's layers.

use anyhow::{Result, ensure};
use stageline::Costs;
use stageline::schedule::{
    Best, Costs as PlanCosts, Memory, Placement, StageCost, best_with_channels, check_search_size,
};

use super::workers::stage_speeds;
use crate::settings::running::Running;
use crate::settings::values::CutBy;

/// Searches for the plan with the shortest simulated step. The simulation assumes unlimited memory and instant
/// transfers. `costs` are the layers' costs, and `None` for a hand-cut model, whose stages count as equally expensive.
///
/// For each number of stages, the search uses the cut (partition of the layers) whose slowest stage is fastest; the
/// training run may later find a better cut for the chosen plan. A `--cut` list fixes the stages.
///
/// # Errors
/// Returns an error in these cases:
///
/// - The model has fewer layers than workers, or its blocks report no FLOPs and are not timed.
/// - The stages of a `--cut` list cannot be divided evenly among the workers.
/// - The search would be too long.
/// - All plans that the search finds need larger channels than `--channel-capacity`.
pub fn search(running: &Running, micro_batches: usize, costs: Option<&Costs>) -> Result<Best> {
    let workers = running.workers;
    check_search_size(workers, micro_batches)?;
    let capacity = running.channel_capacity.unwrap_or(micro_batches);
    let Some(costs) = costs else {
        let equal = PlanCosts::uniform(workers, 1.0, 2.0);
        let equal = |placement: &Placement| Some((equal.cut(placement), Memory::unlimited(workers)));
        return Ok(best_with_channels(workers, micro_batches, capacity, 1..=1, equal)?);
    };
    let chunks = match &running.cut {
        CutBy::List(cut) => {
            let stages = cut.stages();
            ensure!(
                stages.is_multiple_of(workers),
                "--cut {cut}: {workers} workers do not share its {stages} stages evenly; give a multiple of {workers} stages, or leave \
                 --cut out"
            );
            stages / workers..=stages / workers
        }
        // Every stage needs at least one layer.
        CutBy::Counted | CutBy::Measured => 1..=(costs.layers().len() / workers).max(1),
    };
    // The search skips placements whose costs cannot be computed, so this call returns the first one's error.
    stage_costs(running, costs, &Placement::in_turn(workers, *chunks.start()))?;
    Ok(best_with_channels(workers, micro_batches, capacity, chunks, |placement| {
        let memory = Memory::unlimited(workers).cut(placement.stages() / workers);
        Some((stage_costs(running, costs, placement).ok()?, memory))
    })?)
}

/// Returns the times that the search assumes for each stage's passes, given a placement of stages on workers:
///
/// - Forward pass: a third of the stage's measured time (or else its FLOPs), divided by the worker's speed.
/// - Backward pass: twice the time of the forward pass.
/// - Each half of a split backward pass (input gradients, weight gradients): the time of the forward pass.
///
/// # Errors
/// Returns an error if the layers cannot be cut into these stages, or if the model's blocks have neither times nor
/// FLOPs.
fn stage_costs(running: &Running, costs: &Costs, placement: &Placement) -> Result<PlanCosts> {
    let (layers, speeds) = (costs.layers(), stage_speeds(running, placement)?);
    let cut = match &running.cut {
        CutBy::List(cut) => cut.clone(),
        CutBy::Counted | CutBy::Measured => costs.cut_for(&speeds)?,
    };
    let are_timed = layers.iter().all(|layer| layer.time.is_some());
    let reported = are_timed || costs.blocks_report_flops();
    let work = |layer: usize| layers[layer].time.map_or(layers[layer].flops, |time| time.as_secs_f64() / 3.0);
    let ranges = cut.ranges(layers.len())?.into_iter();
    let forwards: Vec<f64> = ranges.zip(&speeds).map(|(range, speed)| range.map(work).sum::<f64>() / speed).collect();
    let all: f64 = forwards.iter().sum();
    ensure!(reported && all > 0.0, "the blocks of the model report no FLOPs; give --cut measured");
    Ok(PlanCosts::by_stage(forwards.into_iter().map(|forward| StageCost::new(forward, forward, forward)).collect()))
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::module::Module;
    use burn::nn::LinearConfig;
    use burn::tensor::{Device, Tensor};
    use stageline::nn::Linear;
    use stageline::schedule::{SCHEDULES, check, simulate};
    use stageline::{LossStage, Row, Stage, Weight};

    use super::*;
    use crate::settings::job::Job;

    /// A layer that multiplies its input by a matrix several times.
    #[derive(Module, Debug)]
    struct Repeated {
        linear: Linear,
        #[module(skip)]
        times: usize,
    }

    impl Stage for Repeated {
        type Input = Tensor<2>;
        type Output = Tensor<2>;

        fn forward(&self, input: Tensor<2>) -> Tensor<2> {
            (0..self.times).fold(input, |input, _| self.linear.forward(input))
        }
    }

    impl LossStage for Repeated {
        type Target = ();

        fn loss(&self, output: Tensor<2>, (): ()) -> Tensor<1> {
            output.sum()
        }

        fn weight(&self, (): &()) -> Weight {
            1_usize.into()
        }
    }

    /// Returns the costs of layers with these numbers of multiplications by the same matrix.
    fn costs<const LAYERS: usize>(times: [usize; LAYERS]) -> Costs {
        let layer = move |index: usize, device: &Device| Repeated {
            linear: LinearConfig::new(8, 8).init(device).into(),
            times: times[index],
        };
        let row = Row::new(
            move |device| layer(0, device),
            LAYERS - 2,
            move |index, device| layer(index + 1, device),
            move |device| layer(LAYERS - 1, device),
        );
        row.count(Tensor::zeros([1, 8], &Device::flex()))
    }

    fn found(flags: &str, costs: &Costs) -> Result<Best> {
        let job = Job::of_line(flags).unwrap();
        search(&job.running, job.training.micro_batches, Some(costs))
    }

    /// Tests a model whose head is half of the work, so that no plan with several stages on a worker has equal stages.
    #[test]
    fn the_costs_of_stages_are_those_of_their_layers() {
        let costs = costs([1, 1, 1, 3]);
        let unit = costs.layers()[0].flops;
        let placement = Placement::in_a_v(2);
        let of_stages = stage_costs(&Job::of_line("--stages 2").unwrap().running, &costs, &placement).unwrap();
        let expected = [1.0, 1.0, 1.0, 3.0].map(|times| StageCost::new(times * unit, times * unit, times * unit));
        assert_eq!(of_stages, PlanCosts::by_stage(expected.to_vec()));
        let with_small_channels = found("--stages 2 --micro-batches 8 --channel-capacity 1", &costs).unwrap();
        check(with_small_channels.checked.plan().clone(), 1).unwrap();
        let found = found("--stages 2 --micro-batches 8", &costs).unwrap();
        let running = &Job::of_line("--stages 2").unwrap().running;
        assert_eq!(found.costs, stage_costs(running, &costs, &found.checked.plan().placement()).unwrap());
        for schedule in SCHEDULES.iter().filter(|schedule| 2 * schedule.chunks() <= costs.layers().len()) {
            let plan = check(schedule.plan(2 * schedule.chunks(), 8).unwrap(), 8).unwrap();
            let step = simulate(&plan, &stage_costs(running, &costs, &plan.plan().placement()).unwrap()).step();
            assert!(
                found.timeline.step() <= step * (1.0 + 1e-9),
                "{} is faster than {}",
                schedule.name(),
                found.schedule
            );
        }
    }

    #[test]
    fn a_search_keeps_the_stages_of_a_list() {
        let costs = costs([1, 1, 1, 1]);
        for (list, stages) in [("0,1", 2), ("0,3", 2), ("0,1,2,3", 4)] {
            let found = found(&format!("--stages 2 --micro-batches 4 --cut {list}"), &costs).unwrap();
            assert_eq!(found.checked.plan().stages(), stages, "{list}");
            let layers = |stage: usize| {
                let starts: Vec<usize> = list.split(',').map(|start| start.parse().unwrap()).collect();
                (starts.get(stage + 1).unwrap_or(&4) - starts[stage]) as f64 * costs.layers()[0].flops
            };
            let of_stages = (0..stages).map(layers).map(|time| StageCost::new(time, time, time)).collect();
            assert_eq!(found.costs, PlanCosts::by_stage(of_stages), "{list}");
        }
        let error = found("--stages 2 --micro-batches 4 --cut 0,1,2", &costs).unwrap_err().to_string();
        assert!(error.contains("2 workers do not share its 3 stages evenly"), "{error}");
    }

    /// Tests a model of which only the head reports FLOPs, as with blocks of burn's own layers.
    #[test]
    fn flops_of_the_head_alone_are_not_costs() {
        let costs = costs([0, 0, 0, 3]);
        let error = found("--stages 2 --micro-batches 4", &costs).unwrap_err().to_string();
        assert_eq!(error, "the blocks of the model report no FLOPs; give --cut measured");
        let logged = crate::outputs::record::layers(&costs, &"0,2".parse().unwrap()).unwrap();
        assert!(logged.iter().all(|layer| layer.weight == 0.0 && layer.parameters == 72), "{logged:?}");
    }

    #[test]
    fn more_workers_than_layers_are_rejected() {
        let error = found("--stages 5 --micro-batches 4", &costs([1; 4])).unwrap_err().to_string();
        assert!(error.contains('5') && error.contains('4'), "{error}");
    }
}
