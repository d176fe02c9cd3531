//! Maps a model's parameters to the tensors of a model folder, in the format of the Hugging Face hub.
//!
//! Input: the layers of a [`Row`](stageline::Row), a family's tensor names, and an opened model folder. Output: each
//! parameter's tensor, and parameters that are read on first use. This folder must not know the folders of the
//! model families and of LoRA.
//!
//! - `names`: the tensor names of parameters on the Hugging Face hub (`Names`, `Naming`, `HubTensor`).
//! - `position`: the place of a parameter in a model (`Position`).
//! - `stored`: lists a model's parameters with their tensors (`StoredParameter`), and returns their values for an
//!   export.
//! - `lazy`: a parameter that is read on first use.

mod lazy;
mod names;
mod position;
mod stored;

pub use lazy::{parameter_of, read_lazily};
pub use names::{HubTensor, LAYERS, Name, Names, Naming, Storage, UNTIED};
pub use position::{ADAPTER, Position};
pub use stored::{
    Selection, StoredParameter, StoredValue, StoredValues, Unknown, check, is_float, no_tensors, parameters_of,
    transposed, unknown, values_of,
};
