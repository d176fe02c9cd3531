//! Tests user-defined models with PyTorch weights: names, layouts, frozen parameters, and exports.

use std::num::NonZero;
use std::path::Path;

use burn::module::{Lora, Module, Param, ParamId, QLora, Quantizer};
use burn::nn::conv::{Conv1d, Conv1dConfig};
use burn::nn::{LayerNorm, LayerNormConfig, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::quantization::{Calibration, QuantValue};
use burn::tensor::{Device, Tensor};
use stageline::checkpoint::{Saved, Store};
use stageline::nn::Linear;
use stageline::{AccumulatedBatchNorm, Batch, Cut, LossStage, Pipeline, Row, Stage, StageConfig, Weight};
use stageline_hub::{Dtype, FolderError, Layout, ModelFolder, TensorLayout, Values};
use stageline_models::{ModelError, TorchFormat, TorchWeights};

#[derive(Module, Debug)]
struct First {
    conv: Conv1d,
    norm: AccumulatedBatchNorm,
}

#[derive(Module, Debug)]
struct Block {
    up: Linear,
    norm: LayerNorm,
}

#[derive(Module, Debug)]
struct Last {
    scale: Param<Tensor<1>>,
    out: Linear,
}

impl Stage for First {
    type Input = Tensor<3>;
    type Output = Tensor<3>;
    fn forward(&self, input: Tensor<3>) -> Tensor<3> {
        self.norm.forward(self.conv.forward(input))
    }
}

impl Stage for Block {
    type Input = Tensor<3>;
    type Output = Tensor<3>;
    fn forward(&self, input: Tensor<3>) -> Tensor<3> {
        self.norm.forward(self.up.forward(input))
    }
}

impl Stage for Last {
    type Input = Tensor<3>;
    type Output = Tensor<3>;
    fn forward(&self, input: Tensor<3>) -> Tensor<3> {
        self.out.forward(input * self.scale.val().unsqueeze())
    }
}

impl LossStage for Last {
    type Target = Tensor<3>;
    fn loss(&self, output: Tensor<3>, target: Tensor<3>) -> Tensor<1> {
        (output - target).square().sum()
    }
    fn weight(&self, target: &Tensor<3>) -> Weight {
        target.dims()[0].into()
    }
}

const LENGTH: usize = 4;

fn row() -> Row<First, Block, Last> {
    row_with_outputs(3)
}

/// Returns a model as a row of layers with 2 blocks, whose norms are frozen. The last layer has `outputs` outputs.
fn row_with_outputs(outputs: usize) -> Row<First, Block, Last> {
    Row::new(
        |device| First {
            conv: Conv1dConfig::new(2, 5, 1).init(device),
            norm: AccumulatedBatchNorm::from(burn::nn::BatchNormConfig::new(5).init(device)),
        },
        2,
        |_, device| Block {
            up: LinearConfig::new(LENGTH, LENGTH).with_bias(false).init(device).into(),
            norm: LayerNormConfig::new(LENGTH).init(device).no_grad(),
        },
        move |device| Last {
            scale: Param::from_tensor(Tensor::ones([LENGTH], device)),
            out: LinearConfig::new(LENGTH, outputs).init(device).into(),
        },
    )
    .names("stem", "blocks", "head")
}

fn format() -> TorchFormat {
    TorchFormat::new().rename("blocks", "body.layers").rename("stem.norm", "stem.bn").rename("head.out", "classifier")
}

/// The model's tensors with PyTorch's names and shapes, except `classifier.bias`.
const TENSORS: [(&str, &[usize]); 14] = [
    ("stem.conv.weight", &[5, 2, 1]),
    ("stem.conv.bias", &[5]),
    ("stem.bn.weight", &[5]),
    ("stem.bn.bias", &[5]),
    ("stem.bn.running_mean", &[5]),
    ("stem.bn.running_var", &[5]),
    ("body.layers.0.up.weight", &[LENGTH, LENGTH]),
    ("body.layers.0.norm.weight", &[LENGTH]),
    ("body.layers.0.norm.bias", &[LENGTH]),
    ("body.layers.1.up.weight", &[LENGTH, LENGTH]),
    ("body.layers.1.norm.weight", &[LENGTH]),
    ("body.layers.1.norm.bias", &[LENGTH]),
    ("head.scale", &[LENGTH]),
    ("classifier.weight", &[3, LENGTH]),
];

/// Returns the test values of a tensor, in row-major order. They depend on the tensor's name.
fn values(name: &str, shape: &[usize]) -> Vec<f32> {
    let start = name.bytes().map(usize::from).sum::<usize>() % 17;
    (0..shape.iter().product()).map(|index| 0.1 + (start + index * 5 % 23) as f32 / 16.0).collect()
}

/// Writes the model's weights to a folder, with PyTorch's names and layouts. `change` may add, remove and change
/// tensors.
fn written(folder: &Path, change: impl FnOnce(&mut Vec<TensorLayout>)) {
    let layout = |(name, shape): (&str, &[usize])| TensorLayout {
        name: name.to_owned(),
        dtype: Dtype::F32,
        shape: shape.to_vec(),
    };
    let bias: (&str, &[usize]) = ("classifier.bias", &[3]);
    let mut tensors: Vec<_> = TENSORS.into_iter().chain([bias]).map(layout).collect();
    change(&mut tensors);
    let layouts = tensors.clone();
    let value = |name: &str| {
        let TensorLayout { dtype, shape, .. } = layouts.iter().find(|tensor| tensor.name == name).unwrap();
        let bytes = vec![0; shape.iter().product::<usize>() * 8];
        Ok::<Values, FolderError>(if *dtype == Dtype::F64 {
            Values::Bytes(bytes.into())
        } else {
            values(name, shape).into()
        })
    };
    Layout::single(tensors).unwrap().write(folder, value).unwrap();
}

fn pipeline(row: &Row<First, Block, Last>, cut: &str) -> Pipeline<Tensor<3>, Tensor<3>, Tensor<3>> {
    let cut: Cut = cut.parse().unwrap();
    let config = || StageConfig::new(Device::flex(), AdamWConfig::new().init(), 1e-2);
    row.pipeline(&cut, (0..cut.stages()).map(|_| config())).unwrap().micro_batches(2).build().unwrap()
}

fn input(samples: usize) -> Tensor<3> {
    Tensor::<1, burn::tensor::Int>::arange(0..(samples * 2 * LENGTH) as i64, &Device::flex())
        .float()
        .reshape([samples, 2, LENGTH])
        .sin()
}

fn refused(row: Row<First, Block, Last>, change: impl FnOnce(&mut Vec<TensorLayout>)) -> ModelError {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path(), change);
    TorchWeights::open(dir.path(), format()).unwrap().load(row).err().unwrap()
}

