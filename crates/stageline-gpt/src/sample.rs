//! Generates text with the trained model: continues a prompt byte by byte.

use anyhow::Result;
use burn::tensor::activation::softmax;
use burn::tensor::{Device, Int, Tensor, TensorData};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use stageline::Pipeline;

use crate::model::{Bytes, Logits, VOCABULARY};

/// The temperature by which the logits of the next byte are divided. A temperature below 1 makes likely bytes likelier.
const TEMPERATURE: f64 = 0.7;

/// Continues the text `prompt` with the model in the pipeline, and returns the new bytes, without the prompt. `bytes`
/// is the number of new bytes. Each byte is drawn at random, from `seed`, with the probabilities that the model
/// predicts at a temperature of 0.7.
///
/// The prompt must have at least one byte, and must not be longer than the model's context. The caller must ensure
/// this, because it is not checked here. Each new byte is predicted from the last n bytes of the text, where n is the
/// length of the prompt.
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
    // A separate stream of the generator makes these draws independent of other draws with the same seed.
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

/// Draws the next byte of a text from the probabilities of all bytes, by inversion of the cumulative distribution.
fn draw(probabilities: impl Iterator<Item = f32>, random: &mut ChaCha8Rng) -> u8 {
    let mut left = random.next_u32() as f32 / u32::MAX as f32;
    let found = probabilities.enumerate().find(|(_, probability)| {
        left -= probability;
        left <= 0.0
    });
    found.map_or(VOCABULARY - 1, |(byte, _)| byte) as u8
}
