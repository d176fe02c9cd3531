//! The likely cause of a difference: each known fault predicts gradients, and the one that predicts those that were found is it.

use std::ops::Range;

use super::difference::{floor, relative, wide};
use super::{Cause, ClipScope, VerifyError, Whose};
use crate::batch::{Batch, MicroBatches};
use crate::builder::PipelineBuilder;
use crate::clip::{Clip, Scaling};
use crate::payload::Payload;
use crate::pipeline::{Pipeline, Probe};
use crate::precision::Precision;
use crate::shown::ParameterGradient;

/// What is known of a difference.
pub(super) struct Diagnosis<'a, B, In, Target> {
    pub(super) build: &'a B,
    /// Of the first step.
    pub(super) batch: Batch<In, Target>,
    pub(super) configured: &'a [ParameterGradient],
    pub(super) reference: &'a [ParameterGradient],
    pub(super) reference_micro_batches: usize,
    pub(super) bar: f64,
}

/// All gradients, one parameter after the other.
type Flat = Vec<f64>;

/// What the pieces of a batch give by themselves.
struct Pieces {
    /// The sum of their losses, all terms together, and of what they weigh in the first term.
    losses: Vec<(f64, f64)>,
    /// The sum of their gradients, each divided by the weight of all.
    sum: Flat,
    /// The mean of their gradients, each divided by its own weight.
    mean: Flat,
    /// The parameters, by their index, to which a piece gives nothing.
    silent: Vec<Vec<usize>>,
    /// The first, with each piece clipped, or with the sum clipped after each piece; and the second with each piece clipped.
    clipped: [Flat; 3],
}