/// Computes the model's output for one sample in f64, from the stored values, as PyTorch defines the layers.
fn expected(input: &[f64]) -> Vec<f64> {
    let stored = |name: &str, shape: &[usize]| values(name, shape).into_iter().map(f64::from).collect::<Vec<_>>();
    let (conv, bias) = (stored("stem.conv.weight", &[5, 2, 1]), stored("stem.conv.bias", &[5]));
    let [weight, shift, mean, variance] =
        ["weight", "bias", "running_mean", "running_var"].map(|part| stored(&format!("stem.bn.{part}"), &[5]));
    let linear = |row: &[f64], weight: &[f64], bias: Option<&[f64]>| {
        let outputs = weight.len() / row.len();
        let dot =
            |output: usize| (0..row.len()).map(|input| row[input] * weight[output * row.len() + input]).sum::<f64>();
        (0..outputs).map(|output| dot(output) + bias.map_or(0.0, |bias| bias[output])).collect::<Vec<_>>()
    };
    let mut found = Vec::new();
    for channel in 0..5 {
        let convolved = (0..LENGTH)
            .map(|at| bias[channel] + conv[channel * 2] * input[at] + conv[channel * 2 + 1] * input[LENGTH + at]);
        let normal =
            |value: f64| (value - mean[channel]) / (variance[channel] + 1e-5).sqrt() * weight[channel] + shift[channel];
        let mut row: Vec<f64> = convolved.map(normal).collect();
        for block in 0..2 {
            let name = |part: &str| format!("body.layers.{block}.{part}");
            row = linear(&row, &stored(&name("up.weight"), &[LENGTH, LENGTH]), None);
            let mean = row.iter().sum::<f64>() / LENGTH as f64;
            let variance = row.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / LENGTH as f64;
            let (gamma, beta) = (stored(&name("norm.weight"), &[LENGTH]), stored(&name("norm.bias"), &[LENGTH]));
            row = (0..LENGTH).map(|at| (row[at] - mean) / (variance + 1e-5).sqrt() * gamma[at] + beta[at]).collect();
        }
        let scale = stored("head.scale", &[LENGTH]);
        row.iter_mut().zip(scale).for_each(|(value, scale)| *value *= scale);
        found.extend(linear(&row, &stored("classifier.weight", &[3, LENGTH]), Some(&stored("classifier.bias", &[3]))));
    }
    found
}

