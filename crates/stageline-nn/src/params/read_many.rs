//! Reads the values of several tensors from a device in one transfer.

use burn::tensor::Tensor;

use crate::params::widest_float::widest_float;

/// Reads the values of all given tensors, which must be on the same device, in one transfer. Returns one list of f64
/// values per tensor. On a device without f64, the values are read in f32.
///
/// One transfer is faster than several, because every read waits for the device and, on another host, for a round trip.
pub fn read_many<'a>(tensors: impl IntoIterator<Item = &'a Tensor<1>>) -> impl Iterator<Item = Vec<f64>> {
    let wide = |tensor: &Tensor<1>| tensor.clone().cast(widest_float(&tensor.device()));
    let tensors: Vec<_> = tensors.into_iter().map(wide).collect();
    let lengths: Vec<_> = tensors.iter().map(|tensor| tensor.dims()[0]).collect();
    let read: Vec<f64> =
        if tensors.is_empty() { Vec::new() } else { Tensor::cat(tensors, 0).into_data().iter::<f64>().collect() };
    let mut numbers = read.into_iter();
    lengths.into_iter().map(move |length| numbers.by_ref().take(length).collect())
}
