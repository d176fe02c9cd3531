//! Runs a row of blocks, of which the backward recomputes single ones or segments if the configuration of the stage asks
//! for that.

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{Bool, Int, Tensor};
use parking_lot::Mutex;
use stageline_nn::autograd::recompute::{SequenceParts, recomputed};
use stageline_nn::forward::recomputation::is_recomputation;
use stageline_nn::params::any_tensor::AnyTensor;

use crate::model::payload::{Payload, PayloadMapper, SharedInput};

/// Runs a row of blocks, each by `forward`, and returns the output of the last one. If the configuration of the stage
/// selects blocks or segments for recomputation, and `input` has exactly one float tensor, the backward recomputes these
/// blocks or segments from their inputs.
pub(super) fn in_segments<B: Module + 'static, P: Payload>(blocks: &[B], input: P, forward: fn(&B, P) -> P) -> P {
    let all = |blocks: &[B], input: P| blocks.iter().fold(input, |input, block| forward(block, input));
    let Some(parts) = parts(blocks.len(), &input) else { return all(blocks, input) };
    blocks.chunks(parts.length()).fold(input, |input, segment| {
        if !parts.takes_next() {
            return SequenceParts::keep(|| all(segment, input));
        }
        let mut taken = Take(None);
        let rest = input.map(&mut taken);
        let mut run =
            Run { segment: segment.to_vec(), forward, rest: rest.clone(), made: Arc::default(), output: None };
        rest.map(&mut Put(taken.0)).map(&mut run);
        let made = run.made.lock().take().expect("the first forward of a segment stores its output");
        made.map(&mut Put(run.output))
    })
}

/// Returns the parts into which a row of `blocks` blocks with this input is divided for recomputation; `None` if the
/// configuration of the stage selects none, or the input does not have exactly one float tensor.
pub(super) fn parts<P: Payload>(blocks: usize, input: &P) -> Option<SequenceParts> {
    SequenceParts::of(blocks).filter(|_| {
        let mut floats = Floats(0);
        input.clone().map(&mut floats);
        floats.0 == 1
    })
}

/// A mapper that runs a segment of blocks, given the one float tensor of its input.
struct Run<B, P> {
    segment: Vec<B>,
    forward: fn(&B, P) -> P,
    /// The segment's input without its float tensor.
    rest: P,
    /// The segment's output without its float tensor, once the first forward has run.
    made: Arc<Mutex<Option<P>>>,
    /// The float tensor of the segment's output.
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
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        tensor
    }
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        tensor
    }
    fn shared<T: Payload>(&mut self, shared: SharedInput<T>) -> SharedInput<T> {
        shared
    }
}

/// A mapper that takes the float tensor out of a payload and leaves one number in its place.
struct Take(Option<AnyTensor>);

impl PayloadMapper for Take {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let place = Tensor::zeros([1; D], &tensor.device());
        self.0 = Some(AnyTensor::new(tensor));
        place
    }
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        tensor
    }
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        tensor
    }
    fn shared<T: Payload>(&mut self, shared: SharedInput<T>) -> SharedInput<T> {
        shared
    }
}

/// A mapper that puts a float tensor back into the payload from which it was taken.
struct Put(Option<AnyTensor>);

impl PayloadMapper for Put {
    fn float<const D: usize>(&mut self, place: Tensor<D>) -> Tensor<D> {
        self.0.take().map_or(place, AnyTensor::tensor::<D>)
    }
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        tensor
    }
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        tensor
    }
    fn shared<T: Payload>(&mut self, shared: SharedInput<T>) -> SharedInput<T> {
        shared
    }
}

/// A mapper that counts the float tensors of a payload.
struct Floats(usize);

impl PayloadMapper for Floats {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.0 += 1;
        tensor
    }
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        tensor
    }
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        tensor
    }
    fn shared<T: Payload>(&mut self, shared: SharedInput<T>) -> SharedInput<T> {
        shared
    }
}