#[test]
fn stored_weights_compute_what_pytorch_defines_in_every_cut() {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path(), |_| ());
    let row = TorchWeights::open(dir.path(), format()).unwrap().load(row()).unwrap();
    let input = input(4);
    let outputs = ["0", "0,2", "0,1,3"].map(|cut| {
        let output = pipeline(&row, cut).infer(input.clone()).unwrap().into_data();
        output.iter::<f32>().collect::<Vec<_>>()
    });
    assert!(outputs.iter().all(|output| output == &outputs[0]));
    let numbers: Vec<f64> = input.into_data().iter::<f32>().map(f64::from).collect();
    let expected: Vec<f64> = numbers.chunks(2 * LENGTH).flat_map(expected).collect();
    assert_eq!(expected.len(), outputs[0].len());
    for (found, expected) in outputs[0].iter().zip(expected) {
        assert!((f64::from(*found) - expected).abs() < 2e-5 * expected.abs().max(1.0), "{found} {expected}");
    }
}

#[test]
fn an_export_without_training_has_the_bytes_that_were_read() {
    let [from, to] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    written(from.path(), |tensors| {
        tensors.push(TensorLayout { name: "stem.bn.counted".into(), dtype: Dtype::F32, shape: vec![] });
    });
    let weights = TorchWeights::open(from.path(), format()).unwrap().keep(|name| name == "stem.bn.counted");
    let row = weights.load(row()).unwrap();
    weights.check_export(&row, to.path()).unwrap();
    weights.export(&row, pipeline(&row, "0,2").into_modules(), to.path()).unwrap();
    let [read, exported] = [&from, &to].map(|dir| std::fs::read(dir.path().join("model.safetensors")).unwrap());
    assert!(read == exported);
    let error = weights.check_export(&row, from.path()).unwrap_err().to_string();
    assert!(error.contains("the model is read from this folder"), "{error}");
}

/// Tests files with TensorFlow's names for the parameters of norms, such as the first BERT models on the Hugging Face
/// hub. Norms are read and exported under these names.
#[test]
fn norms_of_older_files_are_read_and_exported_under_their_names() {
    let [from, older, to] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    written(from.path(), |_| ());
    let source = ModelFolder::open(from.path()).unwrap();
    let is_norm = |name: &str| name.contains(".norm.") || name.contains(".bn.");
    let old = |name: &str| match is_norm(name) {
        true => name.replace("weight", "gamma").replace("bias", "beta"),
        false => name.to_owned(),
    };
    let tensors = source.tensors().map(|(name, info)| TensorLayout {
        name: old(name),
        dtype: info.dtype,
        shape: info.shape.clone(),
    });
    let value = |name: &str| {
        let found = source.tensors().find(|(usual, _)| old(usual) == name).unwrap().0;
        source.tensor(found)
    };
    Layout::single(tensors).unwrap().write(older.path(), value).unwrap();
    let outputs = [&from, &older].map(|folder| {
        let row = TorchWeights::open(folder.path(), format()).unwrap().load(row()).unwrap();
        pipeline(&row, "0,2").infer(input(4)).unwrap().into_data()
    });
    assert_eq!(outputs[0], outputs[1]);
    let weights = TorchWeights::open(older.path(), format()).unwrap();
    let row = weights.load(row()).unwrap();
    weights.export(&row, pipeline(&row, "0,2").into_modules(), to.path()).unwrap();
    let [read, exported] = [&older, &to].map(|dir| std::fs::read(dir.path().join("model.safetensors")).unwrap());
    assert!(read == exported);
}

