//! Moves tensors between devices outside the plan's transfers: batches, outputs, and the gradients and values of shared
//! parameters.
//!
//! Between GPUs such tensors go through host memory, because NCCL can deadlock on transfers whose order the plan does
//! not fix (see `order`).

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::kind::{Autodiff, Basic};
use burn::tensor::{Bool, Device, Int, Tensor};

use crate::device::location::{between_cuda, host, is_remote, one_gpu};
use crate::device::remote::{by_the_host, moved, one_lent_gpu};
use crate::model::payload::{Payload, PayloadMapper, SharedInput};
use stageline_nn::params::{fork, is_quantized, with_value};

/// Moves all tensors of a payload (such as a batch) to a device for use by the calling thread, and detaches them from
/// their autodiff graph.
pub(crate) fn place<P: Payload>(payload: P, device: &Device) -> P {
    payload.map(&mut Place(device))
}

/// Moves a tensor to a device for use by another thread, and detaches it from its autodiff graph.
pub(crate) fn hand_tensor<const D: usize>(tensor: Tensor<D>, device: &Device) -> Tensor<D> {
    Place(device).float(for_another_thread(tensor.inner(), device))
}

/// Prepares the tensors of a payload (such as an output) for use by another thread: detaches them from their autodiff
/// graph, and copies those on the GPU `device` into newly allocated memory.
pub(crate) fn hand_over<P: Payload>(payload: P, device: &Device) -> P {
    payload.map(&mut HandOver(device))
}

/// Copies a tensor into newly allocated memory if it is on the same GPU as `to`, where another thread will use it. The
/// GPU may belong to another host, whose server has a stream for each thread of this program. A tensor on any other
/// device is returned unchanged.
///
/// The copy is made by reversing the tensor twice (`flip`), because every flip runs as its own kernel and writes to new
/// memory. New memory is needed because of a rule of cubecl 0.11: for each *allocation* of memory, the other thread's
/// stream waits only once for the stream that writes there. With operator fusion, a result may be written into the
/// older memory of an operand, for which the other stream may have waited already.
pub(crate) fn for_another_thread<const D: usize, K: Basic>(tensor: Tensor<D, K>, to: &Device) -> Tensor<D, K> {
    let from = tensor.device();
    if one_gpu(&from, to) || one_lent_gpu(&from, to) { tensor.flip([0]).flip([0]) } else { tensor }
}

/// Prepares the parameters of a module for use by another thread: those on the GPU `device` are copied into newly
/// allocated memory, except quantized ones. The parameters must not be tracked by autodiff.
pub(crate) fn hand_over_module<M: Module>(module: M, device: &Device) -> M {
    module.map(&mut HandOver(device))
}

/// Moves a module's parameters from other hosts' devices to `device`. burn's own method cannot do this, because it does
/// not know Stageline's routes between hosts or the names of tensors on a server.
///
/// Tensors that are not parameters, and quantized parameters, cannot be moved one by one. If the module has such a
/// tensor on a device of another host that is not `device`, the whole module is moved to this host's CPU. Modules on
/// devices of this host stay there.
pub(crate) fn off_other_hosts<M: Module>(module: M, device: &Device) -> M {
    let device = device.clone().inner();
    let is_elsewhere = |other: &Device| is_remote(other) && other.clone().inner() != device;
    let module = module.map(&mut OffOtherHosts(device.clone()));
    match host().filter(|_| module.devices().iter().any(is_elsewhere)) {
        Some(host) => fork(module, &host.autodiff()),
        None => module,
    }
}

struct OffOtherHosts(Device);

impl OffOtherHosts {
    fn place<const D: usize, K: Basic + Autodiff>(&self, tensor: Tensor<D, K>) -> Tensor<D, K> {
        if !is_remote(&tensor.device()) {
            return tensor;
        }
        let is_autodiff = tensor.is_autodiff();
        let placed = Place(&self.0).place(tensor.inner());
        if is_autodiff { placed.autodiff() } else { placed }
    }
}

impl ModuleMapper for OffOtherHosts {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let value = param.val();
        if is_quantized(&value) {
            return param;
        }
        let is_trained = value.is_require_grad();
        let placed = self.place(value);
        with_value(param, if is_trained { placed.require_grad() } else { placed })
    }
    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let placed = self.place(param.val());
        with_value(param, placed)
    }
    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        let placed = self.place(param.val());
        with_value(param, placed)
    }
}

struct HandOver<'a>(&'a Device);

impl ModuleMapper for HandOver<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let value = param.val();
        if is_quantized(&value) { param } else { with_value(param, for_another_thread(value, self.0)) }
    }
    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let value = for_another_thread(param.val(), self.0);
        with_value(param, value)
    }
    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        let value = for_another_thread(param.val(), self.0);
        with_value(param, value)
    }
}

impl PayloadMapper for HandOver<'_> {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        for_another_thread(tensor.inner(), self.0)
    }
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        for_another_thread(tensor.inner(), self.0)
    }
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        for_another_thread(tensor.inner(), self.0)
    }
}

/// A [`PayloadMapper`] that moves each tensor of a payload to a device and detaches it from its autodiff graph.
pub(super) struct Place<'a>(pub(super) &'a Device);

impl PayloadMapper for Place<'_> {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.place(tensor.inner())
    }
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        self.place(tensor.inner())
    }
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        self.place(tensor.inner())
    }
    fn shared<T: Payload>(&mut self, shared: SharedInput<T>) -> SharedInput<T> {
        shared.map_given_to_here(self)
    }
}

impl Place<'_> {
    fn place<const D: usize, K: Basic>(&self, tensor: Tensor<D, K>) -> Tensor<D, K> {
        if between_cuda(&tensor.device(), self.0) { by_the_host(tensor, self.0) } else { moved(tensor, self.0) }
    }
}
