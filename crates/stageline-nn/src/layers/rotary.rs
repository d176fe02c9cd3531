//! Rotary position embeddings: [`join_rotated`] rotates queries and keys by angles that depend on their positions and
//! concatenates them with the values, and [`RotaryAngles`] defines these angles.

use std::cell::RefCell;
use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor, TensorData};

#[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
use crate::engine::of_their_backend;
use crate::kernels::rotation;

/// The angles of a rotary position embedding (Su et al., 2021, [arXiv:2104.09864](https://arxiv.org/abs/2104.09864)),
/// stored as one frequency for each pair of a head's elements, in radians per position. [`join_rotated`] rotates pair
/// `i` of a query or key at position `p`, counted from 0, by the angle `p` times frequency `i`.
///
/// Pair `i` of a head of `size` elements consists of element `i` and element `i + size / 2`, for `i` below `size / 2`.
/// This is the half-split layout of Hugging Face's models.
#[derive(Clone, Debug)]
pub struct RotaryAngles {
    /// Frequency of each pair of elements in an attention head, in radians per position.
    frequencies: Arc<[f32]>,
}

thread_local! {
    /// This thread's most recently used table of cosines and sines for rotary embeddings, with the table's frequencies.
    /// Threads do not share tables: on a GPU, one thread's queue would read a table without waiting until another
    /// thread's queue has written it.
    static LAST: RefCell<Option<(Arc<[f32]>, Table)>> = const { RefCell::new(None) };
}

/// Cosines and sines of a rotary embedding's angles for consecutive positions, each `[positions, size / 2]` in f32 for
/// heads of `size` elements.
#[derive(Clone, Debug)]
struct Table {
    device: Device,
    first: usize,
    cosines: Tensor<2>,
    sines: Tensor<2>,
}

impl RotaryAngles {
    /// Creates the angles of a rotary position embedding from the given frequencies, in radians per position. Frequency
    /// `i` is for the pair of elements `i` and `i + size / 2` of a head. A head has twice as many elements as there are
    /// frequencies.
    pub fn new(frequencies: impl Into<Arc<[f32]>>) -> Self {
        Self { frequencies: frequencies.into() }
    }

    /// Creates the angles of a rotary position embedding for heads of `size` elements with the usual frequencies:
    /// `base` to the power of `-2 i / size` radians per position for pair `i`, the elements `i` and `i + size / 2` of a
    /// head.
    ///
    /// # Panics
    /// Panics if the size is odd.
    pub fn with_base(base: f64, size: usize) -> Self {
        assert!(size.is_multiple_of(2), "a head of {size} elements does not divide into pairs");
        Self::new((0..size / 2).map(|pair| base.powf(-2.0 * pair as f64 / size as f64) as f32).collect::<Vec<_>>())
    }

    /// Returns the frequencies of the rotary position embedding, in radians per position. Frequency `i` is for the pair
    /// of elements `i` and `i + size / 2` of a head.
    pub fn frequencies(&self) -> &[f32] {
        &self.frequencies
    }

    /// Returns the cosines and sines of a rotary embedding's angles for `count` positions, starting at `first`, as
    /// tensors on `device`. The thread's last table is reused if it has these positions.
    fn table(&self, first: usize, count: usize, device: &Device) -> Table {
        LAST.with_borrow_mut(|last| {
            let suits = |(frequencies, table): &(Arc<[f32]>, Table)| {
                let same = Arc::ptr_eq(frequencies, &self.frequencies) && table.device == *device;
                same && table.first == first && table.cosines.dims()[0] >= count
            };
            let (_, table) = match last.take().filter(suits) {
                Some(last_one) => last.insert(last_one),
                None => last.insert((Arc::clone(&self.frequencies), self.new_table(first, count, device))),
            };
            let part = |angles: &Tensor<2>| angles.clone().slice_dim(0, 0..count);
            Table { device: device.clone(), first, cosines: part(&table.cosines), sines: part(&table.sines) }
        })
    }

    fn new_table(&self, first: usize, count: usize, device: &Device) -> Table {
        // The angle is rounded to f32 as in other implementations, so that long sequences have the same angles as
        // there.
        let angles = (first..first + count)
            .flat_map(|position| self.frequencies.iter().map(move |frequency| f64::from(position as f32 * frequency)));
        let (cosines, sines) = angles.map(|angle| (angle.cos() as f32, angle.sin() as f32)).unzip();
        // The dtype is f32, whatever the device's default dtype is. `from_data` would take the default.
        let tensor = |numbers: Vec<f32>| {
            Tensor::from_data(TensorData::new(numbers, [count, self.frequencies.len()]), (device, DType::F32))
        };
        Table { device: device.clone(), first, cosines: tensor(cosines), sines: tensor(sines) }
    }
}

