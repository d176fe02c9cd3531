//! Tests partitions of a model over several hosts against closed forms and brute force.

mod synthetic;

use std::ops::Range;

use stageline_report::{HostCut, Hosts, Link, Measured, PredictError, RunLog};
use stageline_schedule::{Costs, Interleaved, OneFOneB, Schedule, StageCost, ZbV, check, simulate};

use synthetic::log;

const LINK: Link = Link { latency: 0.25, bandwidth: 1e6 };

/// Makes the log of a run with one layer per stage. For each micro-batch, stage i sends `megabytes[i]` MB to the next
/// stage.
fn log_of(layers: &[f64], megabytes: &[f64]) -> RunLog {
    let mut log = log(layers, layers.len(), 4, 0.0);
    for step in &mut log.steps {
        for (stage, megabytes) in step.stages.iter_mut().zip(megabytes) {
            stage.output_bytes = Some(1e6 * megabytes);
        }
    }
    log
}

fn cuts(log: &RunLog, hosts: &[usize], schedule: &dyn Schedule, micro_batches: usize) -> Vec<HostCut> {
    let hosts = Hosts::new(hosts.to_vec()).unwrap();
    Measured::of(log).unwrap().host_cuts(&hosts, LINK, schedule, micro_batches).unwrap()
}

fn refused(log: &RunLog, hosts: &[usize], schedule: &dyn Schedule) -> PredictError {
    let hosts = Hosts::new(hosts.to_vec()).unwrap();
    Measured::of(log).unwrap().host_cuts(&hosts, LINK, schedule, 4).unwrap_err()
}

/// Tests the predicted steps with one micro-batch, for all partitions of the layers over two hosts. The partition that
/// sends the fewest bytes between the hosts has the shortest step.
#[test]
fn with_one_micro_batch_hosts_split_where_activations_are_smallest() {
    let megabytes = [5.0, 4.0, 0.5, 4.0, 5.0];
    let found = cuts(&log_of(&[1.0; 6], &megabytes), &[1, 1], &OneFOneB, 1);
    let mut expected: Vec<_> = (0..5)
        .map(|behind| {
            let dearer = (behind + 1).max(5 - behind) as f64;
            (behind, 6.0 * 3.0 + 2.0 * (0.25 + megabytes[behind]) + 0.5 * dearer, 3.0 * dearer)
        })
        .collect();
    expected.sort_by(|a, b| a.1.total_cmp(&b.1));
    assert_eq!(expected[0].0, 2);
    assert_eq!(found.len(), expected.len());
    for (cut, (behind, step, slowest)) in found.iter().zip(expected) {
        assert_eq!((cut.behind.as_slice(), cut.bytes.as_slice()), (&[behind][..], &[1e6 * megabytes[behind]][..]));
        assert!((cut.prediction.step - step).abs() < 1e-9 && (cut.slowest - slowest).abs() < 1e-9, "{cut:?}");
    }
}

/// Tests partitions of the layers over two hosts with many micro-batches. The most balanced partition has the shortest
/// step, unless the link between the hosts is slower than the workers.
#[test]
fn balance_decides_unless_the_link_is_slower_than_the_workers() {
    let evenly = |megabytes: f64| {
        let crossing = [0.25, 0.25, megabytes, 0.25, 0.25];
        cuts(&log_of(&[1.0; 6], &crossing), &[1, 1], &OneFOneB, 64)[0].clone()
    };
    assert_eq!((evenly(1.0).behind, evenly(1.0).slowest), (vec![2], 9.0));
    // A link that takes 40 s for a micro-batch is slower than a worker with four layers, which takes 12 s.
    assert_eq!((evenly(40.0).bytes, evenly(40.0).slowest), (vec![0.25e6], 12.0));
}

