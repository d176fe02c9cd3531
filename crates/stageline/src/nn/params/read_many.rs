//! Numbers that are on a device, and are read from there at once.

use burn::tensor::{FloatDType, Tensor};

/// The numbers of every tensor, in f64: all in one read, which waits for the device, and for the way to another host and back.
pub(crate) fn read<'a>(tensors: impl IntoIterator<Item = &'a Tensor<1>>) -> impl Iterator<Item = Vec<f64>> {
    let tensors: Vec<_> = tensors.into_iter().map(|tensor| tensor.clone().cast(FloatDType::F64)).collect();
    let lengths: Vec<_> = tensors.iter().map(|tensor| tensor.dims()[0]).collect();
    let read: Vec<f64> =
        if tensors.is_empty() { Vec::new() } else { Tensor::cat(tensors, 0).into_data().iter::<f64>().collect() };
    let mut numbers = read.into_iter();
    lengths.into_iter().map(move |length| numbers.by_ref().take(length).collect())
}