/// Rotates queries and keys by angles that depend on their positions (a rotary position embedding), and concatenates
/// them with the values to the input of [`causal_attention`](crate::causal_attention()).
///
/// The parts are `[batch, length, heads x size]`, where keys and values may have fewer heads than the queries. The
/// output, `[batch, length, columns]`, contains the columns of all queries, then the keys, then the values. `first` is
/// the position, from 0, of the first query, key and value.
///
/// Element `i` and element `i + size / 2` of a head of `size` elements are a pair, as in Hugging Face's models.
///
/// # Panics
/// Panics if the columns of the queries or keys do not divide into heads, or if the parts differ in another dimension.
pub fn join_rotated(
    query: Tensor<3>,
    key: Tensor<3>,
    value: Tensor<3>,
    angles: &RotaryAngles,
    first: usize,
) -> Tensor<3> {
    let size = 2 * angles.frequencies.len();
    let [batch, length, _] = query.dims();
    for part in [&query, &key] {
        let width = part.dims()[2];
        assert!(size > 0 && width.is_multiple_of(size), "{width} columns do not divide into heads of {size} elements");
    }
    for part in [&key, &value] {
        let dims = part.dims();
        assert_eq!(dims[..2], [batch, length], "queries, keys and values must have the same samples and positions");
    }
    if batch * length == 0 {
        return Tensor::cat(vec![query, key, value], 2);
    }
    let Table { cosines, sines, .. } = angles.table(first, length, &query.device().inner());
    #[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
    if let Some(output) = of_their_backend!(one::join_rotated, [&query, &key, &value], [&cosines, &sines]) {
        return output;
    }
    let angles = match query.gradient_checkpointing_strategy() {
        // burn rejects operations on tensors whose gradient checkpointing strategies differ.
        Some(strategy) => {
            [cosines, sines].map(|angles| angles.autodiff().with_gradient_checkpointing_strategy(strategy))
        }
        None => [cosines, sines],
    };
    rotation::joined([query, key, value], angles)
}

#[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
mod one {
    use std::marker::PhantomData;

    use burn::backend::autodiff::checkpoint::base::Checkpointer;
    use burn::backend::autodiff::grads::Gradients;
    use burn::backend::autodiff::ops::{Backward, Ops};
    use burn::backend::tensor::FloatTensor;
    use burn::tensor::Tensor;

    use crate::kernels::declared::name::ROTARY;
    use crate::kernels::{Kernels, beside, operation};

    /// [`join_rotated`] as a single operation in burn's autodiff graph: rotates queries and keys, and concatenates them
    /// with values.
    #[derive(Debug)]
    struct Join;

    /// Values that the forward pass of [`join_rotated`] saves for its backward pass.
    #[derive(Clone, Debug)]
    struct State<B: Kernels> {
        /// Numbers of columns of the queries, the keys and the values.
        columns: [usize; 3],
        /// Cosines and sines of the rotary embedding's angles. The backward pass rotates gradients by the opposite
        /// angles.
        angles: [FloatTensor<B>; 2],
    }

    impl<B: Kernels> Backward<B, 3> for Join {
        type State = State<B>;

        fn backward(self, ops: Ops<State<B>, 3>, gradients: &mut Gradients, _: &mut Checkpointer) {
            let gradient = gradients.consume::<B>(&ops.node);
            let State { columns, angles: [cosines, sines] } = ops.state;
            let to_parts = B::join_to_parts(&gradient, columns, [&cosines, &B::float_neg(sines)]);
            for (parent, found) in ops.parents.into_iter().zip(to_parts) {
                if let Some(parent) = parent {
                    gradients.register::<B>(parent.id, found);
                }
            }
        }
    }

