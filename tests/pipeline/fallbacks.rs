//! Tests of what a training says about operations that the kernels for its devices do not compute, and of a training
//! that refuses them.

use burn::module::{Module, Param};
use burn::optim::AdamWConfig;
use burn::tensor::{DType, Device, FloatDType, Tensor};
use stageline::nn::{Operation, Reason, gelu};
use stageline::{
    Batch, BuildError, Cut, Failure, Fallbacks, Pipeline, PipelineBuilder, Precision, RefusedFallback, Stage,
    StageConfig, StepError, Verify,
};

use crate::mlp::{Layer, Mlp, Target};
use crate::model::{Bytes, Logits, Shape, gpt};
use crate::runs::Place;

/// Tests the warnings about slower operations in a bf16 training on CPUs, whose kernels take f32 only. Each operation
/// is named once, with its first layer and the number of its other layers. The layers are `0` for the embeddings, `1.0`
/// and `1.1` for the blocks, and `2` for the head. The cross-entropy is not named, because its logits are in f32.
#[test]
fn operations_without_a_kernel_are_named_with_their_layers() {
    let place = Place::new();
    let said = |flags: &str| {
        let output = place.run(&format!("--stages 1 --steps 2 {flags}"));
        let said = place.shown(&output);
        assert!(output.status.success(), "{said}");
        said
    };
    let fell_back = "is computed by burn's own operations";
    for flags in ["", "--fallbacks refuse"] {
        assert!(!said(flags).contains(fell_back));
    }
    for flags in ["", "--fallbacks warn"] {
        let said = said(&format!("--precision bf16 {flags}"));
        let reason = "the kernels of this device take no elements of the type BF16; use f32";
        for expected in [
            format!("causal attention in layer `1.0` and 1 more of stage 0 {fell_back}, which are slower: {reason}"),
            format!("GELU in layer `1.0` and 1 more of stage 0 {fell_back}, which are slower: {reason}"),
            format!("layer normalisation in layer `1.0` and 2 more of stage 0 {fell_back}, which are slower: {reason}"),
        ] {
            assert_eq!(said.matches(&expected).count(), 1, "{expected} in {said}");
        }
        assert_eq!(said.matches(fell_back).count(), 3, "{said}");
    }
}

/// Tests that a training with `--fallbacks refuse` ends before its first step if the device has no kernel for an
/// operation. The error names the first operation without a kernel, its layer, and the number of further operations
/// without a kernel. It also names the flag that permits these operations.
#[test]
fn a_training_can_refuse_operations_without_a_kernel() {
    let said = Place::new().refused("--stages 1 --steps 2 --precision bf16 --fallbacks refuse");
    let expected = "Error: layer normalisation in layer `1.0` of stage 0, on cpu, is refused: it is computed by burn's \
                    own operations, which are slower: the kernels of this device take no elements of the type BF16; \
                    use f32, or run it all the same, by `.fallbacks(Fallbacks::Warn)` (`--fallbacks warn`); 6 more \
                    operations are refused\n";
    assert!(said.contains(expected), "{said}");
    // The warnings of the same operations are not logged as well.
    assert_eq!(said.matches("is computed by burn's own operations").count(), 1, "{said}");
}

/// Returns the builder of a GPT pipeline in bf16 on the CPU. Stage 0 has the embeddings (layer `0`) and a block
/// (`1.0`). Stage 1 has a block (`0.0`) and the head (`1`).
fn in_bf16() -> PipelineBuilder<Bytes, Logits, Bytes> {
    let config = || StageConfig::new(Device::flex(), AdamWConfig::new().init(), 1e-3);
    let cut: Cut = "0,2".parse().unwrap();
    let row = gpt(Shape { layers: 2, width: 16, context: 16 }, 7);
    row.pipeline(&cut, [config(), config()]).unwrap().precision(Precision::Bf16)
}

/// Tests the setting `Fallbacks::Refuse`, with which `build` returns an error for an operation without a kernel. The
/// error has the stage, the device, the layer and the reason. It counts an operation once for all replicas.
#[test]
fn a_refused_operation_is_an_error_with_its_stage_and_layer() {
    let refusing = || in_bf16().fallbacks(Fallbacks::Refuse);
    let two_replicas = || refusing().replica([Device::flex(), Device::flex()]);
    for refused in [refusing().build(), two_replicas().build()] {
        let refused = refused.err().unwrap();
        let BuildError::Fallback(error) = &refused else { panic!("{refused}") };
        assert_eq!((error.stage, error.device.as_str(), error.more), (0, "cpu", 6), "{refused}");
        assert_eq!((error.fallback.operation, error.fallback.layer.as_str()), ("layer normalisation", "1.0"));
        assert_eq!(error.fallback.reason, Reason::Type(DType::BF16));
    }
    assert!(refusing().precision(Precision::Full).build().is_ok());
    assert!(in_bf16().build().is_ok() && in_bf16().fallbacks(Fallbacks::Warn).build().is_ok());
}

