//! What a forward leaves for its backward: the float leaves where gradients enter and leave a stage's graph.

use burn::tensor::kind::BridgeTensor;
use burn::tensor::{Bool, Device, Gradients, Int, Tensor};

use crate::device::remote::moved;
use crate::model::payload::{Payload, PayloadMapper, bytes_of};
use crate::nn::autograd::seed_gradient::root;
use crate::transfer::in_flight::Sent;
use crate::update::finite::tensor_is_finite;

/// The gradient of one leaf, whose rank is not part of the type.
struct LeafGradient {
    tensor: BridgeTensor,
    bytes: u64,
    to_device: fn(BridgeTensor, &Device) -> BridgeTensor,
    send: fn(BridgeTensor, &Device, &mut Sent) -> BridgeTensor,
    is_finite: fn(BridgeTensor) -> bool,
}

impl LeafGradient {
    fn new<const D: usize>(tensor: Tensor<D>) -> Self {
        let to_device = |tensor, device: &Device| moved(Tensor::<D>::from_bridge(tensor), device).into_bridge();
        let send = |tensor, device: &Device, sent: &mut Sent| {
            sent.send(Tensor::<D>::from_bridge(tensor), device).into_bridge()
        };
        let is_finite = |tensor| tensor_is_finite(Tensor::<D>::from_bridge(tensor));
        let bytes = bytes_of(&tensor);
        Self { tensor: tensor.into_bridge(), bytes, to_device, send, is_finite }
    }

    /// Returns the tensor, which must have the rank that it was made with.
    fn tensor<const D: usize>(self) -> Tensor<D> {
        Tensor::from_bridge(self.tensor)
    }

    fn moved_to(self, device: &Device) -> Self {
        Self { tensor: (self.to_device)(self.tensor, device), ..self }
    }

    fn sent_to(self, device: &Device, sent: &mut Sent) -> Self {
        Self { tensor: (self.send)(self.tensor, device, sent), ..self }
    }

    fn is_finite(&self) -> bool {
        (self.is_finite)(self.tensor.clone())
    }
}

/// The gradients of a payload's float leaves, in the payload's order; `None` where the loss does not depend on a leaf.
pub(crate) struct LeafGradients(Vec<Option<LeafGradient>>);

impl LeafGradients {
    /// Moves every gradient.
    pub(crate) fn moved_to(self, device: &Device) -> Self {
        Self(self.0.into_iter().map(|gradient| gradient.map(|gradient| gradient.moved_to(device))).collect())
    }

    /// Sends every gradient.
    pub(crate) fn sent_to(self, device: &Device, sent: &mut Sent) -> Self {
        Self(self.0.into_iter().map(|gradient| Some(gradient?.sent_to(device, sent))).collect())
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().flatten().map(|gradient| gradient.bytes).sum()
    }

    /// Whether all gradients that there are are finite.
    pub(crate) fn is_finite(&self) -> bool {
        self.0.iter().flatten().all(LeafGradient::is_finite)
    }
}

/// Float tensors of a stage's graph, their ranks erased.
#[derive(Default)]
pub(crate) struct Leaves(Vec<Box<dyn Leaf>>);

trait Leaf: Send {
    fn seeded(&self, gradient: LeafGradient) -> Option<Tensor<1>>;
    fn gradient(&self, gradients: &mut Gradients) -> Option<LeafGradient>;
}

impl<const D: usize> Leaf for Tensor<D> {
    fn seeded(&self, gradient: LeafGradient) -> Option<Tensor<1>> {
        root(self.clone(), gradient.tensor::<D>())
    }

    fn gradient(&self, gradients: &mut Gradients) -> Option<LeafGradient> {
        self.grad_remove(gradients).map(LeafGradient::new)
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

    /// The scalar from which a backward with these gradients starts; `None` where no gradient comes in.
    pub(crate) fn root(&self, gradients: LeafGradients) -> Option<Tensor<1>> {
        let leaves = self.0.iter().zip(gradients.0);
        leaves.filter_map(|(leaf, gradient)| leaf.seeded(gradient?)).reduce(Tensor::add)
    }

    /// Takes the gradients of an input out of a finished backward; none where no backward ran.
    pub(crate) fn gradients(&self, gradients: Option<&mut Gradients>) -> LeafGradients {
        LeafGradients(match gradients {
            Some(gradients) => self.0.iter().map(|leaf| leaf.gradient(gradients)).collect(),
            None => self.0.iter().map(|_| None).collect(),
        })
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
