//! The second moments that optimizers keep of gradients.

use std::collections::HashMap;

use burn::module::ParamId;
use burn::optim::ModuleOptimizer;

use crate::state::optimizer_state::{Field, Value, read};

/// What burn calls the running mean of squared gradients in Adam and AdamW, Lamb, Adan, and RMSProp.
const NAMES: [&str; 4] = ["momentum.moment_2", "moment_2", "momentum.exp_avg_sq", "square_avg.square_avg"];

/// Of each parameter the mean over its elements, where its optimizer keeps one.
pub(crate) fn second_moments(optimizer: &ModuleOptimizer) -> HashMap<ParamId, f64> {
    read(optimizer).into_iter().filter_map(second_moment).collect()
}

fn second_moment(field: Field) -> Option<(ParamId, f64)> {
    let Value::Tensor(data) = field.value else { return None };
    let mean = || data.iter::<f64>().sum::<f64>() / data.num_elements().max(1) as f64;
    NAMES.contains(&field.name.as_str()).then(|| (field.id, mean()))
}
