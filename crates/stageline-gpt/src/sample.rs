//! Generates text with the trained model: continues a prompt byte by byte.

use anyhow::Result;
use burn::tensor::activation::softmax;
use burn::tensor::{Device, Int, Tensor, TensorData};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use stageline::Pipeline;

use crate::model::{Bytes, Logits};

/// The sampling temperature, by which the next byte's logits are divided. Below 1, it makes likely bytes likelier.
const TEMPERATURE: f64 = 0.7;

/// Continues the text `prompt` with the pipeline's model, and returns the new bytes, without the prompt. `bytes` is the
/// number of new bytes. Each is sampled from the model's predicted probabilities at a temperature of 0.7, with a random
/// generator seeded by `seed`.
///
/// The prompt must have at least one byte and fit into the model's context; this is not checked. Each new byte is
/// predicted from the last n bytes of the text, where n is the length of the prompt.
///
/// # Errors
/// Returns an error if a stage fails.
pub fn continue_text(
    pipeline: &mut Pipeline<Bytes, Logits, Bytes>,
    prompt: &[u8],
    bytes: usize,
    seed: u64,
) -> Result<Vec<u8>> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    // A separate random stream keeps these draws independent of others from the same seed.
    random.set_stream(u64::from_le_bytes(*b"sampling"));
    let mut text = prompt.to_vec();
    for _ in 0..bytes {
        let context: Vec<_> = text[text.len() - prompt.len()..].iter().map(|&byte| i32::from(byte)).collect();
        let input = Tensor::<2, Int>::from_data(TensorData::new(context, [1, prompt.len()]), &Device::flex());
        let last = pipeline.infer(input)?.slice_dim(1, prompt.len() - 1..prompt.len());
        let probabilities = softmax(last / TEMPERATURE, 2).into_data();
        text.push(draw(probabilities.iter::<f32>(), &mut random));
    }
    Ok(text.split_off(prompt.len()))
}

/// Samples the next byte from the probabilities of all 256 bytes, by inverting the cumulative distribution.
fn draw(probabilities: impl Iterator<Item = f32>, random: &mut ChaCha8Rng) -> u8 {
    let mut left = random.next_u32() as f32 / u32::MAX as f32;
    let mut drawn = 0;
    // A byte with probability 0 is never drawn, even if the probabilities add up to less than the random number because
    // of rounding.
    for (byte, probability) in probabilities.enumerate().filter(|(_, probability)| *probability > 0.0) {
        drawn = byte;
        left -= probability;
        if left <= 0.0 {
            break;
        }
    }
    drawn as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_of_probability_zero_is_never_drawn() {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        // The probabilities add up to less than 1, as after rounding.
        for probabilities in [[0.0, 0.4, 0.5, 0.0], [0.0, 0.0, 0.9, 0.0]] {
            for _ in 0..200 {
                let byte = draw(probabilities.into_iter(), &mut random);
                assert!(probabilities[usize::from(byte)] > 0.0, "{byte} of {probabilities:?}");
            }
        }
    }
}
