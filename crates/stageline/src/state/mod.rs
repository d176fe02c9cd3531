//! Checkpoint contents: parameters and optimizer states, under names that do not depend on the model's partition into
//! stages.
//!
//! Input: the tensors and optimizer fields of all stages, or a checkpoint that was read. Output: a
//! [`Checkpoint`](stageline_checkpoint::Checkpoint), or the part of a checkpoint that each stage resumes from. This
//! folder owns the table of all tensor names, the comparison of names, dtypes, shapes and values between checkpoint and
//! model, and the conversion of burn's tensors and optimizer records. A checkpoint that does not fit the model is
//! rejected with a list of all differences ([`Mismatch`](mismatch::Mismatch)). It must not read or write files, which
//! `stageline-checkpoint` does, and must not step an optimizer.
//!
//! - `names`: the names of a model's tensors, which are the same for every partition of the model (`Names`). Also the
//!   error for a tensor without a name, or for two tensors with one name (`NameError`), which `failure` turns into a
//!   `BuildError`.
//! - `layout`: the names of all stages' tensors (`Layout`), each with the stage that it is taken from (`Entry`).
//!   Converts the states of stages (`StageState`) to a checkpoint or to tensors by name (`NamedTensor`), and splits a
//!   checkpoint into the part of each stage (`Restored`).
//! - `frozen`: where a resumed training run takes frozen parameters from (`FrozenFrom`), and the hashes of these
//!   parameters.
//! - `optimizer_state`: the fields of an optimizer's state (`Field`, `Value`), read from burn's saved form and written
//!   to it (`Reader` and `Writer` of `burn_pack`).
//! - `optimizer_check`: checks that a field of a checkpoint's optimizer state has a value that the optimizer can
//!   produce (`Unfit`, `Reason`, `Bound`): possible step counts, finite values, non-negative squares.
//! - `parameter_count`: the numbers of elements and bytes of a model's parameters (`ParameterCount`).
//! - `convert`: the conversion of burn's tensors to a checkpoint's tensors and back, bit for bit, with the dtypes of
//!   both (`DType`, `Dtype`) and the bytes of quantized tensors.
//! - `run_settings`: the settings that a checkpoint records (`RunSettings`), and the warnings for a run that resumes
//!   with other settings, which `build` logs.
//! - `mismatch`: the error with all differences between a checkpoint and a model (`Difference`, `Kind`: dtype and
//!   shape), with a hint about tensor names that begin with a stage.

pub(crate) mod convert;
pub(crate) mod frozen;
pub(crate) mod layout;
pub(crate) mod mismatch;
pub(crate) mod names;
pub(crate) mod optimizer_check;
pub(crate) mod optimizer_state;
pub(crate) mod parameter_count;
pub(crate) mod run_settings;