/// Returns every partition of `layers` layers into `stages` stages. A partition is a list of indices: for each stage,
/// the index after its last layer.
fn all_cuts(layers: usize, stages: usize) -> Vec<Vec<usize>> {
    if stages == 1 {
        return vec![vec![layers]];
    }
    let with_last = |end: usize| {
        let before = all_cuts(end, stages - 1).into_iter();
        before.map(move |ends| [ends, vec![layers]].concat())
    };
    let mut cuts: Vec<_> = (stages - 1..layers).flat_map(with_last).collect();
    cuts.sort();
    cuts
}

/// Finds all partitions of the layers over hosts by brute force. A host must end with the last layer of a stage of the
/// logged run. For each choice of these layers, the result has the simulated step time of the most balanced partition.
fn by_brute_force(layers: &[f64], log: &RunLog, hosts: &[usize], micro_batches: usize) -> Vec<(Vec<usize>, f64)> {
    let stages: usize = hosts.iter().sum();
    let firsts: Vec<usize> = hosts.iter().scan(0, |next, host| Some(std::mem::replace(next, *next + host))).collect();
    let per_stage = layers.len() / log.plan.stages();
    let ranges = |ends: &[usize]| -> Vec<Range<usize>> {
        (0..stages).map(|stage| if stage == 0 { 0 } else { ends[stage - 1] }..ends[stage]).collect()
    };
    let forward = |range: &Range<usize>| layers[range.clone()].iter().sum::<f64>();
    // Returns the longest forward pass of a worker on each host, in seconds.
    let dearest = |ends: &[usize]| -> Vec<f64> {
        let ranges = ranges(ends);
        let of_host = |(first, workers): (&usize, &usize)| {
            ranges[*first..first + workers].iter().map(forward).fold(0.0, f64::max)
        };
        firsts.iter().zip(hosts).map(of_host).collect()
    };
    let mut best: Vec<(Vec<usize>, Vec<usize>)> = Vec::new();
    for ends in all_cuts(layers.len(), stages) {
        let meet: Vec<_> = firsts[1..].iter().map(|first| ends[first - 1]).collect();
        if meet.iter().any(|end| end % per_stage != 0) {
            continue;
        }
        let behind: Vec<_> = meet.iter().map(|end| end / per_stage - 1).collect();
        match best.iter_mut().find(|(other, _)| *other == behind) {
            None => best.push((behind, ends)),
            Some((_, other)) => {
                if dearest(&ends).iter().zip(dearest(other)).all(|(a, b)| *a <= b) && dearest(&ends) != dearest(other) {
                    *other = ends;
                }
            }
        }
    }
    let bytes = |stage: usize| log.steps[0].stages[stage].output_bytes.unwrap();
    let step = |(behind, ends): (Vec<usize>, Vec<usize>)| {
        let mut costs: Vec<_> =
            ranges(&ends).iter().map(|range| StageCost::new(forward(range), forward(range), forward(range))).collect();
        let mut links = vec![0.0; stages];
        for (first, behind) in firsts[1..].iter().zip(&behind) {
            (costs[first - 1].send_activation, costs[*first].send_gradient) = (LINK.latency, LINK.latency);
            links[first - 1] = bytes(*behind) / LINK.bandwidth;
        }
        // The layers of a stage have equal numbers of parameters, so each has an equal share of the flush of its stage.
        let of_layer = |layer: usize| {
            let siblings = layer / per_stage * per_stage;
            0.5 * forward(&(siblings..siblings + per_stage)) / per_stage as f64
        };
        let flush = ranges(&ends).iter().map(|range| range.clone().map(of_layer).sum()).collect();
        let costs = Costs::by_stage(costs).with_links(links).with_optimizer(flush);
        let plan = OneFOneB.plan(stages, micro_batches).unwrap();
        (behind, simulate(&check(plan, micro_batches.min(4)).unwrap(), &costs).step())
    };
    best.into_iter().map(step).collect()
}

