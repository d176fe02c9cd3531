//! Rotary position embeddings: [`rotated`] turns queries and keys by angles that depend on their positions, and
//! [`RotaryAngles`] has these angles.

use std::cell::RefCell;
use std::sync::Arc;

use burn::tensor::{Device, Tensor, TensorData};

#[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
use crate::engine::of_their_backend;
use crate::kernels::rotation;

/// The angles of a rotary position embedding (Su et al., 2021, [arXiv:2104.09864](https://arxiv.org/abs/2104.09864)):
/// position `p` turns pair `i` of a head's elements by `p` times frequency `i`.
#[derive(Clone, Debug)]
pub struct RotaryAngles {
    /// The frequency of each pair of an attention head's elements, in radians per position.
    frequencies: Arc<[f32]>,
}

thread_local! {
    /// The table of cosines and sines that this thread used last for rotary embeddings, with the table's frequencies.
    /// Threads share no table: on a GPU, one thread's queue does not wait until another thread's queue has written a
    /// table.
    static LAST: RefCell<Option<(Arc<[f32]>, Table)>> = const { RefCell::new(None) };
}

/// The cosines and sines of a rotary embedding's angles for some consecutive positions, each `[positions, size / 2]` in
/// f32 for heads of `size` elements.
#[derive(Clone, Debug)]
struct Table {
    device: Device,
    first: usize,
    cosines: Tensor<2>,
    sines: Tensor<2>,
}

impl RotaryAngles {
    /// Creates the angles of a rotary position embedding from the given frequencies, one for each pair of a head's
    /// elements, in radians per position. A head has twice as many elements as there are frequencies.
    pub fn new(frequencies: impl Into<Arc<[f32]>>) -> Self {
        Self { frequencies: frequencies.into() }
    }

    /// Creates the angles of a rotary position embedding for heads of `size` elements with the usual frequencies:
    /// `base` to the power of `-2 i / size` for pair `i`.
    ///
    /// # Panics
    /// Panics if the size is odd.
    pub fn with_base(base: f64, size: usize) -> Self {
        assert!(size.is_multiple_of(2), "a head of {size} elements does not divide into pairs");
        Self::new((0..size / 2).map(|pair| base.powf(-2.0 * pair as f64 / size as f64) as f32).collect::<Vec<_>>())
    }

    /// Returns the frequency of each pair of a head's elements in a rotary position embedding, in radians per position.
    pub fn frequencies(&self) -> &[f32] {
        &self.frequencies
    }

    /// Returns the cosines and sines of a rotary embedding's angles for `count` positions from `first` on, as tensors
    /// on `device`. The thread's last table is reused if it has these positions.
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
        // The angle is rounded to f32 as in other implementations, so that long sequences have the same angles.
        let angles = (first..first + count)
            .flat_map(|position| self.frequencies.iter().map(move |frequency| f64::from(position as f32 * frequency)));
        let (cosines, sines) = angles.map(|angle| (angle.cos() as f32, angle.sin() as f32)).unzip();
        let tensor =
            |numbers: Vec<f32>| Tensor::from_data(TensorData::new(numbers, [count, self.frequencies.len()]), device);
        Table { device: device.clone(), first, cosines: tensor(cosines), sines: tensor(sines) }
    }
}

