//! Tests ten thousand training steps in a row: threads, open files and memory do not grow, and the parameters have the
//! bits of a training loop without Stageline.

use std::fs;
use std::num::NonZero;

use stageline::checkpoint::Store;
use stageline::schedule::OneFOneB;
use stageline::{Batch, Pipeline};

use crate::mlp::{Mlp, config};
use crate::ran_in_a_process_of_its_own;

const WIDTH: usize = 4;
const STEPS: usize = 10_000;
/// The number of different batches in the test's training, which repeats them in a cycle.
const BATCHES: u64 = 16;

/// The resources of a process that must not grow during a long training: threads, open files and memory.
#[derive(Clone, Debug, PartialEq)]
struct Holdings {
    threads: usize,
    files: usize,
    /// The number of bytes that each worker of the pipeline has in use at the end of a step.
    held: Vec<u64>,
}

/// Returns the numbers of threads and open files that this process has now, together with `held`, the memory of each
/// worker. Threads and open files are counted on Linux only, and are 0 elsewhere.
fn holdings(held: Vec<u64>) -> Holdings {
    let count = |folder: &str| fs::read_dir(folder).map_or(0, Iterator::count);
    Holdings { threads: count("/proc/self/task"), files: count("/proc/self/fd"), held }
}

/// Returns the resident memory of this process as a number of pages. 0 on systems that do not report it.
fn resident_pages() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0)
}

#[test]
fn ten_thousand_steps_hold_no_more_than_a_thousand_and_give_the_bits_of_a_plain_loop() {
    if ran_in_a_process_of_its_own() {
        return;
    }
    let batches: Vec<_> = (0..BATCHES).map(|seed| Mlp::batch(4, WIDTH, true, seed)).collect();
    let builder = Mlp::new(3, WIDTH, 9).split(3, &config()).micro_batches(2).schedule(OneFOneB);
    let mut pipeline: Pipeline<_, _, _> = builder.cores_per_stage(1).build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(folder.path(), NonZero::new(2).unwrap()).unwrap();
    let (mut seen, mut resident) = (Vec::new(), Vec::new());
    for step in 0..STEPS {
        let (input, target) = batches[step % batches.len()].clone();
        let report = pipeline.step(Batch::new(input, target)).unwrap();
        if (step + 1) % 1000 == 0 {
            store.save(&pipeline.checkpoint().unwrap()).unwrap();
            resident.push(resident_pages());
            let held = |events: &Vec<stageline::Event>| events.last().and_then(|event| Some(event.held?.end)).unwrap();
            seen.push(holdings(report.recording.events().iter().map(held).collect()));
        }
    }
    println!("pages of memory after each thousand: {resident:?}");
    // A leak of one page a step would be 9000 pages.
    assert!(resident.last().unwrap().saturating_sub(resident[0]) < 2000, "{resident:?}");
    println!("after 1000 steps {:?}, after {STEPS} {:?}", seen[0], seen.last().unwrap());
    for later in &seen[1..] {
        assert_eq!((later.threads, later.files), (seen[0].threads, seen[0].files));
        // A tensor may be in flight between two stages or not; a leak of one byte a step would be 9000 bytes.
        let differences = later.held.iter().zip(&seen[0].held).map(|(later, first)| later.abs_diff(*first));
        assert!(differences.max().unwrap() < 9000, "{:?} after {:?}", later, seen[0]);
    }
    let trained = Mlp::join(pipeline.into_modules()).bits();
    let all: Vec<_> = (0..STEPS).map(|step| batches[step % batches.len()].clone()).collect();
    assert_eq!(trained, Mlp::new(3, WIDTH, 9).train_plainly(2, &all).bits());
}
