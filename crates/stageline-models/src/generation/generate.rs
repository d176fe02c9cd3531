//! Generates text token by token ([`Generation`]) with a running pipeline, whose blocks have a KV cache.

use std::collections::BTreeSet;

use burn::tensor::{Device, TensorData};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use stageline::{Pipeline, StepError};

use crate::attention::KeyValueCache;
use crate::families::{Samples, last_position};
use crate::model::{LanguageModel, Logits, Tokens};

/// The sampling settings: how the next token is drawn from a model's logits.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// The temperature, by which the logits are divided. A temperature below 1 makes likely tokens likelier. At 0, the
    /// likeliest token is always taken (greedy sampling).
    pub temperature: f64,
    /// The number k of likeliest tokens to draw the next token from (top-k sampling), including any tokens as likely as
    /// the k-th. `None` and 0 draw from all tokens.
    pub top_k: Option<usize>,
    /// The threshold of nucleus (top-p) sampling, from 0 to 1 (Holtzman et al., 2020,
    /// [arXiv:1904.09751](https://arxiv.org/abs/1904.09751)). The next token is drawn from the smallest non-empty set
    /// of likeliest tokens whose probabilities add up to at least this number. `None` draws from all tokens that
    /// `top_k` leaves.
    pub top_p: Option<f64>,
    /// The repetition penalty (Keskar et al., 2019, [arXiv:1909.05858](https://arxiv.org/abs/1909.05858)) for tokens
    /// that the prompt or the generated text already has: their positive logits are divided by it, and negative ones
    /// multiplied. Above 1, repetitions become less likely; 1 changes nothing.
    pub repetition_penalty: f64,
    /// The seed of the random generator that draws tokens.
    pub seed: u64,
}

impl Sampling {
    /// The sampling settings that always take the likeliest token (greedy sampling), without a repetition penalty.
    pub const GREEDY: Self = Self { temperature: 0.0, top_k: None, top_p: None, repetition_penalty: 1.0, seed: 0 };
}

/// The error if text cannot be generated, or the generation cannot continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerationError {
    /// The prompt is empty. Give at least one token.
    #[error("the prompt is empty; give at least one token")]
    Empty,
    /// The prompt is longer than the model's maximum sequence length. Shorten it.
    #[error("the prompt has {tokens} tokens, and the model is made for {positions}; give a shorter one")]
    TooLong {
        /// The number of tokens in the prompt that is too long.
        tokens: usize,
        /// The length, in tokens, of the longest sequence that the model supports.
        positions: usize,
    },
    /// A token of the prompt is not in the model's vocabulary. Use the model's own tokenizer.
    #[error(
        "the prompt has the token id {token}, and the model knows only ids below {vocabulary}; use the model's own tokenizer"
    )]
    Token {
        /// The id of the prompt's token that is not in the model's vocabulary.
        token: u32,
        /// The number of tokens in the model's vocabulary.
        vocabulary: usize,
    },
    /// A sampling setting, such as `top_p`, is out of the range of its allowed values.
    #[error("{setting} {value}: give {range}")]
    Sampling {
        /// The name of the sampling setting that is out of range, such as `top_p`.
        setting: &'static str,
        /// The value of the sampling setting that is out of range.
        value: f64,
        /// The allowed values of the sampling setting, in words, such as `0 or more`.
        range: &'static str,
    },
    /// Another text generation with this model is still running. Drop that [`Generation`] first, or open the model a
    /// second time.
    #[error("the model generates another text; let that generation end, or open the model a second time")]
    Busy,
    /// The model's logits for the next token give no probabilities: at least one is NaN or +infinity, or all are
    /// -infinity. Check that the model's parameters are valid, and that the repetition penalty is not too small.
    #[error(
        "the logits at position {position} give no probabilities, because one is NaN or +infinity, or all are \
         -infinity; are the parameters of the model valid, and is the repetition penalty not too small?"
    )]
    NotANumber {
        /// Zero-based position of the last processed token; the logits for the token after it give no probabilities.
        position: usize,
    },
    /// A stage of the pipeline that generates the text has failed; the value is the underlying error.
    #[error(transparent)]
    Step(#[from] StepError),
}

