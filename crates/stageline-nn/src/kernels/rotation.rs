//! The rotation of queries and keys by their positions (rotary embedding), and their concatenation with values,
//! composed of burn's operations for every backend.

use burn::tensor::{FloatDType, Tensor};

/// Concatenates queries, keys and values, each `[batch, length, columns]`, by their columns, and rotates the queries
/// and keys. The cosines and sines of the angles are each `[length, size / 2]`, for heads of `size` elements. Element
/// `i` and element `i + size / 2` of a head form a rotated pair.
pub fn joined([query, key, value]: [Tensor<3>; 3], [cosines, sines]: [Tensor<2>; 2]) -> Tensor<3> {
    let turned = [query, key].map(|part| rotated(part, cosines.clone(), sines.clone()));
    Tensor::cat(turned.into_iter().chain([value]).collect(), 2)
}

/// Returns the gradients of the loss with respect to the queries, keys and values that [`joined`] concatenated.
/// `gradient` is the gradient with respect to the concatenated output. `columns` are the numbers of columns of the
/// queries, keys and values. `sines` are the negated sines of the forward pass's angles, so that the gradients are
/// rotated back.
#[cfg(feature = "gpu")]
pub fn to_parts(gradient: &Tensor<3>, columns: [usize; 3], [cosines, sines]: [Tensor<2>; 2]) -> [Tensor<3>; 3] {
    let [query, key, value] = columns;
    let part = |start: usize, columns: usize| gradient.clone().slice_dim(2, start..start + columns);
    let turned = |part| rotated(part, cosines.clone(), sines.clone());
    [turned(part(0, query)), turned(part(query, key)), part(query + key, value)]
}

/// Rotates each head of an input `[batch, length, heads x size]`, such as queries, by the angles of its position. The
/// cosines and sines of these angles are each `[length, size / 2]`. Elements `i` and `i + size / 2` of a head are the
/// coordinates of one rotated point.
///
/// An f64 input is rotated in f64, and any other input in the dtype of `cosines`. The output has the dtype of the
/// input.
fn rotated(input: Tensor<3>, cosines: Tensor<2>, sines: Tensor<2>) -> Tensor<3> {
    let ([batch, length, width], [_, half]) = (input.dims(), cosines.dims());
    let types = match [input.dtype(), cosines.dtype()].map(FloatDType::from) {
        [FloatDType::F64, _] => [FloatDType::F64; 2],
        types => types,
    };
    let heads = input.reshape([batch, length, width / (2 * half), 2 * half]);
    let of = |angles: Tensor<2>| angles.reshape([1, length, 1, half]).cast(types[1]);
    let (cosines, sines) = (of(cosines), of(sines));
    let [first, second] = [0, half].map(|start| heads.clone().slice_dim(3, start..start + half).cast(types[1]));
    let turned_first = first.clone() * cosines.clone() - second.clone() * sines.clone();
    let turned_second = second * cosines + first * sines;
    Tensor::cat(vec![turned_first, turned_second], 3).cast(types[0]).reshape([batch, length, width])
}
