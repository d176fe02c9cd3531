//! Tests the plans of the generators against those of papers and of other implementations.

use stageline_schedule::{
    Costs, DualPipeV, EagerOneFOneB, GPipe, Interleaved, OneFOneB, SCHEDULES, Schedule, ScheduleError, VHalf, VMin,
    ZbH1, ZbH2, ZbV, schedule_named,
};

use crate::{V_SHAPED, simulated};

/// Compares the plan of 1F1B for 4 stages and 8 micro-batches with the plan of PipeDream-Flush, which was written by
/// hand.
#[test]
fn one_f_one_b_is_pipedream_flush() {
    let expected = "\
0F0,0F1,0F2,0F3,0B0,0F4,0B1,0F5,0B2,0F6,0B3,0F7,0B4,0B5,0B6,0B7
1F0,1F1,1F2,1B0,1F3,1B1,1F4,1B2,1F5,1B3,1F6,1B4,1F7,1B5,1B6,1B7
2F0,2F1,2B0,2F2,2B1,2F3,2B2,2F4,2B3,2F5,2B4,2F6,2B5,2F7,2B6,2B7
3F0,3B0,3F1,3B1,3F2,3B2,3F3,3B3,3F4,3B4,3F5,3B5,3F6,3B6,3F7,3B7
";
    assert_eq!(OneFOneB.plan(4, 8).unwrap().to_csv(), expected);
}

/// Compares ZB-V's plans for 3 workers with those of PyTorch 2.15's `ScheduleZBVZeroBubble`, without their idle slots.
/// One plan has 5 micro-batches, and one has 2.
#[test]
fn zb_v_is_pytorchs() {
    let expected = "\
0F0,0F1,0F2,0F3,0F4,5F0,5I0,5W0,5F1,5I1,5W1,5F2,5I2,5W2,0I0,0W0,5F3,5I3,5W3,0I1,0W1,5F4,5I4,5W4,0I2,0W2,0I3,0W3,\
0I4,0W4
1F0,1F1,1F2,4F0,1F3,4F1,4I0,4W0,4F2,4I1,4W1,1F4,1I0,1W0,4F3,4I2,4W2,1I1,1W1,4F4,4I3,4W3,1I2,4I4,1I3,1W2,1I4,1W3,\
4W4,1W4
2F0,3F0,2F1,3F1,2F2,3F2,3I0,3W0,2F3,2I0,2W0,3F3,3I1,3W1,2F4,2I1,2W1,3F4,3I2,3W2,2I2,3I3,2I3,3I4,2I4,2W2,3W3,3W4,\
2W3,2W4
";
    assert_eq!(ZbV.plan(6, 5).unwrap().to_csv(), expected);
    let with_two_micro_batches = "\
0F0,0F1,5F0,5I0,5W0,5F1,5I1,5W1,0I0,0W0,0I1,0W1
1F0,1F1,4F0,4F1,4I0,4W0,4I1,4W1,1I0,1W0,1I1,1W1
2F0,3F0,2F1,3F1,3I0,3W0,2I0,2W0,3I1,3W1,2I1,2W1
";
    assert_eq!(ZbV.plan(6, 2).unwrap().to_csv(), with_two_micro_batches);
}

/// Compares DualPipeV's plan with that of PyTorch 2.15's `ScheduleDualPipeV` for 3 workers and 6 micro-batches. Where
/// PyTorch overlaps a forward pass with a backward pass, the compared plan has the two passes in sequence.
#[test]
fn dualpipe_v_is_pytorchs() {
    let expected = "\
0F0,0F1,0F2,0F3,0F4,5F0,5I0,5W0,5F1,5I1,5W1,5F2,0F5,5B2,5F3,0B0,5B3,5F4,0B1,5B4,5F5,0B2,5B5,0I3,0W3,0I4,0W4,0I5,0W5
1F0,1F1,1F2,4F0,1F3,4F1,4I0,4W0,4F2,1F4,4B1,4F3,1B0,1F5,4B2,4F4,1B1,4B3,4F5,1B2,4B4,1B3,4I5,1I4,4W5,1I5,1W4,1W5
2F0,3F0,2F1,3F1,2F2,3F2,2F3,3B0,3F3,2B0,2F4,3B1,3F4,2B1,2F5,3B2,3F5,2B2,3B3,2B3,3B4,2I4,3I5,2I5,2W4,3W5,2W5
";
    assert_eq!(DualPipeV.plan(6, 6).unwrap().to_csv(), expected);
}

#[test]
fn no_stages_and_no_micro_batches_are_errors() {
    for schedule in SCHEDULES {
        assert!(schedule.plan(0, 1).unwrap_err().to_string().contains("0 stages"));
        assert!(schedule.plan(1, 0).unwrap_err().to_string().contains("0 micro-batches"));
    }
}

