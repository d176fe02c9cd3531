//! Conversion of burn's tensors to a checkpoint's tensors and back, bit for bit.

use burn::tensor::quantization::quantized_data_len;
use burn::tensor::{BoolStore, Bytes, DType, Shape, TensorData};
use burn_pack::Scalar;
use stageline_checkpoint::{Dtype, Tensor};

use crate::state::mismatch::Kind;
use crate::state::optimizer_state::Value;

/// A wrapper around a burn tensor's bytes that lets a checkpoint's tensor share them without a copy.
struct Shared(Bytes);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Returns a burn tensor's dtype and shape in checkpoints. A quantized tensor is stored as raw bytes (values and scales
/// in burn's order), so that a quantized base model keeps its bits.
pub(crate) fn kind_of(dtype: DType, shape: &[usize]) -> Kind {
    match dtype {
        DType::QFloat(scheme) => {
            let bytes = quantized_data_len(&scheme, &Shape::from(shape.to_vec()));
            Kind { dtype: Dtype::U8, shape: vec![bytes] }
        }
        _ => Kind { dtype: dtype_of(dtype), shape: shape.to_vec() },
    }
}

fn dtype_of(dtype: DType) -> Dtype {
    match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 | DType::Flex32 => Dtype::F32,
        DType::QFloat(_) => Dtype::U8,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::I16 => Dtype::I16,
        DType::I8 => Dtype::I8,
        DType::U64 => Dtype::U64,
        DType::U32 => Dtype::U32,
        DType::U16 => Dtype::U16,
        DType::U8 => Dtype::U8,
        DType::Bool(_) => Dtype::BOOL,
    }
}

fn burn_dtype_of(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::F64 => DType::F64,
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::I64 => DType::I64,
        Dtype::I32 => DType::I32,
        Dtype::I16 => DType::I16,
        Dtype::I8 => DType::I8,
        Dtype::U64 => DType::U64,
        Dtype::U32 => DType::U32,
        Dtype::U16 => DType::U16,
        Dtype::U8 => DType::U8,
        Dtype::BOOL => DType::Bool(BoolStore::Native),
        _ => return None,
    })
}

/// Copies a device tensor's data to host memory immediately, so that the device can free the tensor. Otherwise burn
/// copies the data only on first use, and the tensor occupies device memory until then.
pub(crate) fn read_now(data: &TensorData) -> TensorData {
    TensorData::from_bytes_vec(data.as_bytes().to_vec(), data.shape().clone(), data.dtype())
}

/// Converts the data of a burn tensor to a checkpoint's tensor, which shares the bytes instead of copying them.
pub(crate) fn tensor_of(data: TensorData) -> Tensor {
    let data = match data.dtype() {
        DType::Bool(_) => data.convert::<bool>(),
        _ => data,
    };
    let (bytes, shape, dtype) = data.into_parts();
    let Kind { dtype, shape } = kind_of(dtype, shape.as_slice());
    Tensor::new(dtype, shape, bytes::Bytes::from_owner(Shared(bytes)))
}

/// Converts a checkpoint's tensor to burn data for a parameter that has dtype `dtype` and shape `shape` in the model.
/// Returns `None` if burn lacks the tensor's dtype, or if the number of bytes does not match dtype and shape.
pub(crate) fn data_of_parameter(tensor: &Tensor, dtype: DType, shape: &[usize]) -> Option<TensorData> {
    let DType::QFloat(scheme) = dtype else { return data_of(tensor) };
    let shape = Shape::from(shape.to_vec());
    let fits = tensor.bytes.len() == quantized_data_len(&scheme, &shape);
    fits.then(|| TensorData::from_bytes_vec(tensor.bytes.to_vec(), shape, dtype))
}

/// Converts a checkpoint's tensor to burn data. Returns `None` if burn lacks the tensor's dtype, or if the number of
/// bytes does not match the tensor's shape.
pub(crate) fn data_of(tensor: &Tensor) -> Option<TensorData> {
    let dtype = burn_dtype_of(tensor.dtype)?;
    if let DType::Bool(_) = dtype {
        let values: Vec<_> = tensor.bytes.iter().map(|&byte| byte != 0).collect();
        return (values.len() == tensor.shape.iter().product::<usize>())
            .then(|| TensorData::new(values, tensor.shape.clone()));
    }
    TensorData::try_from_bytes_vec(tensor.bytes.to_vec(), tensor.shape.clone(), dtype).ok()
}

/// Converts a field of an optimizer's state to a checkpoint's tensor; a scalar becomes a tensor without dimensions.
impl From<Value> for Tensor {
    fn from(value: Value) -> Self {
        let number = |dtype, bytes: &[u8]| Self::new(dtype, Vec::new(), bytes::Bytes::copy_from_slice(bytes));
        match value {
            Value::Tensor(data) => tensor_of(data),
            Value::Scalar(Scalar::Int(value)) => number(Dtype::I64, &value.to_le_bytes()),
            Value::Scalar(Scalar::UInt(value)) => number(Dtype::U64, &value.to_le_bytes()),
            Value::Scalar(Scalar::Float(value)) => number(Dtype::F64, &value.to_le_bytes()),
            Value::Scalar(Scalar::Bool(value)) => number(Dtype::BOOL, &[value.into()]),
        }
    }
}

impl Value {
    /// Converts a checkpoint's tensor to the value of a field of an optimizer's state: a tensor without dimensions
    /// becomes a scalar. Returns `None` if burn cannot represent the tensor.
    pub(crate) fn of(tensor: &Tensor) -> Option<Self> {
        let bytes = || tensor.bytes.first_chunk::<8>().copied().filter(|_| tensor.shape.is_empty());
        let scalar = match (tensor.dtype, tensor.shape.is_empty()) {
            (Dtype::I64, true) => bytes().map(i64::from_le_bytes).map(Scalar::Int),
            (Dtype::U64, true) => bytes().map(u64::from_le_bytes).map(Scalar::UInt),
            (Dtype::F64, true) => bytes().map(f64::from_le_bytes).map(Scalar::Float),
            (Dtype::BOOL, true) => tensor.bytes.first().map(|&byte| Scalar::Bool(byte != 0)),
            _ => None,
        };
        scalar.map(Self::Scalar).or_else(|| data_of(tensor).map(Self::Tensor))
    }
}