    /// Concatenates queries, keys and values with the backend's kernel, and rotates the queries and keys. Returns
    /// `None` if there is no kernel for the parts or their device.
    pub fn join_rotated<B: Kernels>(
        _: PhantomData<B>,
        parts: [&Tensor<3>; 3],
        angles: [&Tensor<2>; 2],
    ) -> Option<Tensor<3>> {
        let plain = |angles: &Tensor<2>| beside::<B, _, 3>(ROTARY, parts[0], B::plain(angles.clone()));
        let angles = [plain(angles[0])?, plain(angles[1])?];
        let columns = parts.map(|part| part.dims()[2]);
        operation::<B, _, 3, 3, 3>(ROTARY, Join, parts, |[query, key, value]| {
            let output = B::joined([&query, &key, &value], [&angles[0], &angles[1]]);
            (output, State { columns, angles })
        })
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::tensor::FloatDType;

    use super::*;
    use crate::test_numbers::uniform;

    const SIZE: usize = 6;
    /// The numbers of heads of the queries, the keys and the values.
    const HEADS: [usize; 3] = [3, 2, 2];

    /// Returns a part `[batch, length, heads x size]` turned by the angles of its positions, by complex multiplications
    /// in f64. `sign` is -1 for the opposite angles.
    fn turned(part: &Tensor<3>, first: usize, sign: f64) -> Vec<f64> {
        let [_, length, width] = part.dims();
        let numbers: Vec<f64> = part.to_data().iter::<f64>().collect();
        let mut turned = numbers.clone();
        for (index, turned) in turned.iter_mut().enumerate() {
            let (position, element) = (index / width % length + first, index % SIZE);
            let pair = element % (SIZE / 2);
            let angle = sign * position as f64 * 100_f64.powf(-2.0 * pair as f64 / SIZE as f64);
            let head = index - element;
            let (x, y) = (numbers[head + pair], numbers[head + pair + SIZE / 2]);
            *turned = match element < SIZE / 2 {
                true => x * angle.cos() - y * angle.sin(),
                false => y * angle.cos() + x * angle.sin(),
            };
        }
        turned
    }

    /// Asserts that a tensor has the given numbers, within the rounding of its type. The angles are rounded to f32.
    fn assert_near(found: &Tensor<3>, exact: &[f64]) {
        let found: Vec<f64> = found.to_data().iter::<f64>().collect();
        assert_eq!(found.len(), exact.len());
        let apart = found.iter().zip(exact).map(|(found, exact)| (found - exact).abs());
        let most = apart.inspect(|apart| assert!(apart.is_finite())).fold(0.0, f64::max);
        assert!(most < 1e-5, "{most}");
    }

    /// Returns the queries, the keys and the values from attention's input.
    fn parts(joined: &Tensor<3>) -> [Tensor<3>; 3] {
        let mut start = 0;
        HEADS.map(|heads| {
            let part = joined.clone().slice_dim(2, start..start + heads * SIZE);
            start += heads * SIZE;
            part
        })
    }

    /// Tests the rotation of queries and keys and its gradients, and that values stay as they are.
    #[test]
    fn a_rotation_is_a_complex_product() {
        let (device, angles) = (Device::flex(), RotaryAngles::with_base(100.0, SIZE));
        for (length, first) in [(1, 0), (70, 0), (5, 65)] {
            let random = |heads: usize| uniform([2, length, heads * SIZE], -1.0..1.0, &device);
            let (inputs, upstream) = (HEADS.map(random), random(HEADS.iter().sum()));
            let leaves = inputs.clone().map(|part| part.autodiff().require_grad());
            let [query, key, value] = leaves.clone();
            let output = join_rotated(query, key, value, &angles, first);
            let gradients = (output.clone() * upstream.clone().autodiff()).sum().backward();
            let plain: Vec<f64> = inputs[2].to_data().iter::<f64>().collect();
            let exact = [turned(&inputs[0], first, 1.0), turned(&inputs[1], first, 1.0), plain];
            for (found, exact) in parts(&output.inner()).iter().zip(&exact) {
                assert_near(found, exact);
            }
            let [to_query, to_key, to_value] = parts(&upstream);
            let plain: Vec<f64> = to_value.to_data().iter::<f64>().collect();
            let to_parts = [turned(&to_query, first, -1.0), turned(&to_key, first, -1.0), plain];
            for (leaf, exact) in leaves.iter().zip(&to_parts) {
                assert_near(&leaf.grad(&gradients).unwrap(), exact);
            }
            // No kernel takes f64, so burn's own operations compute these values.
            let [query, key, value] = inputs.map(|part| part.cast(FloatDType::F64));
            for (found, exact) in parts(&join_rotated(query, key, value, &angles, first)).iter().zip(&exact) {
                assert_near(found, exact);
            }
        }
    }

    #[test]
    #[should_panic = "must have the same samples and positions"]
    fn parts_of_other_lengths_are_rejected() {
        let part = |length: usize| Tensor::<3>::zeros([2, length, SIZE], &Device::flex());
        join_rotated(part(3), part(3), part(4), &RotaryAngles::with_base(100.0, SIZE), 0);
    }
}