#[test]
fn a_v_needs_an_even_number_of_stages() {
    for schedule in V_SHAPED {
        assert_eq!(schedule.plan(7, 4), Err(ScheduleError::Chunks { stages: 7, chunks: 2 }));
        for (worker, row) in schedule.plan(8, 4).unwrap().rows().iter().enumerate() {
            assert!(row.iter().all(|action| [worker, 7 - worker].contains(&action.stage)), "{}", schedule.name());
        }
    }
}

#[test]
fn a_plan_is_the_schedule_of_its_own_shape_only() {
    let plan = OneFOneB.plan(2, 3).unwrap();
    assert_eq!(plan.plan(2, 3).as_ref(), Ok(&plan));
    let message = plan.plan(4, 3).unwrap_err().to_string();
    assert!(message.contains("2 stages") && message.contains("4 stages"), "{message}");
}

#[test]
fn live_micro_batches_are_the_papers() {
    for (stages, micro_batches) in (1..=6).flat_map(|stages| (1..=10).map(move |m| (stages, m))) {
        let peak = |schedule: &dyn Schedule| schedule.plan(stages, micro_batches).unwrap().peak_live();
        assert_eq!(peak(&GPipe), vec![micro_batches; stages]);
        let expected: Vec<_> = (0..stages).map(|stage| micro_batches.min(stages - stage)).collect();
        assert_eq!(peak(&OneFOneB), expected);
        let expected: Vec<_> = (0..stages).map(|stage| micro_batches.min(2 * (stages - stage) - 1)).collect();
        assert_eq!(peak(&EagerOneFOneB), expected);
        let expected: Vec<_> = (0..stages).map(|worker| (2 * micro_batches).min(3 * stages - 1 - 2 * worker)).collect();
        let interleaved = Interleaved { chunks: 2 }.plan(2 * stages, micro_batches);
        if let Ok(plan) = interleaved {
            assert_eq!(plan.peak_live(), expected, "P={stages} M={micro_batches}");
        }
        assert_eq!(peak(&ZbH1), vec![micro_batches.min(stages); stages]);
        assert_eq!(peak(&ZbH2), vec![micro_batches.min(2 * stages - 1); stages]);
    }
}

/// Tests the peak number of live chunks in schedules with two chunks (stages) per worker in a V. A chunk counts once
/// for each micro-batch whose activations it retains. In the papers, ZB-V needs as much memory as 1F1B
/// (arXiv:2401.10241), V-Half about a half of it and V-Min about a third (arXiv:2405.15362).
#[test]
fn live_chunks_in_a_v_are_the_papers() {
    for (workers, micro_batches) in (1..=8).flat_map(|workers| (1..=3 * workers).map(move |m| (workers, m))) {
        let peak = |schedule: &dyn Schedule| schedule.plan(2 * workers, micro_batches).unwrap().peak_live();
        let case = format!("P={workers} M={micro_batches}");
        let filling = |most: usize| (0..workers).map(move |w| most.min(2 * micro_batches).min(micro_batches + 1 + w));
        assert_eq!(peak(&ZbV), filling(2 * workers).collect::<Vec<_>>(), "{case}");
        assert_eq!(peak(&DualPipeV), filling(2 * workers + 1).collect::<Vec<_>>(), "{case}");
        let all = |most: usize| vec![most.min(2 * micro_batches); workers];
        assert_eq!(peak(&VHalf), all(2 * (workers / 2) + 2), "{case}");
        assert_eq!(peak(&VMin), all(2 * ((workers + 4) / 3)), "{case}");
    }
}

/// Tests that the documentation of every schedule contains the picture of its plan for 4 workers and 8 micro-batches.
#[test]
fn the_pictures_in_the_docs_are_the_plans() {
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/schedules")).unwrap();
    let sources: Vec<_> = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap()).collect();
    for schedule in SCHEDULES {
        let stages = 4 * schedule.chunks();
        let timeline = simulated(schedule, stages, 8, &Costs::uniform(stages, 1.0, 2.0));
        let picture: String = timeline.grid(1.0).lines().map(|line| format!("/// {line}\n")).collect();
        let documented = sources.iter().any(|source| source.contains(&picture));
        assert!(documented, "the picture of {} is\n{picture}", schedule.name());
    }
}

#[test]
fn the_picture_in_the_readme_is_the_plan() {
    let timeline = simulated(&OneFOneB, 4, 8, &Costs::uniform(4, 1.0, 2.0));
    assert_eq!(include_str!("../../../../docs/images/1f1b.svg"), timeline.svg("ms"));
}

#[test]
fn schedules_are_found_by_name() {
    for schedule in SCHEDULES {
        assert_eq!(schedule_named(schedule.name()).unwrap().name(), schedule.name());
    }
    let message = schedule_named("2f2b").err().unwrap().to_string();
    assert!(message.starts_with("there is no schedule `2f2b`; there are gpipe, 1f1b, eager-1f1b, "), "{message}");
}