#[test]
fn a_training_changes_all_parameters_but_frozen_ones() {
    let [from, to] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    written(from.path(), |_| ());
    let weights = TorchWeights::open(from.path(), format()).unwrap();
    let row = weights.load(row()).unwrap();
    let mut pipeline = pipeline(&row, "0,2");
    pipeline.step(Batch::new(input(4), Tensor::ones([4, 5, 3], &Device::flex()))).unwrap();
    weights.export(&row, pipeline.into_modules(), to.path()).unwrap();
    let [read, trained] = [&from, &to].map(|dir| ModelFolder::open(dir.path()).unwrap());
    let mut frozen = 0;
    for (name, _) in read.tensors() {
        let is_frozen = name.starts_with("body.layers.") && name.contains(".norm.");
        let [before, after] = [&read, &trained].map(|folder| folder.tensor(name).unwrap().to_f32().unwrap());
        assert_eq!(before == after, is_frozen, "{name}");
        frozen += usize::from(is_frozen);
    }
    assert_eq!(frozen, 4);
}

#[test]
fn a_new_head_is_drawn_and_exported_in_its_own_shape() {
    let [from, to] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    written(from.path(), |tensors| {
        tensors.retain(|tensor| tensor.name != "classifier.bias");
        tensors.push(TensorLayout { name: "cls.weight".into(), dtype: Dtype::BF16, shape: vec![3] });
    });
    let weights = TorchWeights::open(from.path(), format())
        .unwrap()
        .draw(|name| name.starts_with("classifier."))
        .leave_out(|name| name.starts_with("cls."));
    let row = weights.load(row_with_outputs(7)).unwrap();
    let drawn = row_with_outputs(7).init(&Device::flex()).2.out.weight.val().transpose();
    weights.export(&row, pipeline(&row, "0,2").into_modules(), to.path()).unwrap();
    let exported = ModelFolder::open(to.path()).unwrap();
    assert_eq!(exported.tensors().len(), TENSORS.len() + 1);
    assert!(exported.expect("classifier.bias", &[7]).is_ok());
    let weight = exported.expect("classifier.weight", &[7, LENGTH]).unwrap().to_f32().unwrap();
    assert_eq!(weight, drawn.into_data().iter::<f32>().collect::<Vec<_>>());
    // The exported folder is loaded without `draw` and `leave_out`.
    TorchWeights::open(to.path(), format()).unwrap().load(row_with_outputs(7)).unwrap();
}

#[test]
fn a_model_that_was_not_read_is_exported_under_its_names_in_pytorch() {
    let dir = tempfile::tempdir().unwrap();
    let (row, first) = (row(), row().init(&Device::flex()).1.swap_remove(0));
    format().export(&row, pipeline(&row, "0,2").into_modules(), dir.path()).unwrap();
    let folder = ModelFolder::open(dir.path()).unwrap();
    let found: Vec<_> = folder.tensors().map(|(name, info)| (name, info.shape.as_slice())).collect();
    let mut named = TENSORS.to_vec();
    named.push(("classifier.bias", &[3]));
    named.sort_unstable();
    assert_eq!(found, named);
    let weight = folder.tensor("body.layers.0.up.weight").unwrap().to_f32().unwrap();
    assert_eq!(weight, first.up.weight.val().transpose().into_data().iter::<f32>().collect::<Vec<_>>());
}

