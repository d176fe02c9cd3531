//! How little each stage has to compute again.

use crate::estimate::MemoryEstimate;
use crate::recompute::Recompute;

/// What all stages compute again, and what they then hold.
pub(crate) struct Level {
    pub(crate) recompute: Recompute,
    pub(crate) estimate: MemoryEstimate,
}

/// What each stage computes again at the least, of levels of which the last one fits, those that compute less again first.
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
            let estimate = estimate_of(&fewer);
            let bytes = estimate.devices().into_iter().map(|(_, bytes)| bytes).sum::<u64>();
            fits(&estimate).then_some(((last - chosen[stage], bytes), fewer))
        };
        // One level lower, or more: a selective one may hold less than the first blocks do.
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
    use crate::estimate::tests::of_activations;

    const STAGES: usize = 3;

    fn total(estimate: &MemoryEstimate) -> u64 {
        estimate.devices().into_iter().map(|(_, bytes)| bytes).sum()
    }

    fn all_choices(levels: usize) -> impl Iterator<Item = [usize; STAGES]> {
        (0..levels.pow(STAGES as u32))
            .map(move |index| [index / levels.pow(2), index / levels % levels, index % levels])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Of all choices that fit, in none does the stage that computes the most again compute less again; and no stage could.
        #[test]
        fn as_little_as_fits(
            steps in prop::collection::vec(prop::array::uniform3(1_u32..50), 4),
            least_held in prop::array::uniform3(1_u32..100),
            share in 0.0..1.0,
        ) {
            // Each level holds more than the next.
            let mut held = vec![least_held.map(f64::from)];
            for step in &steps {
                let next = held[held.len() - 1];
                held.push(std::array::from_fn(|stage| next[stage] + f64::from(step[stage])));
            }
            held.reverse();
            let levels: Vec<_> = held.iter().enumerate().map(|(blocks, held)| {
                Level { recompute: Recompute::Blocks(blocks), estimate: of_activations(held, 6) }
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
