//! The context of a running forward pass, such as its training step, which a layer can query without extra arguments in
//! the layer's signature.
//!
//! Input: the context that the stage runner, or a training loop without a pipeline, sets around a forward pass, such as
//! the step and the samples. Output: the same context for the layers that run on that thread, and the values that these
//! layers report, such as FLOPs. This folder must not keep context after the call that set it, and must not pass it to
//! another thread.
//!
//! - `samples`: the step and the samples of the micro-batch that is computed (`Samples`), for dropout and other random
//!   layers.
//! - `fallback`: the operations of a forward pass that no kernel of this crate computes on the device
//!   (`finding_fallbacks`).
//! - `layer_path`: the position of the running layer in its stage (`in_layers`).
//! - `flops`: the floating-point operations of a forward pass, which layers report (`counting_flops`).
//! - `after_step`: updates that layers register in a forward pass, such as new running statistics, and that run after
//!   the optimizer step.
//! - `recomputation`: whether the forward pass is a recomputation in the backward pass (`is_recomputation`).
//! - `thread_scope`: sets a thread-local value for the duration of a call.

pub mod after_step;
pub mod fallback;
pub mod flops;
pub mod layer_path;
pub mod recomputation;
pub mod samples;
pub mod thread_scope;
