//! The optimizers that `--optimizer` names.
//!
//! Input: the hyperparameters of a job. Output: burn's optimizer for all parameters of a model, in groups with and
//! without weight decay. This folder owns the optimizers that burn does not have in the required form. It must not read
//! flags, or step parameters itself, which a pipeline does in its flush.
//!
//! - `named`: from the job to the optimizer, with its parameter groups.
//! - `adamw`: AdamW with exact bias corrections, as PyTorch has them (`AdamW`).
//! - `muon`: Muon for matrices, beside AdamW for all other parameters (`MuonAndAdamW`).

pub mod adamw;
pub mod muon;
pub mod named;
