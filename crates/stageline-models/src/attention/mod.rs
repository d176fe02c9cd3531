//! The tokens that a token attends to: a part of its sample, or earlier positions of a text that is generated.
//!
//! - `scope`: the tokens that a token attends to, in its sample, its document or the generated text (`Scope`).
//! - `cache`: the keys and values of earlier positions, and the attention of new tokens to them (`KeyValueCache`).

mod cache;
mod scope;

pub(crate) use cache::BlockCache;
pub use cache::KeyValueCache;
pub use scope::{DocumentStarts, Scope};
