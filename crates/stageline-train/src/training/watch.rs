//! Warnings about gradients and updates that are signs of failing training ([`Watch`]), each naming a layer.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use stageline_report::record::{Health, layer_of};

/// Number of past steps whose gradient norms are kept; a new step's norm is compared with their median.
const REMEMBERED: usize = 32;
/// Minimum number of past steps needed for a median of their gradient norms, to detect a jump.
const FEWEST: usize = 8;
/// A step's gradient norm counts as a jump if it exceeds this multiple of the past norms' median.
const JUMP: f64 = 10.0;
/// The number of consecutive steps with a gradient of exactly 0 after which a parameter is reported. One step is not
/// enough: a layer before a zero-initialised projection has no gradient in the first step.
const DEAD_AFTER: usize = 20;
/// Maximum update ratio (norm of a layer's update / norm of its parameters); above it, the update is reported as too
/// large. About 1e-3 is usual.
const OVERWRITTEN: f64 = 0.1;
/// Threshold for a layer that is hardly trained: an update ratio (norm of the update / norm of the parameters) below
/// this fraction of all layers' median. It is small, because ratios within one model can differ by a factor of 100.
const HARDLY: f64 = 1e-3;

/// Detects signs of failing training in each step, such as a jump of the gradient norm, by comparison with past steps.
#[derive(Debug, Default)]
pub struct Watch {
    /// Global gradient norms (L2, over all parameters) of past steps, the newest last.
    norms: VecDeque<f64>,
    /// First step at which a jump of the gradient norm may be reported again, so that several consecutive large norms
    /// give one warning.
    quiet_until: usize,
    /// For each parameter, by name, the number of consecutive steps in which its gradient was exactly 0.
    without_gradient: HashMap<Arc<str>, usize>,
    /// The names of the layers already reported for a very large or very small update. No layer is reported twice.
    reported: HashSet<String>,
    /// Whether a step with only masked-out targets was already reported, so that later ones are not.
    without_target: bool,
}

impl Watch {
    /// Returns a warning for the first step with only masked-out targets; `None` for later ones. `step` is zero-based.
    pub fn no_target(&mut self, step: usize) -> Option<String> {
        let is_first = !std::mem::replace(&mut self.without_target, true);
        is_first.then(|| {
            format!(
                "step {step}: no target of the batch is trained on, so the step is skipped, as every later step like it. Larger batches \
                 or a longer context have targets"
            )
        })
    }

    /// Returns a warning if a step's global gradient norm `norm` is more than 10 times the median of the last 32 steps,
    /// unless there are fewer than 8 earlier steps, or a jump was reported less than 32 steps ago. `step` is
    /// zero-based. `of_each` lists each parameter's name and gradient norm, to name the layer with the largest.
    pub fn jump(&mut self, step: usize, norm: f64, of_each: &[(Arc<str>, f64)]) -> Option<String> {
        let mut sorted: Vec<_> = self.norms.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        self.norms.push_back(norm);
        if self.norms.len() > REMEMBERED {
            self.norms.pop_front();
        }
        let median = *sorted.get(sorted.len() / 2).filter(|_| sorted.len() >= FEWEST)?;
        if step < self.quiet_until || norm <= JUMP * median {
            return None;
        }
        self.quiet_until = step + REMEMBERED;
        let (layer, share) = largest(of_each)?;
        Some(format!(
            "step {step}: the gradient norm is {norm:.3e}, {:.0} times the median of the {} steps before; {:.0}% of its square is in \
             `{layer}`. If the loss rises as well, lower `--learning-rate` or `--clip`, or lengthen `--warm-up`",
            norm / median,
            sorted.len(),
            100.0 * share
        ))
    }

    /// Returns a warning, once per parameter, when its gradient has been exactly 0 for 20 consecutive steps. `step` is
    /// zero-based. `of_each` lists each parameter's name and gradient norm.
    pub fn dead(&mut self, step: usize, of_each: &[(Arc<str>, f64)]) -> Option<String> {
        let mut dead = Vec::new();
        for (name, norm) in of_each {
            if *norm != 0.0 {
                self.without_gradient.remove(name);
                continue;
            }
            let steps = self.without_gradient.entry(Arc::clone(name)).or_default();
            *steps += 1;
            if *steps == DEAD_AFTER {
                dead.push(&**name);
            }
        }
        let first = *dead.first()?;
        let others = if dead.len() > 1 { format!(" and {} more", dead.len() - 1) } else { String::new() };
        Some(format!(
            "step {step}: the gradient of `{first}`{others} was exactly 0 in {DEAD_AFTER} steps in a row, so {} cannot train; look for \
             dead activations or masked inputs in `{}`",
            if dead.len() > 1 { "they" } else { "it" },
            layer_of(first)
        ))
    }