impl LanguageModel {
    /// Checks that the model can continue the prompt with these sampling settings, so that an error is found before a
    /// pipeline is built.
    ///
    /// # Errors
    /// Returns [`GenerationError`] if the prompt or a sampling setting is invalid.
    pub fn check_prompt(&self, prompt: &[u32], sampling: &Sampling) -> Result<(), GenerationError> {
        let (positions, vocabulary) = (self.positions(), self.vocabulary());
        check(sampling)?;
        if prompt.is_empty() {
            return Err(GenerationError::Empty);
        }
        if prompt.len() > positions {
            return Err(GenerationError::TooLong { tokens: prompt.len(), positions });
        }
        match prompt.iter().find(|token| **token as usize >= vocabulary) {
            Some(&token) => Err(GenerationError::Token { token, vocabulary }),
            None => Ok(()),
        }
    }

    /// Continues a prompt with a pipeline of this model. Returns an iterator over the ids of the new tokens. The
    /// iterator ends after an error, or when the pipeline has processed as many tokens as the model supports in one
    /// sequence. The text then has one token more, which the pipeline has not processed. The iterator does not end at
    /// an end-of-text token: the caller compares the tokens with [`end_of_generation`](Self::end_of_generation).
    ///
    /// Each step runs the pipeline on the newest token only, because every block caches the keys and values of earlier
    /// positions until the generation is dropped. Other pipelines of the model may run between two tokens.
    ///
    /// # Errors
    /// Returns [`GenerationError`] if the prompt or a sampling setting is invalid, or if another generation with this
    /// model is still running.
    pub fn generate<'a>(
        &'a self,
        pipeline: &'a mut Pipeline<Samples, Logits, Tokens>,
        prompt: &[u32],
        sampling: Sampling,
    ) -> Result<Generation<'a>, GenerationError> {
        self.check_prompt(prompt, &sampling)?;
        let mut random = ChaCha8Rng::seed_from_u64(sampling.seed);
        // A separate random stream keeps these draws independent of others from the same seed.
        random.set_stream(u64::from_le_bytes(*b"generate"));
        if !self.cache().begin() {
            return Err(GenerationError::Busy);
        }
        let (input, seen) = (prompt.to_vec(), prompt.iter().copied().collect());
        Ok(Generation { model: self, pipeline, input, seen, known: 0, sampling, random })
    }
}

/// A text that a model is continuing: an iterator over the ids of new tokens. If a step fails, or its logits give no
/// probabilities, the next item is a [`GenerationError`], and the iterator then ends.
pub struct Generation<'a> {
    model: &'a LanguageModel,
    pipeline: &'a mut Pipeline<Samples, Logits, Tokens>,
    /// Tokens to be processed next: at first the prompt, and then the newest token.
    input: Vec<u32>,
    /// The ids of all tokens in the text so far, prompt included, to which the repetition penalty applies.
    seen: BTreeSet<u32>,
    /// The number of tokens, prompt included, that the pipeline has processed so far.
    known: usize,
    sampling: Sampling,
    random: ChaCha8Rng,
}

impl Iterator for Generation<'_> {
    type Item = Result<u32, GenerationError>;

    fn next(&mut self) -> Option<Self::Item> {
        let new = self.input.len();
        if new == 0 || self.known + new > self.model.positions() {
            return None;
        }
        let tokens: Vec<_> = self.input.drain(..).map(|token| token as i32).collect();
        // The input is created in host memory, because burn's default device may be a GPU on which no stage runs.
        let input = Tokens::from_data(TensorData::new(tokens, [1, new]), &Device::flex());
        let logits = match self.pipeline.infer_micro_batches(vec![(input, Some(KeyValueCache::continued_by(new)))]) {
            Ok(logits) => logits.into_iter().next()?,
            Err(error) => return Some(Err(error.into())),
        };
        self.model.cache().advance(new);
        self.known += new;
        // This crate's head projects only the last position; a program's own head may project all of them.
        let mut logits: Vec<_> = last_position(logits).into_data().iter::<f32>().collect();
        penalise(&mut logits, &self.seen, self.sampling.repetition_penalty);
        if !have_probabilities(&logits) {
            return Some(Err(GenerationError::NotANumber { position: self.known - 1 }));
        }
        let token = draw(logits, &self.sampling, &mut self.random);
        self.input.push(token);
        self.seen.insert(token);
        Some(Ok(token))
    }
}

