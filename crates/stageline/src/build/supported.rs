//! Checks that every stage can compute on its device. The device must support the dtypes of the stage's tensors, such
//! as bf16, and this program must know which kernels the device has. An operation without a kernel is either rejected
//! with an error or accepted and returned, so that a warning can be logged.

use burn::tensor::{DType, Device};
use stageline_nn::params::Description;

use crate::build::builder::PipelineBuilder;
use crate::build::fallbacks::{OfReplica, fallbacks_of, validate_fallbacks};
use crate::device::opened::shown;
use crate::device::remote::RemoteError;
use crate::device::supported::{computes_in, has_unknown_kernels, is_gpu};
use crate::failure::build_error::BuildError;
use crate::model::payload::Payload;
use crate::update::precision::Precision;

impl<In: Payload, Out: Payload, Target: Payload> PipelineBuilder<In, Out, Target> {
    /// Checks that the stages can compute on their devices. `devices` has one list for each replica, with the device of
    /// each stage.
    ///
    /// Returns the accepted operations that have no kernel on their stage's device. The result has one list for each
    /// replica, with a list for each stage. Operations that a stage does not list are not checked here.
    ///
    /// # Errors
    /// Returns an error in these cases, which are checked in this order:
    ///
    /// - A device of another host was not opened by its name, so its kernels are not known.
    /// - A device does not support a dtype of its stage's tensors, or a device of another host does not answer.
    /// - An operation has no kernel on its stage's device and is rejected ([`Fallbacks`](crate::Fallbacks)).
    pub(super) fn validate_devices(&self, devices: &[Vec<Device>]) -> Result<Vec<OfReplica>, BuildError> {
        for (stage, device) in devices.iter().flat_map(|devices| devices.iter().enumerate()) {
            if has_unknown_kernels(device) {
                return Err(BuildError::UnknownServer { stage, device: shown(device) });
            }
        }
        let tensors = &self.stages.owners.tensors;
        validate_types(tensors, self.precision, devices, computes_in)?;
        let of_stage = |(stage, device): (usize, &Device)| {
            fallbacks_of(&self.stages.operations[stage], &tensors[stage], self.precision, device)
        };
        let fallbacks: Vec<OfReplica> =
            devices.iter().map(|devices| devices.iter().enumerate().map(of_stage).collect()).collect();
        let found = devices.iter().zip(&fallbacks).flat_map(|(devices, fallbacks)| {
            let stages = devices.iter().zip(fallbacks).enumerate();
            stages.flat_map(|(stage, (device, found))| found.iter().map(move |fallback| (stage, device, fallback)))
        });
        validate_fallbacks(self.fallbacks, found, is_gpu)?;
        Ok(fallbacks)
    }
}

/// Checks that every device supports the dtypes of its stage's tensors, and the dtype to which `precision` rounds them.
/// `described` has the tensors of each stage. `computes_in` returns whether a device supports a dtype. The error names
/// the first stage and dtype for which this fails, or a host that does not answer.
fn validate_types(
    described: &[Vec<Description>],
    precision: Precision,
    devices: &[Vec<Device>],
    computes_in: impl Fn(&Device, DType) -> Result<bool, RemoteError>,
) -> Result<(), BuildError> {
    // Another host is asked only once for each device and dtype.
    let mut supported: Vec<(&Device, DType)> = Vec::new();
    for (stage, device) in devices.iter().flat_map(|devices| devices.iter().enumerate()) {
        for (dtype, parameter) in types(&described[stage], precision) {
            // Every device computes in f32.
            if dtype == DType::F32 || supported.contains(&(device, dtype)) {
                continue;
            }
            if !computes_in(device, dtype).map_err(BuildError::Host)? {
                let all = [DType::F32, DType::F16, DType::BF16, DType::F64].into_iter();
                let others = all.filter(|dtype| computes_in(device, *dtype).unwrap_or(false)).map(shown_type);
                let supported = others.collect::<Vec<_>>().join(", ");
                let (parameter, dtype, device) = (parameter.to_owned(), shown_type(dtype), shown(device));
                return Err(BuildError::ElementType { stage, parameter, dtype, device, supported });
            }
            supported.push((device, dtype));
        }
    }
    Ok(())
}

