//! Runs consecutive blocks of a stage. If the stage is configured for it, the backward pass recomputes single blocks or
//! segments (groups of consecutive blocks).

use std::fmt::Display;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Tensor;
use parking_lot::Mutex;
use stageline_nn::autograd::{SequenceParts, recomputed};
use stageline_nn::is_recomputation;
use stageline_nn::params::AnyTensor;

use crate::model::payload::{Payload, PayloadMapper, SharedInput};

/// Runs consecutive blocks of a stage by `forward`, and returns the output of the last block. The argument `parts`
/// comes from the function [`parts()`], and selects the blocks that the backward recomputes. Of these, blocks whose
/// input does not have exactly one float tensor are kept.
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

/// Divides consecutive blocks of a stage into groups, which the backward can recompute one by one. Returns `None` if no
/// such recomputation is configured, or if the blocks are inside a larger block that is recomputed. Also returns `None`
/// if `input` does not have exactly one float tensor.
pub(super) fn parts<P: Payload>(blocks: usize, input: &P) -> Option<SequenceParts> {
    SequenceParts::of(blocks).filter(|_| floats(input) == 1)
}

/// Returns the number of float tensors in a value made of tensors.
fn floats<P: Payload>(value: &P) -> usize {
    let mut floats = Floats(0);
    value.clone().map(&mut floats);
    floats.0
}

/// A tensor mapper that runs a segment (a group of consecutive blocks) on the segment's input. The backward then
/// recomputes the segment.
struct Run<B, P, E> {
    segment: Vec<B>,
    forward: fn(&B, P) -> Result<P, E>,
    /// The input of a segment (a group of blocks) without its only float tensor, which autodiff tracks separately. A
    /// placeholder is in its place.
    rest: P,
    /// The output of a segment (a group of blocks), in which a tensor of one element stands in for its only float
    /// tensor; or the error of a block. The value is `None` until the first forward of the segment has run.
    made: Arc<Mutex<Option<Result<P, E>>>>,
    /// The only float tensor in the output of a segment (a group of blocks); `None` until the segment has run.
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

/// A tensor mapper that takes the only float tensor out of a value made of tensors. It leaves tensors of one element as
/// stand-ins.
#[derive(Default)]
struct Take {
    first: Option<AnyTensor>,
    /// The rank of each float tensor that was found.
    ranks: Vec<usize>,
}

impl Take {
    /// Panics if there is not exactly one float tensor, or if it does not have the rank `D`.
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
