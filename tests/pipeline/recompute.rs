//! What a stage computes again in its backwards changes no bit: with dropout, running statistics, halves and lower precision.

use burn::module::Module;
use burn::tensor::Tensor;
use stageline::nn::{block, selective};
use stageline::schedule::{Interleaved, OneFOneB, Schedule, ZbH1};
use stageline::{Batch, Pipeline, Precision, Recompute, Stage};

use crate::mlp::{Error, Layer, Mlp, Noisy, bits, config};

const WIDTH: usize = 6;

/// Two layers with dropout and running statistics, of which one is marked in the other's part.
#[derive(Module, Debug)]
struct Marked {
    outer: Noisy,
    inner: Noisy,
}

impl Stage for Marked {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        block(self, input, |marked, input| {
            let hidden = marked.outer.forward(input);
            // The same parameters twice, and a part within a part.
            selective(&marked.inner, hidden.clone() + marked.outer.forward(hidden), Noisy::forward)
        })
    }
}

/// Parameters and running statistics after three steps.
fn train(recompute: Recompute, schedule: &'static (dyn Schedule + Sync), precision: Precision) -> Vec<Vec<u32>> {
    let Mlp { mut layers, error } = Mlp::new(6, WIDTH, 3);
    let mut noisy = |salt| Noisy::new(layers.pop().unwrap(), salt);
    let mut marked = |salt| Marked { outer: noisy(salt), inner: noisy(salt + 1) };
    let (first, second) = (marked(0), marked(2));
    let config = || config().recompute(recompute);
    // A layer without marks is in front, so that what comes into a part is part of a graph.
    let (front, back) = (layers.pop().unwrap(), layers.pop().unwrap());
    let chain = Pipeline::builder().stage((front, first), config()).stage(second, config());
    let chain = chain.stage(back, config()).loss((Vec::<Layer>::new(), error), config());
    let builder = chain.schedule(schedule).micro_batches(4).precision(precision).cores_per_stage(1);
    let mut pipeline = builder.build().unwrap();
    for step in 0..3 {
        let (input, target) = Mlp::batch(11, WIDTH, true, step);
        pipeline.step(Batch::new(input, target)).unwrap();
    }
    let mut modules = pipeline.into_modules();
    vec![
        bits(&modules.take::<(Layer, Marked)>(0).unwrap()),
        bits(&modules.take::<Marked>(1).unwrap()),
        bits(&modules.take::<Layer>(2).unwrap()),
        bits(&modules.take::<(Vec<Layer>, Error)>(3).unwrap()),
    ]
}

#[test]
fn dropout_running_statistics_halves_and_precision_are_the_same_bits() {
    const INTERLEAVED: &Interleaved = &Interleaved { chunks: 2 };
    for precision in [Precision::Full, Precision::Bf16] {
        let kept = train(Recompute::Nothing, &OneFOneB, precision);
        for schedule in [&OneFOneB as &'static (dyn Schedule + Sync), &ZbH1, INTERLEAVED] {
            for recompute in [Recompute::Nothing, Recompute::Selective, Recompute::Blocks(1), Recompute::Full] {
                let again = train(recompute, schedule, precision);
                assert!(again == kept, "{recompute:?} {} {precision}", schedule.name());
            }
        }
    }
}
