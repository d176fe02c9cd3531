//! The command-line flags for the comparison with PyTorch. The doc comment of each field is its help text.

use std::path::PathBuf;

use clap::Parser;
use serde_json::{Value, json};

use crate::model::Shape;

/// Trains a small GPT with masked targets, and writes all files that PyTorch needs to repeat the training run.
#[derive(Parser)]
pub struct Flags {
    /// Folder for all files that PyTorch needs. Created if it does not exist
    #[arg(long)]
    pub folder: PathBuf,
    /// Number of pipeline stages into which the model is divided
    #[arg(long, default_value_t = 2)]
    pub stages: usize,
    /// Number of micro-batches (M) into which a batch is divided
    #[arg(long, default_value_t = 4)]
    pub micro_batches: usize,
    /// Number of samples in a batch. It need not be a multiple of M
    #[arg(long, default_value_t = 10)]
    pub batch_size: usize,
    /// Schedule (order of forward and backward passes), such as 1f1b, gpipe or zb-h1
    #[arg(long, default_value = "1f1b")]
    pub schedule: String,
    /// Number of optimizer steps
    #[arg(long, default_value_t = 50)]
    pub steps: usize,
    /// Number of transformer blocks of the GPT
    #[arg(long, default_value_t = 2)]
    pub layers: usize,
    /// Width of the model: the number of elements in a token's activation. A token is one byte of text
    #[arg(long, default_value_t = 64)]
    pub width: usize,
    /// Length of a sample, in bytes
    #[arg(long, default_value_t = 32)]
    pub context: usize,
    /// Share of targets that count in the loss (are not masked out), from 0 to 1
    #[arg(long, default_value_t = 0.7)]
    pub unmasked: f64,
    /// Peak learning rate, reached at the end of the warm-up
    #[arg(long, default_value_t = 1e-3)]
    pub learning_rate: f64,
    /// Number of linear warm-up steps; then follows a cosine decay to a tenth of the peak
    #[arg(long, default_value_t = 10)]
    pub warm_up: usize,
    /// Global norm to which the gradients are clipped in every step
    #[arg(long, default_value_t = 1.0)]
    pub clip: f64,
    /// AdamW's first beta: decay rate of the first moment
    #[arg(long, default_value_t = 0.9)]
    pub beta_1: f32,
    /// AdamW's second beta: decay rate of the second moment
    #[arg(long, default_value_t = 0.95)]
    pub beta_2: f32,
    /// AdamW's epsilon, which is added to the denominator of an update to avoid a division by 0
    #[arg(long, default_value_t = 1e-8)]
    pub epsilon: f32,
    /// AdamW's weight decay, for all parameters
    #[arg(long, default_value_t = 0.1)]
    pub weight_decay: f32,
    /// Seed of the initial parameters and the batches
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

impl Flags {
    pub fn shape(&self) -> Shape {
        Shape { layers: self.layers, width: self.width, context: self.context }
    }

    /// Returns the settings that PyTorch needs to repeat the training run, as a JSON object.
    pub fn settings(&self) -> Value {
        json!({
            "layers": self.layers,
            "heads": self.shape().heads(),
            "micro_batches": self.micro_batches,
            "steps": self.steps,
            "learning_rate": self.learning_rate,
            "warm_up": self.warm_up,
            "clip": self.clip,
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "weight_decay": self.weight_decay,
        })
    }
}