impl<B, In, Target> Diagnosis<'_, B, In, Target>
where
    B: Fn() -> PipelineBuilder<In, Target>,
    In: Payload,
    Target: Payload,
{
    /// `None` where the gradients are the same.
    pub(super) fn cause(&self) -> Result<Option<Cause>, VerifyError> {
        let configuration = (self.build)();
        let (clip, micro_batches) = (configuration.configured_clip(), configuration.configured_micro_batches());
        let batch_norms = configuration.batch_norms().to_vec();
        let mut probes = configuration.reference(1).unclipped().build()?;

        let whole = self.pieces(&mut probes, self.reference_micro_batches, clip)?;
        if !self.close(&whole.sum, &flat(self.reference)) {
            return Ok(Some(Cause::NotSeeded));
        }
        let pieces = self.pieces(&mut probes, micro_batches, clip)?;
        let found = flat(self.configured);
        if let Some(cause) = self.of_loss(&whole, &pieces) {
            return Ok(Some(cause));
        }
        if !self.close(&pieces.sum, &whole.sum) {
            let batch_norm = batch_norms.into_iter().next();
            let batch_norm = batch_norm.map(|(stage, path)| Cause::BatchNorm { stage, path });
            return Ok(self.silent(&whole, &pieces).or(batch_norm).or(Some(Cause::CoupledSamples)));
        }
        if self.close(&found, &pieces.sum) {
            return Ok(self.of_clip(clip));
        }
        if let Some(cause) = self.of_sum(&found, &pieces) {
            return Ok(Some(cause));
        }
        if let Some(cause) = self.missing(&mut probes, micro_batches, &pieces.sum)? {
            return Ok(Some(cause));
        }
        if self.is_rounding(&found)? {
            return Ok(Some(Cause::Rounding));
        }
        Ok(Some(self.unknown()))
    }

    /// What the batch gives, cut into so many pieces of which each is computed by itself.
    fn pieces(
        &self,
        probes: &mut Pipeline<In, Target>,
        count: usize,
        clip: Option<Clip>,
    ) -> Result<Pieces, VerifyError> {
        let batch = self.cut(probes, count)?;
        let total = batch.weights.total.clone();
        let zeros = || vec![0.0; self.reference.iter().map(|gradient| gradient.summed.len()).sum()];
        let mut pieces = Pieces {
            losses: Vec::new(),
            sum: zeros(),
            mean: zeros(),
            silent: Vec::new(),
            clipped: [zeros(), zeros(), zeros()],
        };
        for piece in 0..count {
            let only = batch.clone().only(piece);
            let own = only.weights.total.clone();
            let Probe { gradients, losses, weight } = probes.probe(only.clone(), &total)?;
            pieces.losses.push((losses.iter().sum(), weight.terms()[0]));
            let nothing = |&at: &usize| gradients[at].summed.iter().all(|value| *value == 0.0);
            pieces.silent.push((0..gradients.len()).filter(nothing).collect());
            let part = flat(&gradients);
            add(&mut pieces.sum, &part, 1.0);
            add(&mut pieces.clipped[0], &clipped(part.clone(), clip), 1.0);
            add(&mut pieces.clipped[1], &part, 1.0);
            pieces.clipped[1] = clipped(std::mem::take(&mut pieces.clipped[1]), clip);
            if !own.is_zero() {
                let mean = flat(&probes.probe(only, &own)?.gradients);
                add(&mut pieces.mean, &mean, 1.0 / count as f64);
                add(&mut pieces.clipped[2], &clipped(mean, clip), 1.0 / count as f64);
            }
        }
        Ok(pieces)
    }

    fn cut(&self, probes: &Pipeline<In, Target>, count: usize) -> Result<MicroBatches<In, Target>, VerifyError> {
        Ok(probes.cut(self.batch.clone(), count)?)
    }

    /// Whether the loss of the whole is the sum of those of its pieces, and so is its weight.
    fn of_loss(&self, whole: &Pieces, pieces: &Pieces) -> Option<Cause> {
        let sums =
            |pieces: &Pieces| pieces.losses.iter().fold((0.0, 0.0), |sum, piece| (sum.0 + piece.0, sum.1 + piece.1));
        let ((loss, weight), (sum, total)) = (sums(whole), sums(pieces));
        let apart = |value: f64| (value / loss - 1.0).abs();
        // A mean weighs its pieces by what they weigh, or all the same where these do not say.
        let by_weight = pieces.losses.iter().map(|(loss, weight)| loss * weight).sum::<f64>() / total;
        let as_mean = apart(by_weight).min(apart(sum / pieces.losses.len() as f64));
        if as_mean <= self.bar || (as_mean < 0.5 && apart(sum) > 0.5) {
            return (apart(sum) > self.bar).then_some(Cause::MeanOfMeans(Whose::Loss));
        }
        let uneven = (total / weight - 1.0).abs() > self.bar;
        (uneven && apart(sum) <= self.bar).then(|| Cause::MissedDivision { factor: weight / total })
    }

    /// The sum is right: whether what the optimizer gets is.
    fn of_clip(&self, clip: Option<Clip>) -> Option<Cause> {
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

    /// The sum is not right: whether a fault in making it is known.
    fn of_sum(&self, found: &Flat, pieces: &Pieces) -> Option<Cause> {
        let [each, running, means] = &pieces.clipped;
        let factor = dot(found, &pieces.sum) / dot(&pieces.sum, &pieces.sum);
        let scaled: Flat = pieces.sum.iter().map(|value| value * factor).collect();
        let by_micro_batch = || Cause::ClippedApart(ClipScope::MicroBatch);
        self.closest(
            found,
            [
                (Cause::MissedDivision { factor }, scaled),
                (Cause::MeanOfMeans(Whose::Training), pieces.mean.clone()),
                (by_micro_batch(), each.clone()),
                (by_micro_batch(), running.clone()),
                (by_micro_batch(), means.clone()),
            ],
        )
    }

    /// A micro-batch that gives nothing to all parameters that are wrong: the model itself drops it.
    fn silent(&self, whole: &Pieces, pieces: &Pieces) -> Option<Cause> {
        let wrong = self.wrong(&pieces.sum, &whole.sum);
        let stage = self.last_stage(&wrong)?;
        let counts = |micro_batch: &usize| pieces.losses[*micro_batch].1 > 0.0;
        let drops = |micro_batch: &usize| wrong.iter().all(|at| pieces.silent[*micro_batch].contains(at));
        let micro_batch = (0..pieces.silent.len()).filter(counts).find(drops)?;
        Some(Cause::MissingMicroBatch { stage, micro_batch })
    }

    /// A micro-batch without which the sums are those of all parameters that are wrong: the training drops it.
    fn missing(
        &self,
        probes: &mut Pipeline<In, Target>,
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

    /// The parameters, by their index, whose gradients are apart.
    fn wrong(&self, found: &Flat, expected: &Flat) -> Vec<usize> {
        let floor = floor(self.reference.iter().map(|gradient| gradient.summed.as_slice()));
        let mut start = 0;
        let ranges = self.reference.iter().map(|gradient| {
            start += gradient.summed.len();
            start - gradient.summed.len()..start
        });
        let apart = |(_, range): &(usize, Range<usize>)| {
            let (found, expected) = (&found[range.clone()], &expected[range.clone()]);
            relative(found.iter().copied(), expected.iter().copied(), floor) > self.bar
        };
        ranges.enumerate().filter(apart).map(|(at, _)| at).collect()
    }

    fn last_stage(&self, parameters: &[usize]) -> Option<usize> {
        parameters.iter().map(|&at| self.reference[at].stage).max()
    }

    /// Whether a lower precision is configured, and in the full one all is the same.
    fn is_rounding(&self, found: &Flat) -> Result<bool, VerifyError> {
        let configuration = (self.build)();
        if configuration.configured_precision() == Precision::Full {
            return Ok(false);
        }
        let full = configuration.precision(Precision::Full).build()?.gradients(self.batch.clone())?;
        Ok(self.close(&flat(&full), &flat(self.reference)) && !self.close(found, &flat(&full)))
    }

    /// The cause whose gradients are the closest, if any are close.
    fn closest<const N: usize>(&self, found: &Flat, candidates: [(Cause, Flat); N]) -> Option<Cause> {
        let distance = |predicted: &Flat| relative(found.iter().copied(), predicted.iter().copied(), 0.0);
        let measured = candidates.into_iter().map(|(cause, predicted)| (distance(&predicted), cause));
        let close = measured.filter(|(distance, _)| *distance <= self.bar);
        close.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, cause)| cause)
    }

    fn close(&self, found: &Flat, expected: &Flat) -> bool {
        relative(found.iter().copied(), expected.iter().copied(), 0.0) <= self.bar
    }

    fn unknown(&self) -> Cause {
        let differences = super::difference::differences(self.configured, self.reference).unwrap_or_default();
        let worst = differences.into_iter().max_by(|a, b| a.relative.total_cmp(&b.relative));
        let (stage, path) = worst.map_or((0, String::new()), |worst| (worst.stage, worst.path));
        Cause::Unknown { stage, path }
    }
}

fn flat(gradients: &[ParameterGradient]) -> Flat {
    gradients.iter().flat_map(|gradient| wide(&gradient.summed)).collect()
}

fn add(sum: &mut Flat, values: &Flat, factor: f64) {
    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += factor * value);
}

fn dot(a: &Flat, b: &Flat) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// What becomes of gradients that are clipped by themselves.
fn clipped(mut gradients: Flat, clip: Option<Clip>) -> Flat {
    let norm = dot(&gradients, &gradients).sqrt();
    match clip.map_or(Scaling::Keep, |clip| clip.scaling(norm)) {
        Scaling::Keep => {}
        Scaling::By(factor) => gradients.iter_mut().for_each(|value| *value *= factor),
        Scaling::Within(bound) => gradients.iter_mut().for_each(|value| *value = value.clamp(-bound, bound)),
    }
    gradients
}