#[test]
fn parameters_and_tensors_without_a_counterpart_are_refused() {
    let missing = refused(row(), |tensors| tensors.retain(|tensor| tensor.name != "head.scale"));
    assert!(matches!(&missing, ModelError::NotStored { parameter, .. } if parameter == "head.scale"));
    assert!(missing.to_string().contains("`rename`"), "{missing}");
    let shape = refused(row_with_outputs(7), |_| ()).to_string();
    for part in ["head.out.weight", "classifier.weight", "[3, 4]", "[7, 4]", "`draw`"] {
        assert!(shape.contains(part), "{shape}");
    }
    let more = |tensors: &mut Vec<TensorLayout>| {
        for name in ["lm.weight", "lm.bias"] {
            tensors.push(TensorLayout { name: name.to_owned(), dtype: Dtype::F32, shape: vec![1] });
        }
    };
    let unknown = refused(row(), more).to_string();
    for part in ["model.safetensors", "`lm.bias` (and 1 more)", "`keep`", "`leave_out`"] {
        assert!(unknown.contains(part), "{unknown}");
    }
    let dtype = refused(row(), |tensors| tensors[0].dtype = Dtype::F64);
    assert!(matches!(&dtype, ModelError::Type { name, .. } if name == "stem.conv.weight"));
}

#[test]
fn two_parameters_of_one_name_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path(), |_| ());
    let same = format().rename_with(|name| name.replace("layers.1.", "layers.0."));
    let row = row();
    let error = same.export(&row, pipeline(&row, "0,2").into_modules(), dir.path().join("new")).unwrap_err();
    for error in [error, TorchWeights::open(dir.path(), same).unwrap().load(row).err().unwrap()] {
        let text = error.to_string();
        for part in ["blocks.0.up.weight", "blocks.1.up.weight", "body.layers.0.up.weight", "`rename`"] {
            assert!(text.contains(part), "{text}");
        }
    }
}

/// Tests a folder with two shards, of which one has only a tensor that is left out. The export has only the other
/// shard, with the same bf16 values.
#[test]
fn shards_in_bf16_are_read_and_exported_without_what_is_left_out() {
    let [from, sharded, to] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    written(from.path(), |tensors| tensors.iter_mut().for_each(|tensor| tensor.dtype = Dtype::BF16));
    let [first, second] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let place = |name: &str| sharded.path().join(name);
    std::fs::copy(from.path().join("model.safetensors"), place(first)).unwrap();
    let other = tempfile::tempdir().unwrap();
    let pooler = TensorLayout { name: "pooler.weight".into(), dtype: Dtype::F32, shape: vec![2] };
    let layout = Layout::single([pooler]).unwrap();
    layout.write(other.path(), |_| Ok::<_, FolderError>(vec![1.0, 2.0])).unwrap();
    std::fs::copy(other.path().join("model.safetensors"), place(second)).unwrap();
    let source = ModelFolder::open(from.path()).unwrap();
    let mut map: serde_json::Map<_, _> = source.tensors().map(|(name, _)| (name.to_owned(), first.into())).collect();
    map.insert("pooler.weight".into(), second.into());
    let index = serde_json::json!({ "metadata": { "total_size": 1 }, "weight_map": map });
    std::fs::write(place("model.safetensors.index.json"), index.to_string()).unwrap();
    let weights = TorchWeights::open(sharded.path(), format()).unwrap();
    assert!(weights.load(row()).err().unwrap().to_string().contains("`pooler.weight`"));
    let weights = weights.leave_out(|name| name.starts_with("pooler."));
    let row = weights.load(row()).unwrap();
    weights.export(&row, pipeline(&row, "0,2").into_modules(), to.path()).unwrap();
    let exported = ModelFolder::open(to.path()).unwrap();
    assert_eq!(exported.tensors().len(), source.tensors().len());
    for (name, info) in source.tensors() {
        let [read, written] = [&source, &exported].map(|folder| folder.tensor(name).unwrap());
        assert_eq!((info.dtype, read.bytes), (Dtype::BF16, written.bytes), "{name}");
    }
    assert!(to.path().join(first).exists() && !to.path().join(second).exists());
}

