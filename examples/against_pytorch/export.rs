//! Writes the model's parameters and the training batches as safetensors files, which PyTorch can load.

use std::path::Path;

use anyhow::Result;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};

use crate::task::Task;

/// A visitor that collects the model's parameters for a safetensors file, each with its path, such as
/// `blocks.0.up.weight`.
#[derive(Default)]
pub struct Parameters {
    /// Names of the modules that contain the current parameter, outermost first.
    path: Vec<String>,
    /// The path, shape and values (f32, as little-endian bytes) of each collected parameter.
    tensors: Vec<(String, Vec<usize>, Vec<u8>)>,
}

impl Parameters {
    /// Collects all parameters of a module, with paths that begin with `name`.
    pub fn add<M: Module>(&mut self, name: &str, module: &M) {
        self.path.push(name.to_owned());
        module.visit(self);
        self.path.pop();
    }

    pub fn write(&self, path: &Path) -> Result<()> {
        let views = self
            .tensors
            .iter()
            .map(|(name, shape, bytes)| Ok((name.clone(), TensorView::new(Dtype::F32, shape.clone(), bytes)?)));
        Ok(serialize_to_file(views.collect::<Result<Vec<_>>>()?, None, path)?)
    }
}

impl ModuleVisitor for Parameters {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let data = param.val().into_data();
        let bytes = data.iter::<f32>().flat_map(f32::to_le_bytes).collect();
        self.tensors.push((self.path.join("."), param.val().dims().to_vec(), bytes));
    }
}

/// Writes the training batches of all steps as a safetensors file. The tensor `bytes` is `[steps, batch, context + 1]`,
/// and the tensor `mask` is `[steps, batch, context]`.
pub fn tensors(task: &Task, path: &Path) -> Result<()> {
    let (rows, length) = (task.batch_size, task.context);
    let steps = task.bytes.len() / (rows * (length + 1));
    let mask: Vec<_> = task.mask.iter().copied().flat_map(f32::to_le_bytes).collect();
    let views = [
        ("bytes", TensorView::new(Dtype::U8, vec![steps, rows, length + 1], &task.bytes)?),
        ("mask", TensorView::new(Dtype::F32, vec![steps, rows, length], &mask)?),
    ];
    Ok(serialize_to_file(views, None, path)?)
}
