//! What a forward leaves for its backward: the float leaves where gradients enter and leave a stage's graph.

use burn::tensor::kind::BridgeTensor;
use burn::tensor::{Bool, Device, Gradients, Int, Tensor};

use crate::payload::{Payload, PayloadMapper};

/// The gradients of a payload's float leaves, in the payload's order; `None` where the loss does not depend on a leaf.
pub(crate) type Cotangents = Vec<Option<BridgeTensor>>;

/// Float tensors of a stage's graph, their ranks erased.
#[derive(Default)]
pub(crate) struct Leaves(Vec<Box<dyn Leaf>>);

trait Leaf: Send {
    fn seeded(&self, cotangent: BridgeTensor) -> Option<Tensor<1>>;
    fn gradient(&self, gradients: &mut Gradients, device: &Device) -> Option<BridgeTensor>;
}

impl<const D: usize> Leaf for Tensor<D> {
    /// A scalar whose gradient with respect to this tensor is the cotangent, bit for bit: y -> sum(y * cotangent).
    fn seeded(&self, cotangent: BridgeTensor) -> Option<Tensor<1>> {
        let cotangent = Tensor::<D>::from_bridge(cotangent).autodiff();
        self.is_tracked().then(|| (self.clone() * cotangent).sum())
    }

    fn gradient(&self, gradients: &mut Gradients, device: &Device) -> Option<BridgeTensor> {
        self.grad_remove(gradients).map(|gradient| gradient.to_device(device).into_bridge())
    }
}

impl Leaves {
    /// Makes a received payload the input of a stage's graph.
    pub(crate) fn of_input<P: Payload>(payload: P) -> (P, Self) {
        let mut record = RecordInput::default();
        (payload.map(&mut record), record.0)
    }

    /// Takes a stage's output out of its graph, to be handed on.
    pub(crate) fn of_output<P: Payload>(payload: P) -> (P, Self) {
        let mut record = RecordOutput::default();
        (payload.map(&mut record), record.0)
    }

    /// The scalar from which a backward with these cotangents starts; `None` where no gradient comes in.
    pub(crate) fn root(&self, cotangents: Cotangents) -> Option<Tensor<1>> {
        let leaves = self.0.iter().zip(cotangents);
        leaves.filter_map(|(leaf, cotangent)| leaf.seeded(cotangent?)).reduce(Tensor::add)
    }

    /// Takes the gradients of an input out of a finished backward, to `device`.
    pub(crate) fn cotangents(&self, gradients: &mut Gradients, device: &Device) -> Cotangents {
        self.0.iter().map(|leaf| leaf.gradient(gradients, device)).collect()
    }

    /// What an input gets back where no backward ran.
    pub(crate) fn no_cotangents(&self) -> Cotangents {
        self.0.iter().map(|_| None).collect()
    }
}

#[derive(Default)]
struct RecordInput(Leaves);

impl PayloadMapper for RecordInput {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let leaf = tensor.autodiff().require_grad();
        self.0.0.push(Box::new(leaf.clone()));
        leaf
    }
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        tensor.autodiff()
    }
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        tensor.autodiff()
    }
}

#[derive(Default)]
struct RecordOutput(Leaves);

impl PayloadMapper for RecordOutput {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.0.0.push(Box::new(tensor.clone()));
        tensor.inner()
    }
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        tensor.inner()
    }
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        tensor.inner()
    }
}

/// Lets a payload meet a stage's parameters without a gradient of its own.
pub(crate) fn track<P: Payload>(payload: P) -> P {
    payload.map(&mut Track)
}

struct Track;

impl PayloadMapper for Track {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        tensor.autodiff()
    }
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        tensor.autodiff()
    }
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        tensor.autodiff()
    }
}
