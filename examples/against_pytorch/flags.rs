//! What is trained, and how.

use std::path::PathBuf;

use clap::Parser;
use serde_json::{Value, json};

use crate::model::Shape;

/// Trains a small GPT with masked targets and writes all that PyTorch needs to do the same.
#[derive(Parser)]
pub struct Flags {
    /// Where everything is written
    #[arg(long)]
    pub folder: PathBuf,
    /// P: how many stages the model is cut into
    #[arg(long, default_value_t = 2)]
    pub stages: usize,
    /// M: how many micro-batches a batch is cut into
    #[arg(long, default_value_t = 4)]
    pub micro_batches: usize,
    /// Samples in a batch; they need not be a multiple of M
    #[arg(long, default_value_t = 10)]
    pub batch_size: usize,
    /// The order of forwards and backwards
    #[arg(long, default_value = "1f1b")]
    pub schedule: String,
    /// Optimizer steps
    #[arg(long, default_value_t = 50)]
    pub steps: usize,
    /// Transformer blocks
    #[arg(long, default_value_t = 2)]
    pub layers: usize,
    /// The size of an activation
    #[arg(long, default_value_t = 64)]
    pub width: usize,
    /// The length of a sample, in bytes
    #[arg(long, default_value_t = 32)]
    pub context: usize,
    /// The share of targets that count
    #[arg(long, default_value_t = 0.7)]
    pub unmasked: f64,
    /// The highest learning rate
    #[arg(long, default_value_t = 1e-3)]
    pub learning_rate: f64,
    /// Steps of linear warm-up; a cosine down to a tenth of the highest rate follows
    #[arg(long, default_value_t = 10)]
    pub warm_up: usize,
    /// The global norm to which gradients are clipped
    #[arg(long, default_value_t = 1.0)]
    pub clip: f64,
    #[arg(long, default_value_t = 0.9)]
    pub beta_1: f32,
    #[arg(long, default_value_t = 0.95)]
    pub beta_2: f32,
    #[arg(long, default_value_t = 1e-8)]
    pub epsilon: f32,
    #[arg(long, default_value_t = 0.1)]
    pub weight_decay: f32,
    /// The seed of parameters and batches
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

impl Flags {
    pub fn shape(&self) -> Shape {
        Shape { layers: self.layers, width: self.width, context: self.context }
    }

    /// What PyTorch has to know.
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