/// Returns the float dtypes that a stage computes in, each with the path of the first parameter that has this dtype or
/// is rounded to it. The path is empty for a stage without float parameters.
fn types(described: &[Description], precision: Precision) -> Vec<(DType, &str)> {
    let floats = || described.iter().filter(|tensor| tensor.dtype.is_float());
    let own = floats().map(|tensor| (tensor.dtype, tensor.path.as_str()));
    let first = floats().next().map_or("", |tensor| tensor.path.as_str());
    let rounded = precision.rounded().map(|dtype| (DType::from(dtype), first));
    let mut types: Vec<(DType, &str)> = Vec::new();
    for (dtype, path) in own.chain(rounded) {
        if types.iter().all(|(known, _)| *known != dtype) {
            types.push((dtype, path));
        }
    }
    types
}

/// Returns the name of a dtype in messages, such as `bf16`.
fn shown_type(dtype: DType) -> String {
    format!("{dtype:?}").to_lowercase()
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use burn::module::ParamId;

    use super::*;

    fn described(path: &str, dtype: DType) -> Description {
        Description { id: ParamId::new(), path: path.to_owned(), dtype, shape: vec![2], trained: true }
    }

    /// Checks the element types of two stages, as if their devices computed only in the types `of`. The second stage
    /// has an f64 parameter.
    fn validated(precision: Precision, of: &[DType]) -> Result<(), BuildError> {
        let stages =
            [vec![described("0.weight", DType::F32)], vec![described("a", DType::F32), described("b", DType::F64)]];
        let devices = vec![vec![Device::flex(), Device::flex()]];
        validate_types(&stages, precision, &devices, |_, dtype| Ok(of.contains(&dtype)))
    }

    #[test]
    fn a_type_that_a_device_lacks_is_an_error_with_the_layer_and_the_types_that_it_has() {
        let message = |precision, of: &[DType]| validated(precision, of).unwrap_err().to_string();
        let said = message(Precision::Bf16, &[DType::F32, DType::F16]);
        assert!(
            said.starts_with("stage 0 computes in bf16 (first in `0.weight`), and its device cpu does not"),
            "{said}"
        );
        assert!(said.contains("it computes in f32, f16") && said.contains("`.precision(...)`"), "{said}");
        let said = message(Precision::Full, &[DType::F32]);
        assert!(said.starts_with("stage 1 computes in f64 (first in `b`)"), "{said}");
        assert!(validated(Precision::Bf16, &[DType::F32, DType::F64, DType::BF16]).is_ok());
    }

    #[test]
    fn a_stage_without_parameters_is_checked_in_its_precision() {
        let devices = [vec![Device::flex()]];
        let lacks_all = validate_types(&[Vec::new()], Precision::F16, &devices, |_, _| Ok(false)).unwrap_err();
        assert!(lacks_all.to_string().starts_with("stage 0 computes in f16, and its device cpu"), "{lacks_all}");
        assert!(validate_types(&[Vec::new()], Precision::Full, &devices, |_, _| Ok(false)).is_ok());
    }

    #[test]
    fn a_host_is_asked_once_for_a_device_and_type() {
        let asked = std::cell::Cell::new(0);
        let stages = [vec![described("a", DType::F32)], vec![described("b", DType::F32)]];
        let devices = vec![vec![Device::flex(); 2]; 2];
        let computes_in = |_: &Device, _| {
            asked.set(asked.get() + 1);
            Ok(true)
        };
        validate_types(&stages, Precision::Bf16, &devices, computes_in).unwrap();
        assert_eq!(asked.get(), 1);
    }
}
