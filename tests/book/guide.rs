//! The listings of the guide (`docs/guide.md`) and of `docs/fine-tuning.md` that are parts of programs, in code that
//! surrounds them. Compiling this file checks them, and a test compares all listings with the pages. Whole programs are
//! in `readme` and `program`, and the listings about language models and weights from PyTorch are in the tests of
//! `stageline-models`.

#![allow(unused)]

/// Tests that every paragraph of the code listings in the README, the guide and the page about fine-tuning is also in a
/// file that compiles.
#[test]
fn the_listings_of_the_pages_are_compiled() {
    let compiled = trimmed(concat!(
        include_str!("guide.rs"),
        include_str!("program.rs"),
        include_str!("readme.rs"),
        include_str!("../../crates/stageline-models/tests/models/guide.rs"),
    ));
    let pages = concat!(
        include_str!("../../README.md"),
        include_str!("../../docs/guide.md"),
        include_str!("../../docs/fine-tuning.md"),
    );
    let listing = |rest: &str| trimmed(rest.split("```").next().unwrap_or_default());
    let listings: Vec<_> = pages.split("```rust,ignore\n").skip(1).map(listing).collect();
    // A whole program must be in one piece, and the paragraphs of other listings may be apart.
    let is_program = |listing: &&String| listing.contains("fn main()");
    let (programs, parts): (Vec<_>, Vec<_>) = listings.iter().partition(is_program);
    let paragraphs = parts.into_iter().flat_map(|listing| listing.split("\n\n"));
    for text in programs.into_iter().map(String::as_str).chain(paragraphs) {
        assert!(compiled.contains(text.trim()), "no compiled file has this listing:\n{text}");
    }
    assert_eq!(pages.matches("```rust").count(), listings.len(), "every listing is `rust,ignore`");
}

fn trimmed(text: &str) -> String {
    text.lines().map(|line| line.trim().to_owned() + "\n").collect()
}

#[rustfmt::skip]
mod classifier {
    use burn::module::Module;
    use burn::tensor::{Int, Tensor};
    use stageline::nn::Linear;
    use stageline::{LossStage, Stage, Weight};

    #[derive(Module, Debug)]
    struct Head {
        linear: Linear,
    }

    impl Stage for Head {
        type Input = Tensor<2>;
        type Output = Tensor<2>;

        fn forward(&self, input: Tensor<2>) -> Tensor<2> {
            self.linear.forward(input)
        }
    }

    impl LossStage for Head {
        type Target = Tensor<1, Int>;                                  // the class of each sample, `[samples]`
        const METRICS: &'static [&'static str] = &["accuracy"];

        fn loss(&self, logits: Tensor<2>, class: Tensor<1, Int>) -> Tensor<1> {
            stageline::nn::cross_entropy(logits, class)                // of logits `[samples, classes]`
        }
        fn weight(&self, class: &Tensor<1, Int>) -> Weight {
            class.dims()[0].into()
        }
        fn metrics(&self, logits: Tensor<2>, class: Tensor<1, Int>) -> Tensor<1> {
            logits.argmax(1).squeeze_dim::<1>(1).equal(class).float().sum()
        }
    }
}

#[rustfmt::skip]
mod convolution {
    use burn::module::Module;
    use burn::nn::conv::Conv2d;
    use burn::tensor::Tensor;
    use stageline::Stage;

    #[derive(Module, Debug)]
    struct Filter {
        conv: Conv2d,
    }

    impl Stage for Filter {
        type Input = Tensor<4>;
        type Output = Tensor<4>;

        fn forward(&self, input: Tensor<4>) -> Tensor<4> {
            let output = self.conv.forward(input); // [batch, output channels, height, width]
            let [_, inputs, height, width] = self.conv.weight.dims(); // input channels of a group, size of the kernel
            stageline::nn::report_flops(2.0 * (output.shape().num_elements() * inputs * height * width) as f64);
            output
        }
    }
}

/// The layers of a small language model in the guide's listings.
mod layers {
    use burn::module::Module;
    use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
    use burn::tensor::{Device, Int, Tensor};
    use stageline::{LossStage, Stage, Weight};

    #[derive(Clone, Copy)]
    pub struct Shape {
        pub layers: usize,
        pub width: usize,
    }

    #[derive(Module, Debug)]
    pub struct Embeddings {
        embedding: Embedding,
    }

    #[derive(Module, Debug)]
    pub struct Block {
        linear: Linear,
    }

    #[derive(Module, Debug)]
    pub struct Head {
        linear: Linear,
    }

    impl Embeddings {
        pub fn new(shape: &Shape, device: &Device) -> Self {
            Self { embedding: EmbeddingConfig::new(256, shape.width).init(device) }
        }
    }

    impl Block {
        pub fn new(shape: &Shape, _: usize, device: &Device) -> Self {
            Self { linear: LinearConfig::new(shape.width, shape.width).init(device) }
        }
    }

    impl Head {
        pub fn new(shape: &Shape, device: &Device) -> Self {
            Self { linear: LinearConfig::new(shape.width, 256).init(device) }
        }
    }

    impl Stage for Embeddings {
        type Input = Tensor<2, Int>;
        type Output = Tensor<3>;

        fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
            self.embedding.forward(tokens)
        }
    }

    impl Stage for Block {
        type Input = Tensor<3>;
        type Output = Tensor<3>;

        fn forward(&self, hidden: Tensor<3>) -> Tensor<3> {
            self.linear.forward(hidden).tanh()
        }
    }

    impl Stage for Head {
        type Input = Tensor<3>;
        type Output = Tensor<3>;

        fn forward(&self, hidden: Tensor<3>) -> Tensor<3> {
            self.linear.forward(hidden)
        }
    }

    impl LossStage for Head {
        type Target = Tensor<2, Int>;

        fn loss(&self, logits: Tensor<3>, next: Tensor<2, Int>) -> Tensor<1> {
            stageline::nn::cross_entropy(logits.flatten(0, 1), next.flatten(0, 1))
        }

        fn weight(&self, next: &Tensor<2, Int>) -> Weight {
            next.shape().num_elements().into()
        }
    }
}

