//! Which tokens a token attends to: earlier tokens of its sample or document, or of a text that is being generated.
//!
//! - `scope`: whether a token attends within its sample, its document or the generated text (`Scope`).
//! - `cache`: the KV cache of earlier positions, and the attention of new tokens to them (`KeyValueCache`).

mod cache;
mod scope;

pub(crate) use cache::BlockCache;
pub use cache::KeyValueCache;
pub use scope::{DocumentStarts, Scope};