impl Drop for Generation<'_> {
    fn drop(&mut self) {
        self.model.cache().end();
    }
}

fn check(sampling: &Sampling) -> Result<(), GenerationError> {
    let Sampling { temperature, top_p, repetition_penalty, .. } = *sampling;
    let wrong = |setting, value, range| Err(GenerationError::Sampling { setting, value, range });
    if !(temperature >= 0.0 && temperature.is_finite()) {
        return wrong("temperature", temperature, "0 or more");
    }
    if !(repetition_penalty > 0.0 && repetition_penalty.is_finite()) {
        return wrong("repetition_penalty", repetition_penalty, "a number above 0");
    }
    match top_p {
        Some(fraction) if !(0.0..=1.0).contains(&fraction) => wrong("top_p", fraction, "a number from 0 to 1"),
        _ => Ok(()),
    }
}

/// Applies the repetition penalty to the logits of the tokens in `seen`, in f32 as the Transformers library does
/// (`RepetitionPenaltyLogitsProcessor`).
fn penalise(logits: &mut [f32], seen: &BTreeSet<u32>, penalty: f64) {
    let penalty = penalty as f32;
    for token in seen {
        if let Some(logit) = logits.get_mut(*token as usize) {
            *logit = if *logit < 0.0 { *logit * penalty } else { *logit / penalty };
        }
    }
}

/// Whether the softmax of the logits gives every token a probability: no logit is NaN or +infinity, and not all are
/// -infinity. A single logit of -infinity means a probability of 0.
fn have_probabilities(logits: &[f32]) -> bool {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    largest.is_finite() && !logits.iter().any(|logit| logit.is_nan())
}