#[test]
fn a_verification_refuses_what_build_refuses() {
    let batch = |_: usize| -> Batch<Bytes, Bytes> { unreachable!("no pipeline is built") };
    let verified = Verify::new().steps(1).pipeline(|| in_bf16().fallbacks(Fallbacks::Refuse), batch, &[]);
    let said = verified.err().unwrap().to_string();
    assert!(said.starts_with("layer normalisation in layer `1.0` of stage 0, on cpu, is refused: "), "{said}");
}

const WIDTH: usize = 8;

/// A layer for tests whose GELU is not known to `build`.
#[derive(Module, Debug)]
struct Unknown {
    layer: Layer,
    /// A factor in f64, which makes GELU compute in f64. With it, the layer lists its GELU, but its parameters have two
    /// types. `None` if GELU computes in the type of the layer; the layer then does not list it.
    factor: Option<Param<Tensor<2>>>,
}

impl Stage for Unknown {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let hidden = self.layer.forward(input);
        match &self.factor {
            Some(factor) => gelu(hidden.cast(FloatDType::F64) * factor.val()).cast(FloatDType::F32),
            None => gelu(hidden),
        }
    }

    fn operations(&self) -> Vec<Operation> {
        self.factor.iter().map(|_| Operation::gelu()).collect()
    }
}

/// Returns the builder of a pipeline of two stages on the CPU. Stage 1 has a layer with a GELU that is not known to
/// `build`, and the loss. GELU computes in `dtype`: in f64, or in the precision f32 or bf16 of the pipeline.
fn with_unknown(dtype: DType) -> PipelineBuilder<Tensor<2>, Tensor<2>, Target> {
    let config = || StageConfig::new(Device::flex(), AdamWConfig::new().init(), 1e-3);
    let Mlp { mut layers, error } = Mlp::new(2, WIDTH, 3);
    let device = Device::flex().autodiff();
    let factor = || Param::from_tensor(Tensor::<2>::ones([1, WIDTH], (&device, DType::F64)));
    let unknown = Unknown { layer: layers.pop().unwrap(), factor: (dtype == DType::F64).then(factor) };
    let chain = Pipeline::builder().stage(layers.pop().unwrap(), config());
    let precision = if dtype == DType::BF16 { Precision::Bf16 } else { Precision::Full };
    chain.loss((unknown, error), config()).micro_batches(2).precision(precision)
}

/// Tests the setting `Fallbacks::Refuse` with an operation without a kernel that is not known to `build`: its layer
/// does not list it, or the stage has parameters of two types. The first forward of a step or of an evaluation returns
/// an error with the stage, the device, the layer and the reason.
#[test]
fn an_operation_that_build_does_not_know_is_refused_in_the_first_forward() {
    let batch = || {
        let (input, target) = Mlp::batch(4, WIDTH, false, 4);
        Batch::new(input, target)
    };
    for dtype in [DType::BF16, DType::F64] {
        let refusing = || with_unknown(dtype).fallbacks(Fallbacks::Refuse).build().unwrap();
        for error in [refusing().step(batch()).unwrap_err(), refusing().eval(batch()).unwrap_err()] {
            let StepError::Stage(failure) = &error else { panic!("{error}") };
            let Failure::Error(cause) = &failure.failure else { panic!("{error}") };
            let refused = cause.downcast_ref::<RefusedFallback>().unwrap();
            assert_eq!((failure.stage, refused.stage, refused.device.as_str(), refused.more), (1, 1, "cpu", 0));
            assert_eq!((refused.fallback.operation, refused.fallback.layer.as_str()), ("GELU", "0"), "{error}");
            assert_eq!(refused.fallback.reason, Reason::Type(dtype));
        }
    }
    assert!(with_unknown(DType::BF16).build().unwrap().step(batch()).is_ok());
    assert!(with_unknown(DType::BF16).fallbacks(Fallbacks::Warn).build().unwrap().step(batch()).is_ok());
    assert!(with_unknown(DType::F32).fallbacks(Fallbacks::Refuse).build().unwrap().step(batch()).is_ok());
}