/// Tests that the search for partitions of the layers over hosts finds the same partitions as brute force, the best
/// first. The times of the layers and the bytes of the transfers are pseudo-random.
#[test]
fn all_partitions_over_hosts_are_found_and_the_best_is_first() {
    let mut state = 1_u64;
    let mut number = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / (1_u64 << 24) as f64
    };
    for (hosts, stages) in [(&[2, 1][..], 8), (&[1, 3], 8), (&[2, 2], 4), (&[1, 2, 1], 8), (&[2, 2, 1], 4)] {
        for micro_batches in [1, 4, 12] {
            let layers: Vec<f64> = (0..8).map(|_| 0.5 + number()).collect();
            let mut log = log(&layers, stages, 4, 0.0);
            for stage in 0..stages - 1 {
                let bytes = 6e6 * number();
                log.steps.iter_mut().for_each(|step| step.stages[stage].output_bytes = Some(bytes));
            }
            let mut expected = by_brute_force(&layers, &log, hosts, micro_batches);
            expected.sort_by(|a, b| a.1.total_cmp(&b.1));
            let found = cuts(&log, hosts, &OneFOneB, micro_batches);
            assert_eq!(found.len(), expected.len(), "{hosts:?}");
            for (cut, (behind, step)) in found.iter().zip(expected) {
                assert_eq!(cut.behind, behind, "{hosts:?}");
                assert!((cut.prediction.step - step).abs() < 1e-9, "{hosts:?}: {cut:?}, not {step}");
            }
        }
    }
}

/// Tests schedules with two chunks (stages) on each of four workers. Each of two hosts has two of the workers.
/// Interleaved chunks have three boundaries between the hosts; chunks in a V have two.
#[test]
fn schedules_with_chunks_have_several_boundaries_between_hosts() {
    let log = log(&[1.0; 8], 8, 4, 0.0);
    let found = cuts(&log, &[2, 2], &Interleaved { chunks: 2 }, 4);
    assert_eq!(found.iter().map(|cut| cut.behind.clone()).collect::<Vec<_>>(), [[1, 3, 5]]);
    assert_eq!(found[0].bytes, [2e6, 4e6, 6e6]);
    // In a V, the second host has the four middle stages of eight.
    let found = cuts(&log, &[2, 2], &ZbV, 8);
    assert_eq!(found.iter().map(|cut| cut.behind.clone()).collect::<Vec<_>>(), [[1, 5]]);
}

#[test]
fn hosts_without_enough_layers_or_with_too_many_choices_are_rejected() {
    let log_of_four = log(&[1.0; 4], 4, 4, 0.0);
    let none = refused(&log_of_four, &[4, 1], &OneFOneB);
    assert!(none.to_string().contains("hosts of [4, 1] workers cannot be separated"), "{none}");
    let none = refused(&log(&[1.0; 4], 1, 4, 0.0), &[1, 1], &OneFOneB);
    assert!(matches!(none, PredictError::NoHostCut { stages: 1, layers: 4, .. }), "{none}");
    // The number of workers must be rejected before their plan is generated, which would not fit into memory.
    let none = refused(&log_of_four, &[usize::MAX / 8, 2], &OneFOneB);
    assert!(matches!(none, PredictError::NoHostCut { stages: 4, layers: 4, .. }), "{none}");
    // There are 31 choose 5 = 169,911 ways to choose the boundaries between hosts, and at most 10,000 are simulated.
    let many = refused(&log(&[1.0; 32], 32, 4, 0.0), &[1; 6], &OneFOneB);
    assert!(matches!(many, PredictError::HostCuts { boundaries: 31, meetings: 5, .. }), "{many}");
    // With as many boundaries between hosts as between stages of the run, there is only one way to choose them.
    assert_eq!(cuts(&log_of_four, &[1; 4], &OneFOneB, 4).len(), 1);
    let mut unknown = log_of_four;
    unknown.steps.iter_mut().flat_map(|step| &mut step.stages).for_each(|stage| stage.output_bytes = None);
    assert!(matches!(refused(&unknown, &[1, 1], &OneFOneB), PredictError::Bytes));
}
