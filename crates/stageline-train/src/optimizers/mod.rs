//! The optimizers that `--optimizer` can name.
//!
//! Input: a job's hyperparameters. Output: burn's optimizer for all parameters of a model, in parameter groups with and
//! without weight decay. This folder owns the optimizers that burn lacks in the required form. It must not read flags,
//! or step parameters itself, which a pipeline does in its flush (the end of a step).
//!
//! - `named`: makes the optimizer, with its parameter groups, from the job.
//! - `adamw`: AdamW with exact bias corrections, as in PyTorch (`AdamW`).
//! - `muon`: Muon for matrices, with AdamW for all other parameters (`MuonAndAdamW`).

pub mod adamw;
pub mod muon;
pub mod named;
