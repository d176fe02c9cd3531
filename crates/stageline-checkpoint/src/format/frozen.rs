//! The hash that a checkpoint stores in place of a frozen tensor's values ([`FrozenTensor`]).

use safetensors::Dtype;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest, Sha256};

use crate::format::seal;
use crate::format::tensor::Tensor;

/// The dtype, shape and hash of a frozen tensor, stored in a checkpoint instead of the tensor's values. A resumed run
/// loads the values from the model and compares their hash with this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrozenTensor {
    /// The dtype of a frozen tensor, such as F32.
    pub dtype: Dtype,
    /// The shape of a frozen tensor: the length of each dimension; empty for a scalar.
    pub shape: Vec<usize>,
    /// The SHA-256 of a frozen tensor's bytes: little-endian elements in row-major order.
    #[serde(serialize_with = "to_hex", deserialize_with = "from_hex")]
    pub sha256: [u8; 32],
}

impl FrozenTensor {
    /// Computes the dtype, shape and hash of `tensor`, which a checkpoint stores in place of the tensor's values.
    pub fn of(tensor: &Tensor) -> Self {
        let sha256 = Sha256::digest(&tensor.bytes).into();
        Self { dtype: tensor.dtype, shape: tensor.shape.clone(), sha256 }
    }
}

fn to_hex<S: Serializer>(hash: &[u8; 32], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&seal::digits(hash))
}

fn from_hex<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; 32], D::Error> {
    let text = String::deserialize(deserializer)?;
    let digit = |digit: u8| char::from(digit).to_digit(16).filter(|_| !digit.is_ascii_uppercase());
    let byte = |pair: &[u8; 2]| Some((digit(pair[0])? * 16 + digit(pair[1])?) as u8);
    let bytes = match text.as_bytes().as_chunks::<2>() {
        (pairs, []) => pairs.iter().map(byte).collect::<Option<Vec<_>>>(),
        _ => None,
    };
    let hash = bytes.and_then(|bytes| bytes.try_into().ok());
    hash.ok_or_else(|| de::Error::custom("a SHA-256 is not 64 lowercase hexadecimal digits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frozen_tensor_is_read_back_from_json() {
        let frozen = FrozenTensor::of(&Tensor::new(Dtype::U8, vec![3], b"abc".to_vec().into()));
        let text = serde_json::to_string(&frozen).unwrap();
        // FIPS 180-2, appendix B.1, gives this hash of `abc` as an example.
        let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(text, format!(r#"{{"dtype":"U8","shape":[3],"sha256":"{hash}"}}"#));
        assert_eq!(serde_json::from_str::<FrozenTensor>(&text).unwrap(), frozen);
        for wrong in ["", &hash[1..], &hash[2..], &hash.to_uppercase(), &hash.replace('b', "g"), &hash.repeat(2)] {
            assert!(serde_json::from_str::<FrozenTensor>(&text.replace(hash, wrong)).is_err(), "{wrong}");
        }
    }
}
