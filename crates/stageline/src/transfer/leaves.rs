//! The leaves of a stage's autodiff graph: the float tensors of the stage's input and output, where gradients enter and
//! leave the graph.
//!
//! A forward pass records the leaves of its input and its output. The backward pass starts from the received gradients
//! of the output and returns the gradients of the input. Only detached tensors cross a stage boundary, so the graphs of
//! two stages never join.
//!
//! Gradients are bitwise identical for all partitions, with one exception. burn adds up the gradients from all uses of
//! a tensor, beginning with the deepest use. A tensor that crosses a stage boundary, and that its own stage uses twice
//! or more, has three gradients or more. The order in which burn adds them, and with it the last bit of their sum, can
//! depend on the split points. This order never depends on the schedule.

use burn::tensor::kind::BridgeTensor;
use burn::tensor::{Bool, Device, Gradients, Int, Tensor};

use crate::device::remote::moved;
use crate::model::payload::{Payload, PayloadMapper, SharedInput, bytes_of};
use crate::transfer::in_flight::Sent;
use crate::update::not_finite::tensor_is_finite;
use stageline_nn::autograd::root;

/// The gradient of one float tensor of a stage's input or output, with its number of dimensions erased from the Rust
/// type. It therefore stores the functions that move, send and check a tensor of this number of dimensions.
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

    /// Returns this gradient as a tensor of `D` dimensions. The caller must pass the gradient's actual number of
    /// dimensions, which is not checked.
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

/// The gradients of all float tensors of a stage's input or output, in the order of these tensors. An entry is `None`
/// if the loss does not depend on its tensor.
pub(crate) struct LeafGradients(Vec<Option<LeafGradient>>);

impl LeafGradients {
    pub(crate) fn moved_to(self, device: &Device) -> Self {
        Self(self.0.into_iter().map(|gradient| gradient.map(|gradient| gradient.moved_to(device))).collect())
    }

    /// Sends the gradients of a stage's input to another device, and returns them there. `sent` keeps the tensors alive
    /// until NCCL has read them.
    pub(crate) fn sent_to(self, device: &Device, sent: &mut Sent) -> Self {
        Self(self.0.into_iter().map(|gradient| Some(gradient?.sent_to(device, sent))).collect())
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().flatten().map(|gradient| gradient.bytes).sum()
    }

    /// Whether all gradients of a stage's input or output are finite, ignoring tensors without a gradient.
    pub(crate) fn is_finite(&self) -> bool {
        self.0.iter().flatten().all(LeafGradient::is_finite)
    }
}

/// The float tensors of a stage's input or output, at the ends of the stage's autodiff graph. Gradients enter the graph
/// at the output and leave it at the input.
#[derive(Default)]
pub(crate) struct Leaves(Vec<Box<dyn Leaf>>);

/// A float tensor at one end of a stage's autodiff graph (in the stage's input or output), with its number of
/// dimensions erased from the Rust type.
trait Leaf: Send {
    /// Returns a scalar whose backward pass gives this output tensor the gradient `gradient`, like PyTorch's
    /// `output.backward(gradient)`. Returns `None` if autodiff does not track the tensor.
    fn seeded(&self, gradient: LeafGradient) -> Option<Tensor<1>>;
    /// Removes the gradient of this input tensor from `gradients`, the result of a backward pass, and returns it.
    /// Returns `None` if the backward pass gave the tensor no gradient.
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
    /// Makes a payload that was received from the previous stage the input of this stage's autodiff graph. Returns the
    /// payload in the graph, and its float tensors, whose gradients go back to the previous stage.
    pub(crate) fn of_input<P: Payload>(payload: P) -> (P, Self) {
        let mut record = RecordInput::default();
        (payload.map(&mut record), record.0)
    }

    /// Detaches a stage's output from the stage's autodiff graph. Returns the detached output for the next stage, and
    /// the output's float tensors in the graph, where the backward pass starts.
    ///
    /// The float tensors in the graph retain the output in memory until the backward pass. Without them, burn may free
    /// the output earlier: for `tanh`, for example, burn retains only the input.
    pub(crate) fn of_output<P: Payload>(payload: P) -> (P, Self) {
        let mut record = RecordOutput::default();
        (payload.map(&mut record), record.0)
    }

    /// Returns the scalar where a stage's backward pass starts. `gradients` are the gradients of the stage's output,
    /// received from the next stage. Returns `None` if no tensor of the output both has a gradient and is tracked by
    /// autodiff.
    pub(crate) fn root(&self, gradients: LeafGradients) -> Option<Tensor<1>> {
        let leaves = self.0.iter().zip(gradients.0);
        leaves.filter_map(|(leaf, gradient)| leaf.seeded(gradient?)).reduce(Tensor::add)
    }

    /// Removes the gradients of a stage's input from `gradients`, the result of a backward pass, and returns them. If
    /// no backward pass ran (`None`), every entry of the result is `None`.
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
    fn shared<T: Payload>(&mut self, shared: SharedInput<T>) -> SharedInput<T> {
        shared.map_here(&mut Track)
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
    fn shared<T: Payload>(&mut self, shared: SharedInput<T>) -> SharedInput<T> {
        shared.leave()
    }
}

/// Detaches the float tensors of a payload from their autodiff graph.
pub(crate) fn detach<P: Payload>(payload: P) -> P {
    payload.map(&mut Detach)
}

struct Detach;

impl PayloadMapper for Detach {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        tensor.detach()
    }
}

/// Turns the tensors of a payload (a stage's input or the targets) into autodiff tensors that need no gradient, so that
/// a stage can compute with them and its own tracked parameters.
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
