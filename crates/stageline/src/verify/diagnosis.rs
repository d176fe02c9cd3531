//! Finds the likely cause of a difference between a training run and its reference (the same training with the full
//! batch on one device). It predicts the gradients that each known bug in gradient accumulation would give, and
//! compares them with the run's gradients.
//!
//! The predictions are made from the gradients of every micro-batch, each computed alone. If these do not add up to the
//! gradients of the whole batch, the bug is in the model itself, such as a batch norm or a loss that is a mean.

use super::cause::{Cause, ClipScope, Whose};
use super::difference::{Difference, relative, wide, worst};
use super::error::VerifyError;
use super::evidence::{Parts, Predictions};
use super::models::Build;
use super::one_step::OneStep;
use crate::build::variants::Configured;
use crate::model::batch::Batch;
use crate::model::micro_batches::MicroBatches;
use crate::model::payload::Payload;
use crate::pipeline::{Pipeline, Probe};
use crate::update::clip::Clip;
use crate::update::parameter_gradient::ParameterGradient;
use crate::update::precision::Precision;
use crate::verify::flat::{Flat, add, clipped, dot, flat};

/// The inputs of the search for the cause of a difference between a training run and its reference on one device: the
/// model, the batch of the first step, and the gradients of both runs.
pub(super) struct Diagnosis<'a, In: Payload, Out: Payload, Target: Payload> {
    /// The closure that builds the pipeline to verify. It must give the same initial parameters on every call.
    pub(super) build: &'a Build<'a, In, Out, Target>,
    /// Whether the reference run on one device trains the undivided model. If false, it runs the pipeline's own stages
    /// one after the other.
    pub(super) is_uncut: bool,
    /// The batch of the first training step.
    pub(super) batch: Batch<In, Target>,
    /// The gradient of each parameter at the first step of the verified run.
    pub(super) configured: &'a [ParameterGradient],
    /// The gradient of each parameter at the first step of the reference run on one device.
    pub(super) reference: &'a [ParameterGradient],
    /// For each parameter, the relative difference between its gradients in the verified run and in its reference on
    /// one device.
    pub(super) differences: &'a [Difference],
    /// The comparison of one pipeline step with the same step of a plain training loop (without a pipeline). `None` if
    /// the verified run is a training loop of the user's own.
    pub(super) one_step: Option<&'a OneStep>,
    /// The number of micro-batches per batch in the reference run on one device.
    pub(super) reference_micro_batches: usize,
    /// The tolerance for gradients: the largest relative difference between two gradients that count as equal. It is
    /// the norm of their difference divided by the norm of the expected gradient.
    pub(super) bar: f64,
}