/// Returns the row with LoRA adapters in its blocks. If `quantised` is true, the adapted weights are quantised (QLoRA).
fn adapted(quantised: bool) -> Row<First, Block, Last> {
    let (first, last) = (row(), row());
    let up = move |linear: Linear, device: &Device| match quantised {
        true => {
            let scheme = device.settings().quantization.scheme.with_value(QuantValue::Q8S);
            linear.apply_qlora(QLora::new(Lora::new(2, 4.0), Quantizer::new(Calibration::MinMax, scheme)))
        }
        false => linear.apply_lora(Lora::new(2, 4.0)),
    };
    Row::new(
        move |device| first.init(device).0,
        2,
        move |index, device| {
            let Block { up: linear, norm } = row().init(device).1.swap_remove(index);
            Block { up: up(linear, device), norm }
        },
        move |device| last.init(device).2,
    )
    .names("stem", "blocks", "head")
}

/// Tests an export after training adapters on loaded weights. The exported weights include the adapters, so that a
/// model without adapters computes the same outputs up to rounding.
#[test]
fn adapters_are_added_to_the_weights_of_an_export() {
    let [from, to] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    written(from.path(), |_| ());
    let weights = TorchWeights::open(from.path(), format()).unwrap();
    let row = weights.load(adapted(false)).unwrap();
    let mut pipeline = pipeline(&row, "0,2");
    let (input, target) = (input(4), Tensor::ones([4, 5, 3], &Device::flex()));
    (0..3).for_each(|_| drop(pipeline.step(Batch::new(input.clone(), target.clone())).unwrap()));
    let expected = pipeline.infer(input.clone()).unwrap();
    weights.export(&row, pipeline.into_modules(), to.path()).unwrap();
    let [read, exported] = [&from, &to].map(|dir| ModelFolder::open(dir.path()).unwrap());
    let names = |folder: &ModelFolder| folder.tensors().map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
    assert_eq!(names(&read), names(&exported));
    let up = |folder: &ModelFolder| folder.tensor("body.layers.1.up.weight").unwrap().to_f32().unwrap();
    assert_ne!(up(&read), up(&exported));
    let merged = TorchWeights::open(to.path(), format()).unwrap().load(self::row()).unwrap();
    let found = self::pipeline(&merged, "0").infer(input).unwrap();
    let apart = (found - expected.clone()).abs().max().into_scalar::<f32>() / expected.abs().max().into_scalar::<f32>();
    assert!(apart < 1e-5, "{apart}");
}

/// Tests that loading a folder into quantised weights is an error, and that an export merges adapters into such
/// weights.
#[test]
fn quantised_parameters_are_not_loaded_and_are_exported_with_their_adapters() {
    let [from, to] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    written(from.path(), |_| ());
    let row = adapted(true);
    format().check_export(&row, to.path()).unwrap();
    let mut trained = pipeline(&row, "0,2");
    let expected = trained.infer(input(4)).unwrap();
    format().export(&row, trained.into_modules(), to.path()).unwrap();
    let merged = TorchWeights::open(to.path(), format()).unwrap().load(self::row()).unwrap();
    let found = pipeline(&merged, "0").infer(input(4)).unwrap();
    let apart = (found - expected.clone()).abs().max().into_scalar::<f32>() / expected.abs().max().into_scalar::<f32>();
    assert!(apart < 1e-4, "{apart}");
    let error = TorchWeights::open(from.path(), format()).unwrap().load(row).err().unwrap();
    assert!(matches!(&error, ModelError::Quantised { parameter } if parameter == "blocks.0.up.weight"), "{error}");
    assert!(error.to_string().contains("`Row::mapped`"), "{error}");
}

