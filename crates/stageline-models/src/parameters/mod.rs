//! Maps the parameters of a model to the tensors of a model folder, in the format of the Hugging Face hub.
//!
//! Input: the layers of a row, the names of a family's tensors, and an opened folder. Output: for each parameter its
//! tensor, and parameters that are read when they are first used. This folder must not know families or adapters.
//!
//! - `names`: the names that parameters have as tensors of the hub (`Names`, `Naming`, `HubTensor`).
//! - `position`: the place of a parameter in a model (`Position`).
//! - `stored`: lists a model's parameters with their tensors (`StoredParameter`), and returns their values for an
//!   export.
//! - `lazy`: a parameter that is read when it is first used.

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
