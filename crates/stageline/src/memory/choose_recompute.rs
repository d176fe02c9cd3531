//! Chooses, for each stage, the least activation recomputation (activation checkpointing) that lets the pipeline fit
//! into memory.

use std::time::Duration;

use crate::memory::estimate::MemoryEstimate;
use stageline_nn::Recompute;

/// A candidate level of activation recomputation, with the pipeline's memory estimate and backward time if all stages
/// use it.
pub(crate) struct Level {
    pub(crate) recompute: Recompute,
    pub(crate) estimate: MemoryEstimate,
    /// The total time of one micro-batch's backward passes over all stages, if all stages use this level of
    /// recomputation.
    pub(crate) backwards: Duration,
}

/// Returns the levels of recomputation in ascending order: `nothing`, then `blocks` (the first 1, 2, ... blocks of each
/// stage), then `full`. The level `selective` recomputes only cheap parts, such as attention. It is placed among the
/// blocks by its measured backward time, as if all blocks took equally long to recompute.
pub(crate) fn in_order(nothing: Level, selective: Option<Level>, blocks: Vec<Level>, full: Level) -> Vec<Level> {
    let beyond = |level: &Level| level.backwards.saturating_sub(nothing.backwards).as_secs_f64();
    let share = selective.as_ref().map_or(0.0, |selective| beyond(selective) / beyond(&full).max(f64::MIN_POSITIVE));
    let before = ((blocks.len() + 1) as f64 * share).ceil() as usize;
    let mut levels: Vec<_> = [nothing].into_iter().chain(blocks).collect();
    if let Some(selective) = selective {
        levels.insert(before.clamp(1, levels.len()), selective);
    }
    levels.push(full);
    levels
}

/// Chooses the lowest recomputation level of each stage with which the whole pipeline's memory estimate still `fits`.
/// Returns each stage's level, and the memory estimate at these levels. `levels` is in ascending order. The caller has
/// checked that the pipeline fits if all stages use the last level; otherwise the result may not fit.
pub(crate) fn least(levels: &[Level], fits: impl Fn(&MemoryEstimate) -> bool) -> (Vec<Recompute>, MemoryEstimate) {
    let last = levels.len() - 1;
    let estimate_of = |chosen: &[usize]| {
        let stages = chosen.iter().enumerate().map(|(stage, &level)| levels[level].estimate.stages[stage].clone());
        MemoryEstimate { stages: stages.collect(), ..levels[last].estimate.clone() }
    };
    let mut chosen = vec![last; levels[last].estimate.stages.len()];
    loop {
        let to = |stage: usize, level: usize| {
            let mut fewer = chosen.clone();
            fewer[stage] = level;
            let estimate = Some(estimate_of(&fewer)).filter(&fits)?;
            let bytes = estimate.devices().into_iter().map(|(_, bytes)| bytes).sum::<u64>();
            Some(((last - chosen[stage], bytes), fewer))
        };
        // A stage may have to skip a level, because the level `selective` may need less memory than the first levels of
        // `blocks`.
        let lower = |stage: usize| (0..chosen[stage]).rev().find_map(|level| to(stage, level));
        let Some((_, fewer)) = (0..chosen.len()).filter_map(lower).min() else { break };
        chosen = fewer;
    }
    (chosen.iter().map(|&level| levels[level].recompute).collect(), estimate_of(&chosen))
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::memory::estimate::tests::of_activations;

    const STAGES: usize = 3;

    fn level(recompute: Recompute, estimate: MemoryEstimate, backwards: u64) -> Level {
        Level { recompute, estimate, backwards: Duration::from_millis(backwards) }
    }

    #[test]
    fn the_selective_level_is_placed_among_blocks_by_its_time() {
        let order = |selective: u64| {
            let timed = |recompute, backwards| level(recompute, of_activations(&[1.0], 1), backwards);
            let blocks = (1..4).map(|blocks| timed(Recompute::Blocks(blocks), 0)).collect();
            let selective = Some(timed(Recompute::Selective, selective));
            let levels = in_order(timed(Recompute::Nothing, 100), selective, blocks, timed(Recompute::Full, 140));
            levels.iter().position(|level| level.recompute == Recompute::Selective).unwrap()
        };
        // The recomputation of one block takes 10 ms.
        assert_eq!([100, 105, 115, 125, 135, 200, 90].map(order), [1, 1, 2, 3, 4, 4, 1]);
    }

    fn total(estimate: &MemoryEstimate) -> u64 {
        estimate.devices().into_iter().map(|(_, bytes)| bytes).sum()
    }

    fn all_choices(levels: usize) -> impl Iterator<Item = [usize; STAGES]> {
        (0..levels.pow(STAGES as u32))
            .map(move |index| [index / levels.pow(2), index / levels % levels, index % levels])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Tests that the chosen levels of recomputation fit the memory and are minimal. Among all choices that fit,
        /// none has a lower maximum level. None lowers the level of one stage without raising that of another stage.
        #[test]
        fn the_chosen_levels_fit_and_are_the_least(
            steps in prop::collection::vec(prop::array::uniform3(1_u32..50), 4),
            least_held in prop::array::uniform3(1_u32..100),
            share in 0.0..1.0,
        ) {
            // Each level needs more memory than the next one.
            let mut held = vec![least_held.map(f64::from)];
            for step in &steps {
                let next = held[held.len() - 1];
                held.push(std::array::from_fn(|stage| next[stage] + f64::from(step[stage])));
            }
            held.reverse();
            let levels: Vec<_> = held.iter().enumerate().map(|(blocks, held)| {
                level(Recompute::Blocks(blocks), of_activations(held, 6), blocks as u64)
            }).collect();
            let [most, fewest] = [0, levels.len() - 1].map(|level| total(&levels[level].estimate));
            let limit = fewest + ((most - fewest) as f64 * share) as u64;
            let (recompute, found) = least(&levels, |estimate| total(estimate) <= limit);
            prop_assert!(total(&found) <= limit);
            let chosen: Vec<_> = recompute.iter().map(|recompute| match recompute {
                Recompute::Blocks(blocks) => *blocks,
                other => panic!("{other:?}"),
            }).collect();
            let fits = |choice: &[usize; STAGES]| {
                total(&of_activations(&std::array::from_fn::<_, STAGES, _>(|stage| held[choice[stage]][stage]), 6)) <= limit
            };
            for choice in all_choices(levels.len()).filter(fits) {
                prop_assert!(choice.iter().max() >= chosen.iter().max(), "{:?} fits, not only {:?}", choice, chosen);
                let is_less = choice.iter().zip(&chosen).all(|(other, chosen)| other <= chosen);
                prop_assert!(!is_less || choice[..] == chosen[..], "{:?} fits, not only {:?}", choice, chosen);
            }
        }
    }
}