/// Tests that a weight shared by two layers needs one tensor name, even if the folder has a tensor for each layer.
#[test]
fn a_tied_parameter_needs_one_name() {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path(), |_| ());
    let id = ParamId::new();
    let tied = move || {
        Row::new(
            |device| row().init(device).0,
            2,
            move |index, device| {
                let mut block = row().init(device).1.swap_remove(index);
                block.up.weight.id = id;
                block
            },
            |device| row().init(device).2,
        )
        .names("stem", "blocks", "head")
    };
    let weights = TorchWeights::open(dir.path(), format()).unwrap();
    let error = weights.load(tied()).err().unwrap().to_string();
    for part in ["blocks.0.up.weight", "blocks.1.up.weight", "body.layers.1.up.weight", "`rename`", "`leave_out`"] {
        assert!(error.contains(part), "{error}");
    }
    let one = format().rename("body.layers.1.up", "body.layers.0.up");
    let weights = TorchWeights::open(dir.path(), one).unwrap().leave_out(|name| name == "body.layers.1.up.weight");
    let row = weights.load(tied()).unwrap();
    let blocks = row.init(&Device::flex()).1;
    let [first, second] = [&blocks[0], &blocks[1]].map(|block| block.up.weight.val().into_data());
    assert_eq!(first, second);
    let expected = values("body.layers.0.up.weight", &[LENGTH, LENGTH]);
    let stored = blocks[0].up.weight.val().transpose().into_data();
    assert_eq!(stored.iter::<f32>().collect::<Vec<_>>(), expected);
}

#[test]
fn other_rows_and_tensors_that_are_left_out_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path(), |_| ());
    let weights = TorchWeights::open(dir.path(), format()).unwrap();
    let other = weights.load(row()).unwrap().names("stem", "layers", "head");
    let refused = |error: ModelError| assert!(matches!(error, ModelError::NotStored { .. }), "{error}");
    refused(weights.check_export(&other, dir.path().join("new")).unwrap_err());
    refused(weights.export(&other, pipeline(&other, "0,2").into_modules(), dir.path().join("new")).unwrap_err());
    let left_out = weights.leave_out(|name| name.starts_with("classifier."));
    let error = left_out.load(row()).err().unwrap();
    assert!(matches!(&error, ModelError::LeftOut { name, .. } if name == "classifier.weight"), "{error}");
    assert!(left_out.draw(|name| name.starts_with("classifier.")).load(row()).is_ok());
}

#[test]
fn an_export_that_would_fail_is_refused_before_the_training() {
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("other");
    written(&other, |_| ());
    std::fs::rename(other.join("model.safetensors"), other.join("model-00001-of-00001.safetensors")).unwrap();
    let error = format().check_export(&row(), &other).unwrap_err().to_string();
    assert!(error.contains("model-00001-of-00001.safetensors"), "{error}");
    format().check_export(&row(), dir.path().join("new")).unwrap();
    assert!(!dir.path().join("new").exists());
    assert!(TorchFormat::new().rename_with(|_| "one".to_owned()).check_export(&row(), dir.path().join("new")).is_err());
}

/// Tests that a checkpoint resumes bit for bit on another cut, after the same PyTorch weights are loaded again.
#[test]
fn checkpoints_of_loaded_weights_resume() {
    let [from, kept] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    written(from.path(), |_| ());
    let weights = TorchWeights::open(from.path(), format()).unwrap();
    let batch = || Batch::new(input(4), Tensor::ones([4, 5, 3], &Device::flex()));
    let outputs = |pipeline: &mut Pipeline<_, Tensor<3>, _>| pipeline.infer(input(4)).unwrap().into_data();
    let mut whole = pipeline(&weights.load(row()).unwrap(), "0,2");
    whole.step(batch()).unwrap();
    let mut store = Store::open(kept.path(), NonZero::<usize>::MIN).unwrap();
    store.save(&whole.checkpoint().unwrap()).unwrap();
    whole.step(batch()).unwrap();
    let cut: Cut = "0,1,3".parse().unwrap();
    let config = || StageConfig::new(Device::flex(), AdamWConfig::new().init(), 1e-2);
    let builder = weights.load(row()).unwrap().pipeline(&cut, [config(), config(), config()]).unwrap();
    let saved = Saved::open(kept.path()).unwrap().read().unwrap();
    let mut resumed = builder.micro_batches(2).restore(saved).build().unwrap();
    resumed.step(batch()).unwrap();
    assert_eq!(outputs(&mut whole), outputs(&mut resumed));
}
