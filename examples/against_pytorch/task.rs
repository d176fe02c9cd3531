//! The training task for the comparison of Stageline and PyTorch: next-byte prediction on random data, with some
//! targets masked out in the loss.

use burn::module::Module;
use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Int, Tensor, TensorData};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use stageline::{LossStage, Stage, Weight};

use crate::flags::Flags;
use crate::model::{Bytes, Head, Logits, VOCABULARY};

/// The GPT's last layer, with a loss that counts only the targets whose mask is 1.
#[derive(Module, Debug)]
pub struct MaskedHead {
    pub head: Head,
}

impl Stage for MaskedHead {
    type Input = Tensor<3>;
    type Output = Logits;

    fn forward(&self, input: Tensor<3>) -> Logits {
        self.head.forward(input)
    }
}

impl LossStage for MaskedHead {
    /// A batch's targets: the bytes to predict and their mask, both `[batch, context]`.
    type Target = (Bytes, Tensor<2>);

    /// Returns a micro-batch's loss: the cross-entropy in nats, summed over the unmasked targets.
    fn loss(&self, logits: Logits, (target, mask): Self::Target) -> Tensor<1> {
        let log_probabilities = log_softmax(logits.flatten::<2>(0, 1), 1);
        let targets = target.flatten::<1>(0, 1).unsqueeze_dim(1);
        let each = log_probabilities.gather(1, targets).squeeze_dim::<1>(1);
        -(each * mask.flatten::<1>(0, 1)).sum()
    }

    /// Returns a micro-batch's loss weight: its number of unmasked targets.
    fn weight(&self, (_, mask): &Self::Target) -> Weight {
        mask.clone().sum().into_scalar::<f64>().into()
    }
}

/// The training data of all steps: random bytes, most of which depend on the byte before them, and the target masks.
pub struct Task {
    pub batch_size: usize,
    pub context: usize,
    /// The bytes of all samples, `[steps, batch, context + 1]`.
    pub bytes: Vec<u8>,
    /// The masks of all targets, `[steps, batch, context]`. A target with mask 1 counts in the loss, and one with mask
    /// 0 does not.
    pub mask: Vec<f32>,
}

impl Task {
    /// Draws the bytes and masks of all training steps from the seed in the flags.
    pub fn new(flags: &Flags) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(flags.seed);
        random.set_stream(u64::from_le_bytes(*b"the task"));
        let samples = flags.steps * flags.batch_size;
        let mut uniform = move || f64::from(random.next_u32()) / 2.0_f64.powi(32);
        let mut byte = 0_u8;
        let bytes = (0..samples * (flags.context + 1)).map(|_| {
            let fresh = (uniform() * VOCABULARY as f64) as u8;
            byte = if uniform() < 0.2 { fresh } else { byte.wrapping_mul(5).wrapping_add(17) };
            byte
        });
        let bytes = bytes.collect();
        let mask = (0..samples * flags.context).map(|_| f32::from(u8::from(uniform() < flags.unmasked))).collect();
        Self { batch_size: flags.batch_size, context: flags.context, bytes, mask }
    }

    /// Returns the input, the targets and the mask of a training step's batch, each `[batch, context]`.
    pub fn batch(&self, step: usize, device: &Device) -> (Bytes, Bytes, Tensor<2>) {
        let (rows, length) = (self.batch_size, self.context);
        let bytes = self.bytes.chunks(length + 1).skip(step * rows).take(rows).flatten().map(|byte| i32::from(*byte));
        let bytes = TensorData::new(bytes.collect::<Vec<_>>(), [rows, length + 1]);
        let bytes = Tensor::<2, Int>::from_data(bytes, device);
        let mask = self.mask[step * rows * length..][..rows * length].to_vec();
        let mask = Tensor::from_data(TensorData::new(mask, [rows, length]), device);
        (bytes.clone().slice_dim(1, 0..length), bytes.slice_dim(1, 1..length + 1), mask)
    }
}