    /// Returns a warning for each layer whose update ratio (norm of the update / norm of the layer's parameters) is
    /// very large or very small in this step: above 0.1, or below a thousandth of all layers' median.
    ///
    /// Each layer is reported at most once. `health` lists each parameter's training statistics, including its update
    /// ratio.
    pub fn ratios(&mut self, step: usize, health: &[Health]) -> Vec<String> {
        let layers = health.chunk_by(|a, b| layer_of(&a.parameter) == layer_of(&b.parameter));
        let ratio = |parameters: &[Health]| Health::update_ratio_of(&parameters.iter().collect::<Vec<_>>());
        let ratios: Vec<_> = layers.map(|parameters| (layer_of(&parameters[0].parameter), ratio(parameters))).collect();
        let mut sorted: Vec<_> = ratios.iter().map(|(_, ratio)| *ratio).collect();
        sorted.sort_by(f64::total_cmp);
        let Some(&median) = sorted.get(sorted.len() / 2) else { return Vec::new() };
        let mut warnings = Vec::new();
        for (layer, ratio) in ratios {
            let meaning = match ratio {
                ratio if ratio > OVERWRITTEN => "about 1e-3 is usual: lower the learning rate".to_owned(),
                ratio if ratio < HARDLY * median => {
                    format!("the median of the layers is {median:.1e}: check that its gradients are not masked")
                }
                _ => continue,
            };
            if self.reported.insert(layer.to_owned()) {
                warnings.push(format!(
                    "step {step}: the update of `{layer}` has {ratio:.1e} of its parameters' norm; {meaning}"
                ));
            }
        }
        warnings
    }
}

/// Returns the name of the layer with the largest gradient, and its share (0 to 1) of the squared global gradient norm;
/// `None` if there are no parameters. `of_each` lists each parameter's name and gradient norm.
fn largest(of_each: &[(Arc<str>, f64)]) -> Option<(&str, f64)> {
    let mut layers: Vec<(&str, f64)> = Vec::new();
    for (name, norm) in of_each {
        let layer = layer_of(name);
        match layers.iter_mut().find(|(known, _)| *known == layer) {
            Some((_, square)) => *square += norm * norm,
            None => layers.push((layer, norm * norm)),
        }
    }
    let all: f64 = layers.iter().map(|(_, square)| square).sum();
    let (layer, square) = layers.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    Some((layer, square / all))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn norms(of: &[(&str, f64)]) -> Vec<(Arc<str>, f64)> {
        of.iter().map(|(name, norm)| ((*name).into(), *norm)).collect()
    }

    #[test]
    fn a_jump_names_the_layer_once() {
        let mut watch = Watch::default();
        let calm = norms(&[("blocks.0.a.weight", 0.6), ("head.weight", 0.8)]);
        // The first steps of a training may have any norm.
        assert_eq!((0..FEWEST).find_map(|step| watch.jump(step, 10.0_f64.powi(2 * step as i32 % 4), &calm)), None);
        let mut watch = Watch::default();
        assert_eq!((0..40).find_map(|step| watch.jump(step, 1.0 + 0.1 * (step % 5) as f64, &calm)), None);
        let wild = norms(&[
            ("blocks.0.a.weight", 12.0),
            ("blocks.0.b.weight", 9.0),
            ("blocks.10.a.weight", 8.0),
            ("head.weight", 6.0),
        ]);
        let warning = watch.jump(40, 325.0_f64.sqrt(), &wild).unwrap();
        assert!(warning.contains("`blocks.0`") && warning.contains("69%") && warning.contains("15 times"), "{warning}");
        assert!(warning.ends_with("lower `--learning-rate` or `--clip`, or lengthen `--warm-up`"), "{warning}");
        assert_eq!(watch.jump(41, 100.0, &wild), None);
        assert!((42..40 + REMEMBERED).all(|step| watch.jump(step, 1.0, &calm).is_none()));
        assert!(watch.jump(40 + REMEMBERED, 100.0, &wild).is_some());
    }

    #[test]
    fn only_gradients_that_stay_zero_are_dead() {
        let mut watch = Watch::default();
        for step in 0..DEAD_AFTER - 1 {
            assert_eq!(watch.dead(step, &norms(&[("a.weight", 0.0), ("b.weight", 0.0), ("c.weight", 1.0)])), None);
        }
        let warning =
            watch.dead(DEAD_AFTER, &norms(&[("a.weight", 0.0), ("b.weight", 1e-9), ("c.weight", 1.0)])).unwrap();
        assert!(warning.contains("`a.weight` was exactly 0") && warning.contains("in `a`"), "{warning}");
        assert_eq!(watch.dead(DEAD_AFTER + 1, &norms(&[("a.weight", 0.0)])), None, "reported once");
    }

    #[test]
    fn ratios_out_of_range_name_the_layer_once() {
        let health = |parameter: &str, parameter_norm: f64, update_ratio: f64| Health {
            stage: 0,
            parameter: parameter.to_owned(),
            gradient_norm: 1.0,
            parameter_norm,
            update_ratio,
            second_moment: None,
            zeros: 0.0,
            histogram: Vec::new(),
        };
        let mut watch = Watch::default();
        // A bias that starts at 0 is replaced by its first update, which says nothing about the layer.
        let usual = [health("blocks.0.weight", 10.0, 1e-3), health("blocks.0.bias", 1e-3, 1.0)];
        assert!(watch.ratios(0, &usual).is_empty());
        let wild = |overwritten| {
            ["blocks.0", "blocks.1", "blocks.2", "head"]
                .map(|layer| health(&format!("{layer}.weight"), 10.0, if layer == "head" { overwritten } else { 2e-3 }))
        };
        let warnings = watch.ratios(1, &wild(0.2));
        assert!(warnings.len() == 1 && warnings[0].contains("`head` has 2.0e-1"), "{warnings:?}");
        assert!(watch.ratios(2, &wild(0.2)).is_empty());
        assert!(Watch::default().ratios(0, &wild(1e-4)).is_empty());
        let warnings = Watch::default().ratios(0, &wild(1e-7));
        assert!(warnings.len() == 1 && warnings[0].contains("median of the layers is 2.0e-3"), "{warnings:?}");
        assert!(watch.ratios(3, &[]).is_empty());
    }
}
