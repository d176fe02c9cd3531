//! Runs a stage's consecutive blocks, with activation recomputation (activation checkpointing) if the stage is
//! configured for it. The backward pass then recomputes single blocks, or segments (groups of consecutive blocks).

use std::fmt::Display;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Tensor;
use parking_lot::Mutex;
use stageline_nn::autograd::{SequenceParts, recomputed};
use stageline_nn::is_recomputation;
use stageline_nn::params::AnyTensor;

use crate::model::payload::{Payload, PayloadMapper, SharedInput};

/// Runs consecutive `blocks` of a stage with `forward`, and returns the output of the last block. `parts`, which comes
/// from the function [`parts()`], selects the segments (groups of blocks) that the backward pass recomputes. A segment
/// whose input does not have exactly one float tensor is not recomputed; its activations are saved for the backward
/// pass instead.
///
/// # Errors
/// Returns the error of the first block that fails.
///
/// # Panics
/// Panics if the output of a recomputed block does not have exactly one float tensor of the input's rank.
pub(super) fn in_segments<B: Module + 'static, P: Payload, E: Display + Send + 'static>(
    parts: SequenceParts,
    blocks: &[B],
    input: P,
    forward: fn(&B, P) -> Result<P, E>,
) -> Result<P, E> {
    let kept = |blocks: &[B], input: Result<P, E>| blocks.iter().try_fold(input?, |input, block| forward(block, input));
    parts.run(blocks, Ok(input), kept, |segment, input| {
        let input = input?;
        if floats(&input) != 1 {
            return kept(segment, Ok(input));
        }
        let mut taken = Take::default();
        let rest = input.map(&mut taken);
        let mut run =
            Run { segment: segment.to_vec(), forward, rest: rest.clone(), made: Arc::default(), output: None };
        rest.map(&mut Put(taken.first)).map(&mut run);
        let made = run.made.lock().take().expect("the first forward of a segment stores its output");
        Ok(made?.map(&mut Put(run.output)))
    })
}

/// Divides a stage's `blocks` consecutive blocks into segments (groups) that the backward pass recomputes one by one.
/// `input` is the input of the first block. Returns `None` in any of these cases:
///
/// - Such recomputation is not configured.
/// - A larger block that is recomputed contains these blocks.
/// - `input` does not have exactly one float tensor.
pub(super) fn parts<P: Payload>(blocks: usize, input: &P) -> Option<SequenceParts> {
    SequenceParts::of(blocks).filter(|_| floats(input) == 1)
}

/// Returns the number of float tensors in a payload (a value made of tensors).
fn floats<P: Payload>(value: &P) -> usize {
    let mut floats = Floats(0);
    value.clone().map(&mut floats);
    floats.0
}

/// A tensor mapper that runs a segment (a group of consecutive blocks) on the input's only float tensor. It marks the
/// segment for recomputation in the backward pass.
struct Run<B, P, E> {
    segment: Vec<B>,
    forward: fn(&B, P) -> Result<P, E>,
    /// The input of a segment (a group of blocks) without its only float tensor, which autodiff tracks separately. A
    /// one-element placeholder takes that tensor's place.
    rest: P,
    /// The result of a segment (a group of blocks): the segment's output, or the error of a block. In the output, a
    /// one-element placeholder takes the place of the only float tensor. `None` until the segment's first forward pass
    /// has run.
    made: Arc<Mutex<Option<Result<P, E>>>>,
    /// The only float tensor in the output of a segment (a group of blocks). `None` until the segment has run.
    output: Option<AnyTensor>,
}

impl<B: Module + 'static, P: Payload, E: Display + Send + 'static> PayloadMapper for Run<B, P, E> {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let (forward, rest, made) = (self.forward, self.rest.clone(), Arc::clone(&self.made));
        let output = recomputed(&self.segment, tensor, move |segment, tensor: Tensor<D>| {
            let device = tensor.device();
            let input = rest.clone().map(&mut Put(Some(AnyTensor::new(tensor))));
            let mut taken = Take::default();
            let output = segment.iter().try_fold(input, |input, block| forward(block, input));
            let output = output.map(|output| output.map(&mut taken));
            match &output {
                Err(error) if is_recomputation() => panic!("a block failed only when it was recomputed: {error}"),
                Err(_) => taken.first = Some(AnyTensor::new(Tensor::<D>::zeros([1; D], &device))),
                Ok(_) => taken.check::<D>(),
            }
            if !is_recomputation() {
                *made.lock() = Some(output);
            }
            taken.first.expect("the number of float tensors was checked").tensor::<D>()
        });
        self.output = Some(AnyTensor::new(output.clone()));
        output
    }

    fn shared<T: Payload>(&mut self, shared: SharedInput<T>) -> SharedInput<T> {
        shared
    }
}

/// A tensor mapper that takes the only float tensor out of a payload (a value made of tensors). It leaves a one-element
/// placeholder in that tensor's place.
#[derive(Default)]
struct Take {
    first: Option<AnyTensor>,
    /// The ranks of all float tensors that the mapper has found in the payload.
    ranks: Vec<usize>,
}

impl Take {
    /// Panics unless a recomputed block has returned exactly one float tensor, of rank `D`.
    fn check<const D: usize>(&self) {
        assert!(
            self.ranks == [D],
            "a recomputed block must return exactly one float tensor, of rank {D} as in its input; it returned float tensors of the \
             ranks {:?}: do not recompute this block",
            self.ranks
        );
    }
}

impl PayloadMapper for Take {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let place = Tensor::zeros([1; D], &tensor.device());
        self.first.get_or_insert(AnyTensor::new(tensor));
        self.ranks.push(D);
        place
    }

    fn shared<T: Payload>(&mut self, shared: SharedInput<T>) -> SharedInput<T> {
        shared
    }
}

/// A tensor mapper that puts a float tensor back into a payload (a value made of tensors). The float tensor replaces
/// the one-element placeholder that [`Take`] has left.
struct Put(Option<AnyTensor>);

impl PayloadMapper for Put {
    fn float<const D: usize>(&mut self, place: Tensor<D>) -> Tensor<D> {
        self.0.take().map_or(place, AnyTensor::tensor::<D>)
    }

    fn shared<T: Payload>(&mut self, shared: SharedInput<T>) -> SharedInput<T> {
        shared
    }
}

/// A tensor mapper that counts the float tensors of a payload (a value made of tensors) and changes no tensor.
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
