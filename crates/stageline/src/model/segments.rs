//! Runs consecutive blocks of a stage. If the stage is configured for it, the backward pass recomputes single blocks or
//! segments (groups of consecutive blocks).

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Tensor;
use parking_lot::Mutex;
use stageline_nn::autograd::{SequenceParts, recomputed};
use stageline_nn::is_recomputation;
use stageline_nn::params::AnyTensor;

use crate::model::payload::{Payload, PayloadMapper, SharedInput};

/// Runs consecutive blocks of a stage by `forward`, and returns the output of the last block. The argument `parts`
/// selects the blocks that the backward pass recomputes. It comes from the function [`parts()`] for this input, so
/// `input` has exactly one float tensor.
pub(super) fn in_segments<B: Module + 'static, P: Payload>(
    parts: SequenceParts,
    blocks: &[B],
    input: P,
    forward: fn(&B, P) -> P,
) -> P {
    let all = |blocks: &[B], input: P| blocks.iter().fold(input, |input, block| forward(block, input));
    parts.run(blocks, input, all, |segment, input| {
        let mut taken = Take(None);
        let rest = input.map(&mut taken);
        let mut run =
            Run { segment: segment.to_vec(), forward, rest: rest.clone(), made: Arc::default(), output: None };
        rest.map(&mut Put(taken.0)).map(&mut run);
        let made = run.made.lock().take().expect("the first forward of a segment stores its output");
        made.map(&mut Put(run.output))
    })
}

/// Divides consecutive blocks of a stage into groups, which the backward can recompute one by one. Returns `None` if no
/// such recomputation is configured, or if the blocks are inside a larger block that is recomputed. Also returns `None`
/// if `input` does not have exactly one float tensor.
pub(super) fn parts<P: Payload>(blocks: usize, input: &P) -> Option<SequenceParts> {
    SequenceParts::of(blocks).filter(|_| {
        let mut floats = Floats(0);
        input.clone().map(&mut floats);
        floats.0 == 1
    })
}

/// A tensor mapper that runs a segment (a group of consecutive blocks) on the segment's input. The backward then
/// recomputes the segment.
struct Run<B, P> {
    segment: Vec<B>,
    forward: fn(&B, P) -> P,
    /// The input of a segment (a group of blocks) without its only float tensor, which autodiff tracks separately. A
    /// placeholder is in its place.
    rest: P,
    /// The output of a segment (a group of blocks), in which a tensor of one element stands in for its only float
    /// tensor. The value is `None` until the first forward of the segment has run.
    made: Arc<Mutex<Option<P>>>,
    /// The only float tensor in the output of a segment (a group of blocks); `None` until the segment has run.
    output: Option<AnyTensor>,
}

impl<B: Module + 'static, P: Payload> PayloadMapper for Run<B, P> {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let (forward, rest, made) = (self.forward, self.rest.clone(), Arc::clone(&self.made));
        let output = recomputed(&self.segment, tensor, move |segment, tensor: Tensor<D>| {
            let input = rest.clone().map(&mut Put(Some(AnyTensor::new(tensor))));
            let mut taken = Take(None);
            let rest = segment.iter().fold(input, |input, block| forward(block, input)).map(&mut taken);
            if !is_recomputation() {
                *made.lock() = Some(rest);
            }
            taken.0.expect("a block's output has the float tensor that its input has").tensor::<D>()
        });
        self.output = Some(AnyTensor::new(output.clone()));
        output
    }

    fn shared<T: Payload>(&mut self, shared: SharedInput<T>) -> SharedInput<T> {
        shared
    }
}

/// A tensor mapper that takes the only float tensor out of a value made of tensors. It leaves a tensor of one element
/// as a stand-in.
struct Take(Option<AnyTensor>);

impl PayloadMapper for Take {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let place = Tensor::zeros([1; D], &tensor.device());
        self.0 = Some(AnyTensor::new(tensor));
        place
    }

    fn shared<T: Payload>(&mut self, shared: SharedInput<T>) -> SharedInput<T> {
        shared
    }
}

/// A tensor mapper that puts a float tensor into a value made of tensors. The float tensor replaces the stand-in of one
/// element that [`Take`] has left.
struct Put(Option<AnyTensor>);

impl PayloadMapper for Put {
    fn float<const D: usize>(&mut self, place: Tensor<D>) -> Tensor<D> {
        self.0.take().map_or(place, AnyTensor::tensor::<D>)
    }

    fn shared<T: Payload>(&mut self, shared: SharedInput<T>) -> SharedInput<T> {
        shared
    }
}

/// A tensor mapper that counts the float tensors of a value and changes no tensor.
struct Floats(usize);

impl PayloadMapper for Floats {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.0 += 1;
        tensor
    }

    fn shared<T: Payload>(&mut self, shared: SharedInput<T>) -> SharedInput<T> {
        shared
    }
}
