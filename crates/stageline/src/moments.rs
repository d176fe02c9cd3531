//! The second moments that optimizers keep of gradients.

use std::collections::HashMap;

use burn::module::ParamId;
use burn::optim::ModuleOptimizer;
use burn::tensor::TensorData;
use burn_pack::{Error, Reader};

/// What burn calls the running mean of squared gradients in Adam and AdamW, Lamb, Adan, and RMSProp.
const NAMES: [&str; 4] = ["momentum.moment_2", "moment_2", "momentum.exp_avg_sq", "square_avg.square_avg"];

/// Of each parameter the mean over its elements, where its optimizer keeps one.
pub(crate) fn second_moments(optimizer: &ModuleOptimizer) -> HashMap<ParamId, f64> {
    // burn shows a state in the form in which it saves it, and in no other.
    let bytes = optimizer.into_bytes().expect("a state can be written to memory");
    let tensors = Reader::from_bytes(bytes).and_then(Reader::into_tensors).expect("what was just written can be read");
    tensors.into_iter().filter_map(|tensor| second_moment(tensor).expect("what was just written can be read")).collect()
}

fn second_moment(tensor: burn_pack::Tensor) -> Result<Option<(ParamId, f64)>, Error> {
    let (name, dtype, shape, id, bytes) = tensor.into_parts()?;
    let Some(id) = id.filter(|id| NAMES.iter().any(|known| name == format!("{id}.{known}"))) else { return Ok(None) };
    let data = TensorData::from_bytes(bytes, shape, dtype);
    let mean = data.iter::<f64>().sum::<f64>() / data.num_elements().max(1) as f64;
    Ok(Some((ParamId::from(id), mean)))
}