/// Rotates the heads of queries or keys `[batch, length, heads x size]` by angles that depend on their positions (a
/// rotary position embedding). Returns a tensor of the same shape and type. `first` is the position of the first query
/// or key.
///
/// Element `i` and element `i + size / 2` of a head are a pair, as in Hugging Face's models.
///
/// # Panics
/// Panics if the last dimension does not divide into heads.
pub fn rotated(input: Tensor<3>, angles: &RotaryAngles, first: usize) -> Tensor<3> {
    let ([batch, length, width], size) = (input.dims(), 2 * angles.frequencies.len());
    assert!(size > 0 && width.is_multiple_of(size), "{width} columns do not divide into heads of {size} elements");
    if batch * length == 0 {
        return input;
    }
    let Table { cosines, sines, .. } = angles.table(first, length, &input.device().inner());
    #[cfg(any(feature = "flex", feature = "gpu", feature = "remote"))]
    if let Some(output) = of_their_backend!(one::rotated, &input, &cosines, &sines) {
        return output;
    }
    match input.gradient_checkpointing_strategy() {
        Some(strategy) => {
            // burn rejects operations on tensors with different strategies.
            let alike = |angles: Tensor<2>| angles.autodiff().with_gradient_checkpointing_strategy(strategy);
            rotation::rotated(input, alike(cosines), alike(sines))
        }
        None => rotation::rotated(input, cosines, sines),
    }
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

    /// The operation that represents the rotation of queries or keys by their positions in burn's autodiff graph.
    #[derive(Debug)]
    struct Rotation;

    impl<B: Kernels> Backward<B, 1> for Rotation {
        /// The cosines and sines of a rotary embedding's angles, which the backward needs to turn the gradient by the
        /// opposite angles.
        type State = [FloatTensor<B>; 2];

        fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
            let gradient = gradients.consume::<B>(&ops.node);
            let [cosines, sines] = ops.state;
            if let [Some(parent)] = ops.parents {
                let back = B::float_neg(sines);
                gradients.register::<B>(parent.id, B::rotated(&gradient, &cosines, &back));
            }
        }
    }

    /// Rotates queries or keys by the angles of their positions, with the backend's kernel; returns `None` if there is
    /// no kernel for the input or its device.
    pub fn rotated<B: Kernels>(
        _: PhantomData<B>,
        input: &Tensor<3>,
        cosines: &Tensor<2>,
        sines: &Tensor<2>,
    ) -> Option<Tensor<3>> {
        let plain = |angles: &Tensor<2>| beside::<B, _, 3>(ROTARY, input, B::plain(angles.clone()));
        let angles = [plain(cosines)?, plain(sines)?];
        operation::<B, _, 3, 3>(ROTARY, Rotation, input, |input| (B::rotated(&input, &angles[0], &angles[1]), angles))
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::tensor::{Distribution, FloatDType};

    use super::*;

    const SIZE: usize = 6;
    const HEADS: usize = 3;

    /// Tests the rotation of queries and its gradient against complex multiplications in f64.
    #[test]
    fn a_rotation_is_a_complex_product() {
        let (device, angles) = (Device::flex(), RotaryAngles::with_base(100.0, SIZE));
        for (length, first) in [(1, 0), (70, 0), (5, 65)] {
            let random = || Tensor::<3>::random([2, length, HEADS * SIZE], Distribution::Uniform(-1.0, 1.0), &device);
            let (input, upstream) = (random(), random());
            let leaf = input.clone().autodiff().require_grad();
            let output = rotated(leaf.clone(), &angles, first);
            let gradients = (output.clone() * upstream.clone().autodiff()).sum().backward();
            let turned = |tensor: &Tensor<3>, sign: f64| {
                let numbers: Vec<f64> = tensor.to_data().iter::<f64>().collect();
                let mut turned = numbers.clone();
                for (index, turned) in turned.iter_mut().enumerate() {
                    let (position, element) = (index / (HEADS * SIZE) % length + first, index % SIZE);
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
            };
            let off = |found: Tensor<3>, exact: &[f64]| {
                let found: Vec<f64> = found.into_data().iter::<f64>().collect();
                assert_eq!(found.len(), exact.len());
                found
                    .iter()
                    .zip(exact)
                    .map(|(found, exact)| (found - exact).abs())
                    .inspect(|apart| assert!(apart.is_finite()))
                    .fold(0.0, f64::max)
            };
            assert!(off(output.inner(), &turned(&input, 1.0)) < 1e-5);
            assert!(off(leaf.grad(&gradients).unwrap(), &turned(&upstream, -1.0)) < 1e-5);
            // No kernel takes f64, so this is the composition of burn's operations.
            let wide = rotated(input.clone().cast(FloatDType::F64), &angles, first);
            assert!(off(wide, &turned(&input, 1.0)) < 1e-5);
        }
    }
}
