//! Tests that an operation which a GPU's kernels do not compute is named with its layer and the reason, or refused, and
//! that a type in which a GPU does not compute is refused.

use std::io::Write;

use burn::module::{Module, Param};
use burn::nn::LinearConfig;
use burn::optim::AdamWConfig;
use burn::tensor::{DType, Device, FloatDType, Tensor};
use stageline::nn::{Linear, Operation, Reason, causal_attention, gelu};
use stageline::schedule::OneFOneB;
use stageline::{Batch, BuildError, Fallbacks, Pipeline, PipelineBuilder, Precision, Recompute, Stage, StageConfig};
use stageline_workspace::mlp::{Mlp, Target};

use crate::counters::{keep_warnings, warnings};
use crate::{builder, gpu_name, open};

const WIDTH: usize = 8;

/// A layer for tests with causal attention of one head, whose rows are the positions of one sample.
#[derive(Module, Debug)]
struct Attending {
    query_key_value: Linear,
    output: Linear,
    /// Whether the layer's `Stage::operations` lists its attention, so that `build` checks the attention before the
    /// first forward.
    lists: bool,
}

impl Attending {
    fn new(size: usize, lists: bool) -> Self {
        let device = Device::flex().autodiff();
        let linear = |from, to| LinearConfig::new(from, to).init(&device).into();
        Self { query_key_value: linear(WIDTH, 3 * size), output: linear(size, WIDTH), lists }
    }
}

impl Stage for Attending {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let [length, _] = input.dims();
        let input = self.query_key_value.forward(input).unsqueeze::<3>();
        let attended = causal_attention(input, 1);
        let size = attended.dims()[2];
        self.output.forward(attended.reshape([length, size]))
    }

    fn operations(&self) -> Vec<Operation> {
        let [size, _] = self.output.weight.shape().dims();
        if self.lists { vec![Operation::causal_attention(size)] } else { Vec::new() }
    }
}

/// Returns the builder of a pipeline of one stage: a layer, attention with a head of `size` elements and a layer with
/// the loss.
fn attending(device: &Device, size: usize, lists: bool) -> PipelineBuilder<Tensor<2>, Tensor<2>, Target> {
    let Mlp { mut layers, error } = Mlp::new(1, WIDTH, 3);
    let config = StageConfig::new(device.clone(), AdamWConfig::new().init(), 0.01);
    // The parameters of attention must not depend on the device.
    let attending = stageline::seeded(&Device::flex().autodiff(), 5, || Attending::new(size, lists));
    let chain = Pipeline::builder().loss((layers.pop().unwrap(), attending, error), config);
    chain.schedule(OneFOneB).micro_batches(2)
}

/// Trains one step of a built pipeline, and returns the loss.
fn stepped(mut pipeline: Pipeline<Tensor<2>, Tensor<2>, Target>) -> f64 {
    let (input, target) = Mlp::batch(32, WIDTH, false, 4);
    pipeline.step(Batch::new(input, target)).unwrap().loss
}

/// Tests the warning that attention stores its scores, because its heads are too large for the device's kernels. The
/// warning names the layer once. `build` logs it if the layer lists its attention in `Stage::operations`; otherwise the
/// first forward does.
#[test]
fn attention_with_large_heads_is_named_with_its_layer() {
    keep_warnings();
    let device = open("gpu").remove(0);
    let largest = "the most for which this device stores none";
    stepped(attending(&device, 64, true).build().unwrap());
    assert!(!warnings().contains(largest), "{}", warnings());
    for (size, lists) in [(264, false), (272, true)] {
        let expected = format!(
            "causal attention in layer `1` of stage 0 stores its scores, whose memory grows with the square of the length: \
             heads of {size} elements are larger than "
        );
        let times = || warnings().matches(&expected).count();
        let pipeline = attending(&device, size, lists).build().unwrap();
        assert_eq!(times(), usize::from(lists), "{}", warnings());
        let found = stepped(pipeline);
        assert_eq!(times(), 1, "{}", warnings());
        assert!(warnings().contains(largest), "{}", warnings());
        let expected = stepped(attending(&Device::flex(), size, lists).build().unwrap());
        assert!((found - expected).abs() < 1e-4, "{found}, on the CPU {expected}");
    }
}

