//! Tells which dtypes a device computes in, and whether this program knows the device's kernels.

use burn::tensor::{DType, Device};

use crate::device::location::is_gpu as is_gpu_of_this_host;
use crate::device::remote::RemoteError;

/// Whether a device supports the dtype `dtype`: it can store tensors of this dtype, convert them, and compute with
/// them.
///
/// # Errors
/// Returns [`RemoteError`] if a device of another host does not answer.
pub(crate) fn computes_in(device: &Device, dtype: DType) -> Result<bool, RemoteError> {
    #[cfg(feature = "remote")]
    if let Some(answer) = crate::device::remote::connect::computes_in(device, dtype) {
        return answer;
    }
    Ok(device.supports_dtype(dtype))
}

/// Whether a device of another host was opened directly through burn, not by its Stageline name. This program has then
/// not asked the device's server for its kernels, and does not know them.
#[cfg_attr(not(feature = "remote"), allow(unused_variables))]
pub(crate) fn has_unknown_kernels(device: &Device) -> bool {
    #[cfg(feature = "remote")]
    return crate::device::remote::connect::is_unknown(device);
    #[cfg(not(feature = "remote"))]
    false
}

/// Whether a device is a GPU, of this host or of a server on another host.
pub(crate) fn is_gpu(device: &Device) -> bool {
    #[cfg(feature = "remote")]
    if crate::device::remote::connect::is_lent_gpu(device) {
        return true;
    }
    is_gpu_of_this_host(device)
}
