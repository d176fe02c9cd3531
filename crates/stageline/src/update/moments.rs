//! Reads the second moments of gradients (running means of their squares) from an optimizer's state.

use std::collections::HashMap;

use burn::module::ParamId;
use burn::optim::ModuleOptimizer;

use crate::state::optimizer_state::{Field, Value, read};

/// The field names under which burn's optimizers store the second moment: Adam and AdamW, Lamb, Adan, and RMSProp.
const NAMES: [&str; 4] = ["momentum.moment_2", "moment_2", "momentum.exp_avg_sq", "square_avg.square_avg"];

/// Returns, for each parameter, the optimizer's second moment of the gradient, averaged over the elements. Parameters
/// without a second moment are left out.
pub(crate) fn second_moments(optimizer: &ModuleOptimizer) -> HashMap<ParamId, f64> {
    read(optimizer).into_iter().filter_map(second_moment).collect()
}

fn second_moment(field: Field) -> Option<(ParamId, f64)> {
    let Value::Tensor(data) = field.value else { return None };
    let mean = || data.iter::<f64>().sum::<f64>() / data.num_elements().max(1) as f64;
    NAMES.contains(&field.name.as_str()).then(|| (field.id, mean()))
}