/// Tests the setting `Fallbacks::Refuse` with attention that stores its scores, because its heads are too large for the
/// device's kernels: `build` returns an error. Attention with smaller heads stores no scores, and `build` accepts it.
#[test]
fn attention_with_large_heads_is_refused_on_request() {
    let device = open("gpu").remove(0);
    let built = |size: usize| attending(&device, size, true).fallbacks(Fallbacks::Refuse).build();
    let said = built(264).err().unwrap().to_string();
    let expected =
        format!("causal attention in layer `1` of stage 0, on {}, is refused: it stores its scores, ", gpu_name());
    assert!(said.starts_with(&expected), "{said}");
    assert!(
        said.ends_with(", or run it all the same, by `.fallbacks(Fallbacks::Warn)` (`--fallbacks warn`)"),
        "{said}"
    );
    assert!(built(64).is_ok());
}

/// A layer for tests that computes GELU in f64, a type that Stageline's GPU kernels do not support.
#[derive(Module, Debug)]
struct InF64 {
    weight: Param<Tensor<2>>,
}

impl InF64 {
    fn new() -> Self {
        let device = Device::flex().autodiff();
        Self { weight: Param::from_tensor(Tensor::ones([WIDTH, WIDTH], (&device, DType::F64))) }
    }
}

impl Stage for InF64 {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        gelu(input.cast(FloatDType::F64).matmul(self.weight.val())).cast(FloatDType::F32)
    }

    fn operations(&self) -> Vec<Operation> {
        vec![Operation::gelu()]
    }
}

/// Tests GELU in f64 on a GPU, an operation for which Stageline has no kernel: `build` returns an error. The error
/// names the stage, the first layer with this operation, and the number of further operations without a kernel. With
/// `Fallbacks::Warn`, `build` only warns. On a device that has no f64 at all, the error names the type instead.
#[test]
fn an_operation_without_a_kernel_is_refused_unless_fallbacks_are_permitted() {
    keep_warnings();
    let device = open("gpu").remove(0);
    let config = || StageConfig::new(device.clone(), AdamWConfig::new().init(), 0.01);
    let builder = || {
        let chain = Pipeline::builder().stage(vec![InF64::new(), InF64::new()], config());
        chain.loss(Mlp::new(0, WIDTH, 3).error, config())
    };
    let refused = builder().build().err().unwrap();
    if !device.supports_dtype(FloatDType::F64) {
        assert!(matches!(refused, BuildError::ElementType { stage: 0, .. }), "{refused}");
        // The message goes to the standard error stream itself, which the test harness does not hide.
        let _ = writeln!(std::io::stderr(), "not tested: {} does not compute in f64", gpu_name());
        return;
    }
    let BuildError::Fallback(error) = &refused else { panic!("{refused}") };
    assert_eq!((error.stage, error.device.clone(), error.more), (0, gpu_name(), 1));
    assert_eq!((error.fallback.operation, error.fallback.layer.as_str()), ("GELU", "0"));
    assert_eq!(error.fallback.reason, Reason::Type(DType::F64));
    let warning = "GELU in layer `0` and 1 more of stage 0 is computed by burn's own operations";
    assert!(!warnings().contains(warning), "{}", warnings());
    assert!(builder().fallbacks(Fallbacks::Warn).build().is_ok());
    assert!(warnings().contains(warning), "{}", warnings());
}

/// Tests that `build` refuses bf16 on a device that cannot compute in bf16, such as every device of WebGPU. The error
/// names the stage, the stage's first layer, the device and the types in which the device can compute.
#[test]
fn a_precision_that_the_device_lacks_is_refused() {
    let has_bf16 = open("gpu").remove(0).supports_dtype(FloatDType::BF16);
    assert!(!has_bf16 || !gpu_name().starts_with("wgpu"));
    let built = builder("cpu,gpu", 2, OneFOneB, Recompute::Nothing).precision(Precision::Bf16).build();
    assert_eq!(built.is_ok(), has_bf16);
    if let Err(refused) = built {
        let said = refused.to_string();
        assert!(said.starts_with("stage 1 computes in bf16 (first in `"), "{said}");
        assert!(said.contains(&format!("and its device {} does not: it computes in f32", gpu_name())), "{said}");
    }
}