/// Chooses the next token as `sampling` says, and returns its id. The choice is random unless the temperature is 0.
/// `logits` has one value per vocabulary token, and passes [`have_probabilities`].
fn draw(logits: Vec<f32>, sampling: &Sampling, random: &mut impl Rng) -> u32 {
    let mut ranked: Vec<_> = logits.into_iter().enumerate().collect();
    // The sort is stable: among equally likely tokens, the smallest id comes first, on every machine.
    ranked.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    if sampling.temperature == 0.0 {
        return ranked[0].0 as u32;
    }
    let top_k = sampling.top_k.filter(|top_k| *top_k > 0);
    if let Some((_, least)) = top_k.and_then(|top_k| ranked.get(top_k - 1)).copied() {
        // As in the Transformers library, tokens as likely as the k-th one are kept too.
        ranked.truncate(ranked.partition_point(|(_, logit)| *logit >= least));
    }
    let most = f64::from(ranked[0].1);
    let weight = |logit: f32| ((f64::from(logit) - most) / sampling.temperature).exp();
    let mut weights: Vec<_> = ranked.iter().map(|(_, logit)| weight(*logit)).collect();
    if let Some(share) = sampling.top_p {
        let mut left = share * weights.iter().sum::<f64>();
        let nucleus = weights.iter().take_while(|weight| {
            let needed = left > 0.0;
            left -= **weight;
            needed
        });
        let count = nucleus.count().max(1);
        weights.truncate(count);
    }
    let share = (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
    let mut left = share * weights.iter().sum::<f64>();
    let drawn = weights.iter().position(|weight| {
        left -= weight;
        left < 0.0
    });
    // Because of rounding, `left` may never fall below 0. The last token with a probability above 0 is then drawn.
    let last = || weights.iter().rposition(|weight| *weight > 0.0).unwrap_or(0);
    ranked[drawn.unwrap_or_else(last)].0 as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws 20,000 tokens under the settings `sampling` from a vocabulary with the given probabilities. Returns each
    /// token's share of the draws, from 0 to 1.
    fn shares(probabilities: &[f64], sampling: Sampling) -> Vec<f64> {
        const DRAWS: usize = 20_000;
        let logits: Vec<_> = probabilities.iter().map(|probability| probability.ln() as f32).collect();
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let mut counts = vec![0; probabilities.len()];
        (0..DRAWS).for_each(|_| counts[draw(logits.clone(), &sampling, &mut random) as usize] += 1);
        counts.into_iter().map(|count| f64::from(count) / DRAWS as f64).collect()
    }

    #[test]
    fn tokens_are_drawn_with_the_probabilities_that_the_sampling_leaves() {
        let probabilities = [0.1, 0.4, 0.2, 0.3];
        let plain = Sampling { temperature: 1.0, ..Sampling::GREEDY };
        for (sampling, expected) in [
            (Sampling::GREEDY, [0.0, 1.0, 0.0, 0.0]),
            (plain, probabilities),
            (Sampling { top_k: Some(2), ..plain }, [0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]),
            (Sampling { top_k: Some(9), ..plain }, probabilities),
            (Sampling { top_k: Some(0), ..plain }, probabilities),
            (Sampling { top_p: Some(0.0), ..plain }, [0.0, 1.0, 0.0, 0.0]),
            (Sampling { top_p: Some(0.65), ..plain }, [0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]),
            (Sampling { top_p: Some(0.01), ..plain }, [0.0, 1.0, 0.0, 0.0]),
            // At the temperature 0.5, probabilities are squared.
            (Sampling { temperature: 0.5, ..plain }, [1.0 / 30.0, 16.0 / 30.0, 4.0 / 30.0, 9.0 / 30.0]),
        ] {
            for (found, expected) in shares(&probabilities, sampling).into_iter().zip(expected) {
                // The standard deviation of a share of 20,000 draws is at most 0.0036.
                assert!((found - expected).abs() < 0.015, "{sampling:?}: {found} instead of {expected}");
            }
        }
    }

    /// Tests logits of which several are equal. With `top_k` 2, three equally likely tokens remain, as in the
    /// Transformers library (`TopKLogitsWarper`), which removes only smaller logits.
    #[test]
    fn equally_likely_tokens_stay_together() {
        let sampling = Sampling { temperature: 1.0, top_k: Some(2), ..Sampling::GREEDY };
        for found in shares(&[0.1, 0.2, 0.2, 0.2, 0.05], sampling).into_iter().zip([0.0, 1.0, 1.0, 1.0, 0.0]) {
            assert!((found.0 - found.1 / 3.0).abs() < 0.015, "{found:?}");
        }
    }

    /// Tests the repetition penalty on a text of the tokens 0, 3, 3, 1 and 4. The expected logits are those of the
    /// Transformers library (`RepetitionPenaltyLogitsProcessor(1.1)`).
    #[test]
    fn the_repetition_penalty_has_the_values_of_transformers() {
        let mut logits = [1.5, -0.5, 0.25, -2.0, 0.0, 0.7];
        penalise(&mut logits, &[0, 3, 3, 1, 4].into_iter().collect(), 1.1);
        let expected = [1_068_403_619, 3_205_287_117, 1_048_576_000, 3_222_064_333, 0, 1_060_320_051];
        assert_eq!(logits.map(f32::to_bits), expected);
        penalise(&mut logits, &[0, 1].into_iter().collect(), 1.0);
        assert_eq!(logits.map(f32::to_bits), expected);
    }

    #[test]
    fn logits_without_probabilities_are_refused() {
        let (infinite, none) = (f32::INFINITY, f32::NEG_INFINITY);
        for refused in [[1.0, f32::NAN, 0.0], [f32::NAN; 3], [1.0, infinite, 0.0], [infinite, none, 0.0], [none; 3]] {
            assert!(!have_probabilities(&refused), "{refused:?}");
        }
        for valid in [[1.0, 2.0, 0.0], [none, 2.0, 0.0], [none, none, f32::MIN]] {
            assert!(have_probabilities(&valid), "{valid:?}");
        }
    }

    #[test]
    fn a_logit_of_minus_infinity_has_the_probability_0() {
        let plain = Sampling { temperature: 1.0, ..Sampling::GREEDY };
        let shares = shares(&[0.0, 0.5, 0.5, 0.0], plain);
        assert!(shares[0] + shares[3] <= 0.0, "{shares:?}");
    }

    #[test]
    fn settings_out_of_their_range_are_refused() {
        for (sampling, message) in [
            (Sampling { temperature: f64::NAN, ..Sampling::GREEDY }, "temperature NaN: give 0 or more"),
            (Sampling { repetition_penalty: 0.0, ..Sampling::GREEDY }, "repetition_penalty 0: give a number above 0"),
            (Sampling { top_p: Some(1.5), ..Sampling::GREEDY }, "top_p 1.5: give a number from 0 to 1"),
        ] {
            assert_eq!(check(&sampling).unwrap_err().to_string(), message);
        }
    }
}