impl<In: Payload, Out: Payload, Target: Payload> Diagnosis<'_, In, Out, Target> {
    /// Returns the likely cause of the difference between the verified run and its reference on one device. `None` if
    /// their gradients agree within the tolerance, before and after clipping.
    pub(super) fn cause(&self) -> Result<Option<Cause>, VerifyError> {
        let configuration = Configured((self.build)());
        let (clip, micro_batches) = (configuration.clip(), configuration.micro_batches());
        let batch_norm = configuration.batch_norms().first().cloned();
        let mut probes = configuration.unclipped_reference(1).build()?;

        let whole = self.parts(&mut probes, self.reference_micro_batches)?;
        if !self.close(&self.parts(&mut probes, self.reference_micro_batches)?.sum, &whole.sum) {
            return Ok(Some(Cause::DrawsRandomNumbers));
        }
        let wrong = self.wrong(&whole.sum, &flat(self.reference));
        if let Some(&at) = wrong.first() {
            let ParameterGradient { stage, path, .. } = self.configured[at].clone();
            return Ok(Some(if self.is_uncut { Cause::Cut { stage, path } } else { Cause::NotSeeded }));
        }
        let parts = self.parts(&mut probes, micro_batches)?;
        if let Some(cause) = self.loss_fault(&whole, &parts) {
            return Ok(Some(cause));
        }
        if !self.close(&parts.sum, &whole.sum) {
            let batch_norm = batch_norm.map(|(stage, path)| Cause::BatchNorm { stage, path });
            return Ok(self.dropped_by_model(&whole, &parts).or(batch_norm).or(Some(Cause::CoupledSamples)));
        }
        let found = flat(self.configured);
        if self.close(&found, &parts.sum) {
            return Ok(self.clip_fault(clip));
        }
        let predictions = self.predictions(&mut probes, micro_batches, clip)?;
        if let Some(cause) = self.sum_fault(&found, &parts.sum, predictions) {
            return Ok(Some(cause));
        }
        if let Some(cause) = self.dropped_by_training(&mut probes, micro_batches, &parts.sum)? {
            return Ok(Some(cause));
        }
        let of_bits = self.one_step.and_then(OneStep::cause);
        if let Some(cause @ (Cause::Recomputation { .. } | Cause::SplitBackward { .. })) = of_bits {
            return Ok(Some(cause));
        }
        if self.is_rounding(&found)? {
            return Ok(Some(Cause::Rounding));
        }
        Ok(Some(self.unknown()))
    }

    /// Splits the first step's batch into `count` micro-batches, and computes the gradients of each alone with the
    /// pipeline `probes`. Returns the micro-batches' losses, the sum of their gradients, and the parameters with zero
    /// gradients in each micro-batch.
    fn parts(&self, probes: &mut Pipeline<In, Out, Target>, count: usize) -> Result<Parts, VerifyError> {
        let batch = self.cut(probes, count)?;
        let mut parts = Parts { losses: Vec::new(), sum: self.zeros(), zero_gradients: Vec::new() };
        for piece in 0..count {
            let only = batch.clone().only(piece);
            let Probe { gradients, losses, weight } = probes.probe(only, &batch.weights.total)?;
            parts.losses.push((losses, weight));
            let nothing = |&at: &usize| gradients[at].summed.iter().all(|value| *value == 0.0);
            parts.zero_gradients.push((0..gradients.len()).filter(nothing).collect());
            add(&mut parts.sum, &flat(&gradients), 1.0);
        }
        Ok(parts)
    }

    /// Predicts the gradients that the first step would have with each of several known bugs: averaging the mean
    /// gradients of `count` micro-batches, clipping at every micro-batch with the settings `clip`, or both.
    fn predictions(
        &self,
        probes: &mut Pipeline<In, Out, Target>,
        count: usize,
        clip: Option<Clip>,
    ) -> Result<Predictions, VerifyError> {
        let batch = self.cut(probes, count)?;
        let mut all = Predictions {
            mean: self.zeros(),
            clipped_each: self.zeros(),
            clipped_running: self.zeros(),
            clipped_means: self.zeros(),
            clipped_running_means: self.zeros(),
        };
        let share = 1.0 / count as f64;
        for piece in 0..count {
            let only = batch.clone().only(piece);
            let own = only.weights.total.clone();
            let part = flat(&probes.probe(only.clone(), &batch.weights.total)?.gradients);
            add(&mut all.clipped_running, &part, 1.0);
            all.clipped_running = clipped(all.clipped_running, clip);
            add(&mut all.clipped_each, &clipped(part, clip), 1.0);
            if !own.is_zero() {
                let mean = flat(&probes.probe(only, &own)?.gradients);
                add(&mut all.mean, &mean, share);
                add(&mut all.clipped_running_means, &mean, share);
                all.clipped_running_means = clipped(all.clipped_running_means, clip);
                add(&mut all.clipped_means, &clipped(mean, clip), share);
            }
        }
        Ok(all)
    }

    /// Splits the first step's batch into `count` micro-batches, and computes their loss weights.
    fn cut(&self, probes: &Pipeline<In, Out, Target>, count: usize) -> Result<MicroBatches<In, Target>, VerifyError> {
        Ok(probes.cut(self.batch.clone(), count)?)
    }

    /// Returns the initial value of a sum of gradients: a flat vector with a zero for each gradient element of all
    /// parameters.
    fn zeros(&self) -> Flat {
        vec![0.0; self.reference.iter().map(|gradient| gradient.summed.len()).sum()]
    }

    /// Checks that the loss function returns sums over targets: for every loss term, the loss sums and loss weights of
    /// the micro-batches (`parts`) should add up to those of the whole batch (`whole`). If they do not, returns the
    /// known bug that explains this. Returns `None` if they do, or if no known bug explains the difference.
    fn loss_fault(&self, whole: &Parts, parts: &Parts) -> Option<Cause> {
        let terms = whole.losses.first().map_or(0, |(losses, _)| losses.len());
        let pairs = |parts: &Parts, term: usize| -> Vec<(f64, f64)> {
            parts.losses.iter().map(|(losses, weight)| (losses[term], weight.terms()[term])).collect()
        };
        (0..terms).find_map(|term| self.term_fault(&pairs(whole, term), &pairs(parts, term)))
    }

    /// Checks one loss term: the micro-batches' loss sums and weights (`parts`) should add up to those of the whole
    /// batch (`whole`). Both lists have pairs `(loss sum, loss weight)`. If the totals differ, returns the known bug
    /// that explains this. `None` if they agree or no known bug explains the difference.
    fn term_fault(&self, whole: &[(f64, f64)], parts: &[(f64, f64)]) -> Option<Cause> {
        let total = |pairs: &[(f64, f64)]| pairs.iter().fold((0.0, 0.0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
        let ((loss, weight), (sum, weights)) = (total(whole), total(parts));
        let apart = |value: f64| (value / loss - 1.0).abs();
        // If the stage returns means, the whole batch's loss is the mean of the micro-batches' losses. This mean is
        // weighted by their loss weights, or unweighted if the weights do not count the targets.
        let by_weight = parts.iter().map(|(loss, weight)| loss * weight).sum::<f64>() / weights;
        let as_mean = apart(by_weight).min(apart(sum / parts.len() as f64));
        // A mean still counts as a mean if its loss differs by less than half, because masks change a mean by less than
        // half. The sum of n micro-batches' means is about n times the loss of the whole batch.
        let nearer_to_mean = as_mean < 0.5 && apart(sum) > 0.5;
        if apart(sum) > self.bar && (as_mean <= self.bar || nearer_to_mean) {
            return Some(Cause::MeanOfMeans(Whose::Loss));
        }
        let uneven = (weights / weight - 1.0).abs() > self.bar;
        (uneven && apart(sum) <= self.bar).then(|| Cause::MissedDivision { factor: weight / weights })
    }

    /// Returns the bug in the verified run's gradient clipping, if the gradients before clipping are right. `clip` is
    /// the configured clipping. Returns `None` if the clipped gradients are right too, and [`Cause::Unknown`] if no
    /// known bug explains them.
    fn clip_fault(&self, clip: Option<Clip>) -> Option<Cause> {
        let applied: Flat = self.configured.iter().flat_map(|gradient| wide(&gradient.applied)).collect();
        let summed = flat(self.configured);
        if self.close(&applied, &clipped(summed.clone(), clip)) {
            return None;
        }
        let apart = |key: fn(&(usize, &ParameterGradient)) -> usize| {
            let numbered: Vec<_> = self.configured.iter().enumerate().collect();
            let groups = numbered.chunk_by(|a, b| key(a) == key(b));
            let together = |group: &[(usize, &ParameterGradient)]| {
                group.iter().flat_map(|(_, gradient)| wide(&gradient.summed)).collect::<Flat>()
            };
            groups.flat_map(|group| clipped(together(group), clip)).collect::<Flat>()
        };
        let candidates = [
            (Cause::ClippedApart(ClipScope::Stage), apart(|(_, gradient)| gradient.stage)),
            (Cause::ClippedApart(ClipScope::Parameter), apart(|(at, _)| *at)),
            (Cause::NotClipped, summed),
        ];
        Some(self.closest(&applied, candidates).unwrap_or_else(|| self.unknown()))
    }

    /// Returns the known bug in gradient accumulation or clipping that explains the wrong gradients `found`; `None` if
    /// there is none. `sum` has the correct gradients, and `predictions` has those that known bugs would give.
    fn sum_fault(&self, found: &Flat, sum: &Flat, predictions: Predictions) -> Option<Cause> {
        let Predictions { mean, clipped_each, clipped_running, clipped_means, clipped_running_means } = predictions;
        let scaled = |values: &Flat| {
            let factor = dot(found, values) / dot(values, values);
            // A division leaves the sign, so gradients of zero and of the other sign have another cause.
            let is_division = factor > 0.0;
            let prediction = || values.iter().map(|value| value * factor).collect::<Flat>();
            is_division.then(|| (Cause::MissedDivision { factor }, prediction()))
        };
        let by_micro_batch = |values| (Cause::ClippedApart(ClipScope::MicroBatch), values);
        // These predictions come before the scaled mean, which is equally close to a plain mean, with a factor of 1.
        let unscaled = [
            (Cause::MeanOfMeans(Whose::Training), mean.clone()),
            by_micro_batch(clipped_each),
            by_micro_batch(clipped_running),
            by_micro_batch(clipped_means),
            by_micro_batch(clipped_running_means),
        ];
        self.closest(found, unscaled)
            .or_else(|| self.closest(found, [scaled(sum), scaled(&mean)].into_iter().flatten()))
    }

    /// Returns [`Cause::MissingMicroBatch`] if the model drops a micro-batch: run alone, the micro-batch gives a zero
    /// gradient for every parameter whose summed gradient is wrong. `whole` has the results of the whole batch, and
    /// `parts` has those of the micro-batches. Returns `None` if there is no such micro-batch.
    fn dropped_by_model(&self, whole: &Parts, parts: &Parts) -> Option<Cause> {
        let wrong = self.wrong(&parts.sum, &whole.sum);
        let stage = self.last_stage(&wrong)?;
        let counts = |micro_batch: &usize| !parts.losses[*micro_batch].1.is_zero();
        let drops = |micro_batch: &usize| wrong.iter().all(|at| parts.zero_gradients[*micro_batch].contains(at));
        let micro_batch = (0..parts.zero_gradients.len()).filter(counts).find(drops)?;
        Some(Cause::MissingMicroBatch { stage, micro_batch })
    }

    /// Returns [`Cause::MissingMicroBatch`] if the training loop drops one of `count` micro-batches: every wrong
    /// gradient of the run equals the correct sum (`sum`) minus this micro-batch's gradient. Returns `None` if there is
    /// no such micro-batch.
    fn dropped_by_training(
        &self,
        probes: &mut Pipeline<In, Out, Target>,
        count: usize,
        sum: &Flat,
    ) -> Result<Option<Cause>, VerifyError> {
        let found = flat(self.configured);
        let wrong = self.wrong(&found, sum);
        let Some(stage) = self.last_stage(&wrong) else { return Ok(None) };
        let batch = self.cut(probes, count)?;
        for micro_batch in 0..count {
            let mut without = sum.clone();
            let part = flat(&probes.probe(batch.clone().only(micro_batch), &batch.weights.total)?.gradients);
            add(&mut without, &part, -1.0);
            let still_wrong = self.wrong(&found, &without);
            if wrong.iter().all(|at| !still_wrong.contains(at)) {
                return Ok(Some(Cause::MissingMicroBatch { stage, micro_batch }));
            }
        }
        Ok(None)
    }

    /// Whether rounding in BF16 or F16 explains the gradients `found`: the pipeline computes in one of these dtypes,
    /// and its gradients in full precision agree with those of the reference run on one device, but not with `found`.
    fn is_rounding(&self, found: &Flat) -> Result<bool, VerifyError> {
        let configuration = Configured((self.build)());
        if configuration.precision() == Precision::Full {
            return Ok(false);
        }
        let full = configuration.in_full_precision().build()?.gradients(self.batch.clone())?;
        Ok(self.close(&flat(&full), &flat(self.reference)) && !self.close(found, &flat(&full)))
    }

    /// Returns the bug in `candidates` whose predicted gradients are the closest to the gradients `found`. `None` if no
    /// prediction is within the tolerance for every parameter.
    fn closest(&self, found: &Flat, candidates: impl IntoIterator<Item = (Cause, Flat)>) -> Option<Cause> {
        // `f64::max` would ignore NaN, but a bug whose prediction is NaN explains nothing.
        let worse = |a: f64, b: f64| if b.is_nan() { f64::INFINITY } else { a.max(b) };
        let largest = |predicted: &Flat| self.distances(found, predicted).into_iter().fold(0.0, worse);
        let measured = candidates.into_iter().map(|(cause, predicted)| (largest(&predicted), cause));
        let close = measured.filter(|(distance, _)| *distance <= self.bar);
        close.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, cause)| cause)
    }

    /// Whether the gradients `found` and `expected` agree within the tolerance for every parameter.
    fn close(&self, found: &Flat, expected: &Flat) -> bool {
        self.wrong(found, expected).is_empty()
    }

    /// Returns the indices of the parameters whose gradients in `found` and `expected` differ by more than the
    /// tolerance, or are NaN.
    fn wrong(&self, found: &Flat, expected: &Flat) -> Vec<usize> {
        let apart = |(_, distance): &(usize, f64)| distance.is_nan() || *distance > self.bar;
        self.distances(found, expected).into_iter().enumerate().filter(apart).map(|(at, _)| at).collect()
    }

    /// Returns, for each parameter, the relative difference between its gradients in `found` and `expected`.
    fn distances(&self, found: &Flat, expected: &Flat) -> Vec<f64> {
        let norm = dot(expected, expected).sqrt();
        let mut start = 0;
        let distance = |gradient: &ParameterGradient| {
            let range = start..start + gradient.summed.len();
            start = range.end;
            let (found, expected) = (&found[range.clone()], &expected[range]);
            relative(found.iter().copied(), expected.iter().copied(), norm)
        };
        self.reference.iter().map(distance).collect()
    }

    /// Returns the last stage (the nearest to the loss) that trains any of the given parameters, which are indices into
    /// the model's parameters. `None` without parameters.
    fn last_stage(&self, parameters: &[usize]) -> Option<usize> {
        parameters.iter().map(|&at| self.reference[at].stage).max()
    }

    /// Returns [`Cause::Unknown`], for a difference that no known bug explains. It names the parameter whose gradients
    /// differ most.
    fn unknown(&self) -> Cause {
        let worst = worst(self.differences);
        let (stage, path) = worst.map_or((0, String::new()), |worst| (worst.stage, worst.path.clone()));
        Cause::Unknown { stage, path }
    }
}
