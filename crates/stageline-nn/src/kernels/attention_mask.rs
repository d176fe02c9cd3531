//! Attention masks as burn tensors, which mark the keys that a query of causal attention must not attend to.

use burn::tensor::{Bool, Device, Int, IntDType, Tensor};

/// Returns the mask `[length, length]` that is true where a query (row) must not attend to a key (column): the key is
/// at a later position than the query, or before the query's window.
pub fn hidden(length: usize, window: Option<usize>, device: &Device) -> Tensor<2, Bool> {
    let shape = [length, length];
    let future = Tensor::<2, Bool>::tril_mask(shape, 0, device);
    match window.filter(|window| *window < length) {
        Some(window) => future.bool_or(Tensor::<2, Bool>::triu_mask(shape, 1 - window as i64, device)),
        None => future,
    }
}

/// Returns the mask `[batch, length, length]` that is true where a key (column) lies before the document of a query
/// (row). `starts`, `[batch, length]`, contains, for each query, the position of the first key in its document, counted
/// from 0 in the sample.
pub fn before_document(starts: Tensor<2, Int>) -> Tensor<3, Bool> {
    let ([batch, length], device) = (starts.dims(), starts.device());
    let keys = Tensor::<1, Int>::arange(0..length as i64, &device).reshape([1, 1, length]);
    let shape = [batch, length, length];
    let starts = starts.cast(IntDType::from(keys.dtype()));
    keys.expand(shape).lower(starts.reshape([batch, length, 1]).expand(shape))
}