#[rustfmt::skip]
mod row {
    use burn::tensor::{Int, Tensor};
    use stageline::{BoxError, Row, StageConfig};

    use super::layers::{Block, Embeddings, Head, Shape};

    fn listing(shape: Shape, sample: Tensor<2, Int>, configs: Vec<StageConfig>) -> Result<(), BoxError> {
        let row = Row::new(
            move |device| Embeddings::new(&shape, device),           // the first layer
            24,                                                      // the number of blocks
            move |index, device| Block::new(&shape, index, device),
            move |device| Head::new(&shape, device),                 // the last layer, which has the loss
        )
        .seed(7)
        .names("embeddings", "blocks", "head");
        let costs = row.count(sample);             // or row.measure(sample, &device)
        let cut = costs.cut(4)?;                   // or "0,7,14,20".parse::<Cut>()?
        let mut pipeline = row.pipeline(&cut, configs)?.micro_batches(16).build()?;
        Ok(())
    }
}

mod verified {
    use burn::tensor::{Int, Tensor};
    use stageline::{Batch, BoxError, Cut, Row, StageConfig, Verify};

    use super::layers::{Block, Embeddings, Head, Shape};

    type Bytes = Batch<Tensor<2, Int>, Tensor<2, Int>>;

    fn listing(
        (shape, cut): (Shape, Cut),
        configs: impl Fn() -> Vec<StageConfig>,
        batch_of: impl Fn(usize) -> Bytes,
        held_out: Bytes,
    ) -> Result<(), BoxError> {
        let first = move |device: &_| Embeddings::new(&shape, device);
        let row = Row::new(first, 4, move |at, device| Block::new(&shape, at, device), move |d| Head::new(&shape, d));
        let build = || row.pipeline(&cut, configs()).expect("the cut fits the row").micro_batches(8);
        let verification = Verify::new().steps(10).pipeline(build, batch_of, &[held_out])?;
        println!("{verification}");
        assert!(verification.passes());
        Ok(())
    }
}

#[rustfmt::skip]
mod one_struct {
    use burn::module::Module;
    use burn::tensor::{Device, Int, Tensor};
    use stageline::nn::cross_entropy;
    use stageline::{BoxError, Cut, LayeredModel, ModelRow, Stage, StageConfig, Weight};

    use super::layers::{Block, Embeddings, Head, Shape};

    #[derive(Module, Debug)]
    struct Gpt {
        embeddings: Embeddings,
        blocks: Vec<Block>,
        head: Head,
    }

    impl LayeredModel for Gpt {
        type Config = Shape;
        type First = Embeddings;
        type Block = Block;
        type Last = Head;
        type Input = Tensor<2, Int>;
        type Hidden = Tensor<3>;
        type Output = Tensor<3>;
        type Target = Tensor<2, Int>;

        fn blocks(shape: &Shape) -> usize { shape.layers }
        fn init_first(shape: &Shape, device: &Device) -> Embeddings { Embeddings::new(shape, device) }
        fn init_block(shape: &Shape, index: usize, device: &Device) -> Block { Block::new(shape, index, device) }
        fn init_last(shape: &Shape, device: &Device) -> Head { Head::new(shape, device) }
        fn join(embeddings: Embeddings, blocks: Vec<Block>, head: Head) -> Self { Self { embeddings, blocks, head } }

        fn forward_input(embeddings: &Embeddings, tokens: Tensor<2, Int>) -> Tensor<3> { embeddings.forward(tokens) }
        fn forward_block(block: &Block, _index: usize, hidden: Tensor<3>) -> Tensor<3> { block.forward(hidden) }
        fn forward_output(head: &Head, hidden: Tensor<3>) -> Tensor<3> { head.forward(hidden) }

        fn loss(_: &Head, logits: Tensor<3>, next: Tensor<2, Int>) -> Tensor<1> {
            cross_entropy(logits.flatten(0, 1), next.flatten(0, 1))    // the sum over the targets
        }
        fn weight(_: &Head, next: &Tensor<2, Int>) -> Weight { next.shape().num_elements().into() }
    }

    fn listing(shape: Shape, cut: Cut, configs: Vec<StageConfig>) -> Result<(), BoxError> {
        let row = ModelRow::<Gpt>::of_model(shape).seed(7).names("embeddings", "blocks", "head");
        let mut pipeline = row.pipeline(&cut, configs)?.micro_batches(16).build()?;
        let gpt: Gpt = row.join_model(pipeline.into_modules())?;
        Ok(())
    }
}

#[rustfmt::skip]
mod inference {
    use burn::tensor::Tensor;
    use stageline::{BoxError, Cut, Row, StageConfig};

    use crate::model::Line;

    fn listing(row: &Row<Line, Line, Line>, cut: Cut, configs: Vec<StageConfig>, inputs: Tensor<2>) -> Result<(), BoxError> {
        use std::path::Path;
        use stageline::checkpoint::Saved;

        let checkpoint = Saved::open(Path::new("kept"))?.read()?;   // the latest checkpoint in the folder
        let mut pipeline = row.pipeline(&cut, configs)?.restore(checkpoint).build()?;
        let outputs = pipeline.infer(inputs)?;
        Ok(())
    }
}
