//! Reads the numbers of several tensors from a device in one transfer.

use burn::tensor::Tensor;

use crate::params::widest_float::widest_float;

/// Reads the numbers of all given tensors from their device and returns them in f64, one list for each tensor. On a
/// device without f64 they are read in f32.
///
/// All tensors come in one read, because every read waits for the device and, on another host, for a round trip. The
/// tensors must be on the same device.
pub fn read_many<'a>(tensors: impl IntoIterator<Item = &'a Tensor<1>>) -> impl Iterator<Item = Vec<f64>> {
    let wide = |tensor: &Tensor<1>| tensor.clone().cast(widest_float(&tensor.device()));
    let tensors: Vec<_> = tensors.into_iter().map(wide).collect();
    let lengths: Vec<_> = tensors.iter().map(|tensor| tensor.dims()[0]).collect();
    let read: Vec<f64> =
        if tensors.is_empty() { Vec::new() } else { Tensor::cat(tensors, 0).into_data().iter::<f64>().collect() };
    let mut numbers = read.into_iter();
    lengths.into_iter().map(move |length| numbers.by_ref().take(length).collect())
}
