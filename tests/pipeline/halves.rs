//! Tests of rows whose blocks may be divided between two stages (`Halves`): the trained parameters have the same bits
//! with every cut, and checkpoints fit every cut.

use burn::module::Module;
use burn::nn::LinearConfig;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor, TensorData, activation::relu};
use stageline::nn::{Linear, block};
use stageline::{Batch, Clip, Cut, Halves, LossStage, Pipeline, Recompute, Row, Stage, StageConfig, Weight};
use stageline_train::fingerprint;

const WIDTH: usize = 6;

/// A block with two residual layers, each of which is a half: `x + relu(up(x))`, and the same with `down`.
#[derive(Module, Debug)]
struct Twice {
    up: Option<Linear>,
    down: Option<Linear>,
}

#[derive(Module, Debug)]
struct End {
    linear: Linear,
}

fn linear(device: &Device) -> Linear {
    LinearConfig::new(WIDTH, WIDTH).init(device).into()
}

impl Stage for Twice {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        block(self, input, |block, input| {
            let layers = block.up.iter().chain(&block.down);
            layers.fold(input, |input, layer| input.clone() + relu(layer.forward(input)))
        })
    }
}

impl Halves for Twice {
    const NAMES: [&'static str; 2] = ["up", "down"];

    fn halves(self) -> [Self; 2] {
        [Self { up: self.up, down: None }, Self { up: None, down: self.down }]
    }

    fn join(self, second: Self) -> Self {
        Self { up: self.up, down: second.down }
    }

    fn is_first_half(&self) -> bool {
        self.down.is_none()
    }
}

impl Stage for End {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.linear.forward(input)
    }
}

impl LossStage for End {
    type Target = Tensor<2>;

    fn loss(&self, output: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
        (output - target).square().sum()
    }

    fn weight(&self, target: &Tensor<2>) -> Weight {
        target.dims()[0].into()
    }
}

/// Returns a row of three blocks, whose layers are 0 (the first one), 1 to 6 (the halves of the blocks) and 7.
fn row() -> Row<End, Twice, End> {
    let end = |device: &Device| End { linear: linear(device) };
    let block = |_, device: &Device| Twice { up: Some(linear(device)), down: Some(linear(device)) };
    Row::new(end, 3, block, end).seed(11).halved()
}

fn pipeline(cut: &str, recompute: Recompute) -> Pipeline<Tensor<2>, Tensor<2>, Tensor<2>> {
    let cut: Cut = cut.parse().unwrap();
    let config = StageConfig::new(Device::flex(), AdamWConfig::new().init(), 1e-2).recompute(recompute);
    row()
        .pipeline(&cut, vec![config; cut.stages()])
        .unwrap()
        .micro_batches(2)
        .clip(Clip::GlobalNorm(0.1))
        .cores_per_stage(1)
        .build()
        .unwrap()
}

fn batch() -> Batch<Tensor<2>, Tensor<2>> {
    // The numbers do not come from `Tensor::random`, because other tests draw their seeded models from the same
    // generator at the same time.
    let values = |first: usize| {
        let values: Vec<f32> = (first..first + 4 * WIDTH).map(|at| (at as f32).sin()).collect();
        Tensor::from_data(TensorData::new(values, [4, WIDTH]), &Device::flex())
    };
    Batch::new(values(0), values(1000))
}

fn trained(cut: &str, recompute: Recompute, batch: &Batch<Tensor<2>, Tensor<2>>) -> String {
    let mut pipeline = pipeline(cut, recompute);
    (0..3).for_each(|_| drop(pipeline.step(batch.clone()).unwrap()));
    let model = row().join(pipeline.into_modules()).unwrap();
    assert!(model.1.len() == 3 && model.1.iter().all(|block| block.up.is_some() && block.down.is_some()), "{cut}");
    fingerprint(&model).0
}

#[test]
fn a_stage_may_end_within_a_block() {
    let batch = batch();
    let expected = trained("0", Recompute::Nothing, &batch);
    for second in 1..8 {
        assert_eq!(trained(&format!("0,{second}"), Recompute::Nothing, &batch), expected, "0,{second}");
        for third in second + 1..8 {
            let cut = format!("0,{second},{third}");
            assert_eq!(trained(&cut, Recompute::Full, &batch), expected, "{cut}");
        }
    }
    assert_eq!(trained("0,1,2,3,4,5,6,7", Recompute::Nothing, &batch), expected);
}

#[test]
fn checkpoints_name_parameters_by_their_blocks_in_every_cut() {
    let batch = batch();
    let mut through = pipeline("0,4", Recompute::Nothing);
    through.step(batch.clone()).unwrap();
    let kept = through.checkpoint().unwrap();
    let names: Vec<_> = kept.parameters.keys().map(String::as_str).collect();
    let of_blocks = ["blocks.1.down.weight", "blocks.1.up.weight", "blocks.2.down.weight"];
    assert!(of_blocks.iter().all(|name| names.contains(name)) && names.len() == 16, "{names:?}");
    through.step(batch.clone()).unwrap();
    for cut in ["0", "0,3", "0,2,6"] {
        let cut: Cut = cut.parse().unwrap();
        let config = StageConfig::new(Device::flex(), AdamWConfig::new().init(), 1e-2);
        let builder = row().pipeline(&cut, vec![config; cut.stages()]).unwrap();
        let mut again = builder
            .micro_batches(2)
            .clip(Clip::GlobalNorm(0.1))
            .cores_per_stage(1)
            .restore(kept.clone())
            .build()
            .unwrap();
        again.step(batch.clone()).unwrap();
        assert!(again.checkpoint().unwrap() == through.checkpoint().unwrap(), "{cut}");
    }
}

#[test]
fn costs_have_an_entry_for_each_half() {
    let counted = row().count(Tensor::zeros([1, WIDTH], &Device::flex()));
    let names: Vec<_> = counted.layers().iter().map(|layer| layer.name.as_str()).collect();
    let of_blocks = ["blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down", "blocks.2.up", "blocks.2.down"];
    assert_eq!(names, [&["first"][..], &of_blocks, &["last"]].concat());
    let each = (WIDTH * WIDTH + WIDTH) as u64;
    assert!(counted.layers().iter().all(|layer| layer.parameters == each && layer.flops > 0.0), "{counted:?}");
    assert_eq!((counted.cut(2).unwrap().to_string(), row().layers()), ("0,4".to_owned(), 8));
    assert_eq!(row().sizes().parameters(), counted.parameters());
}
