//! Samples text from the trained model: continues a prompt byte by byte.

use burn::module::Module;
use burn::tensor::activation::softmax;
use burn::tensor::{Int, Tensor, TensorData};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use stageline::Stage;

use crate::job::Sample;
use crate::model::{Layers, VOCABULARY};

/// The temperature of the softmax over the next byte; a temperature below 1 makes likely bytes likelier.
const TEMPERATURE: f64 = 0.7;

/// Returns the bytes with which the model, on one device, continues `prompt`.
///
/// The prompt must not be longer than the model's context. Each byte is predicted from as many bytes before it.
pub fn continue_text(layers: &Layers, prompt: &[u8], Sample { bytes, device }: &Sample, seed: u64) -> Vec<u8> {
    let embeddings = layers.embeddings.clone().fork(device).valid();
    let blocks = layers.blocks.clone().fork(device).valid();
    let head = layers.head.clone().fork(device).valid();
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    // A stream of its own is independent of the other draws with this seed.
    random.set_stream(u64::from_le_bytes(*b"sampling"));
    let mut text = prompt.to_vec();
    for _ in 0..*bytes {
        let context: Vec<_> = text[text.len() - prompt.len()..].iter().map(|&byte| i32::from(byte)).collect();
        let input = Tensor::<2, Int>::from_data(TensorData::new(context, [1, prompt.len()]), device);
        let logits = head.logits(blocks.forward(embeddings.forward(input)));
        let last = logits.slice_dim(0, prompt.len() - 1..prompt.len());
        let probabilities = softmax(last / TEMPERATURE, 1).into_data();
        text.push(draw(probabilities.iter::<f32>(), &mut random));
    }
    text.split_off(prompt.len())
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
