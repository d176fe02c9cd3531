//! Tests that trained models have the same bits for every number of workers, schedule and recomputation.

use std::iter::successors;
use std::num::NonZero;
use std::path::Path;

use burn::optim::SgdConfig;
use burn::tensor::Device;
use serde_json::json;
use stageline::schedule::SCHEDULES;
use stageline::{BlockSet, Recompute, StageConfig};
use stageline_hub::ModelFolder;
use stageline_models::LanguageModel;

use crate::toy::{VOCABULARY, batch, configurations, logits, new, pipeline, tokens};

const STEPS: usize = 2;

/// Trains a model for 2 steps with the given cut (partition into stages), schedule and recomputation. Returns the bits
/// of the loss of each step and of the logits after the 2 steps.
fn trained(model: &LanguageModel, cut: &str, schedule: &str, recompute: Recompute) -> (Vec<u64>, Vec<u32>) {
    let mut pipeline = pipeline(model, cut, schedule, recompute);
    let losses = (0..STEPS).map(|step| pipeline.step(batch(step)).unwrap().loss.to_bits()).collect();
    (losses, logits(&mut pipeline))
}

/// Trains a model for 2 steps in one stage without recomputation, as the reference for other trainings. Returns the
/// bits of the loss of each step and of the logits after the 2 steps.
fn trained_whole(model: &LanguageModel) -> (Vec<u64>, Vec<u32>) {
    let (losses, logits) = trained(model, "0", "1f1b", Recompute::Nothing);
    let shown: Vec<_> = losses.iter().map(|bits| f64::from_bits(*bits)).collect();
    assert!(shown.iter().all(|loss| loss.is_finite()) && shown[0] != shown[1], "{shown:?}");
    (losses, logits)
}

/// Returns one setting of every kind of recomputation, for tests. The `match` has no wildcard arm, so a new kind does
/// not compile until it has an arm here.
fn recomputations() -> Vec<Recompute> {
    let two = NonZero::new(2).unwrap();
    let next = |recompute: &Recompute| {
        Some(match recompute {
            Recompute::Nothing => Recompute::Selective,
            Recompute::Selective => Recompute::FeedForward,
            Recompute::FeedForward => Recompute::Blocks(1),
            Recompute::Blocks(_) => Recompute::EveryNth(two),
            Recompute::EveryNth(_) => Recompute::Only(BlockSet::new([1]).unwrap()),
            Recompute::Only(_) => Recompute::Segments(two),
            Recompute::Segments(_) => Recompute::SquareRoot,
            Recompute::SquareRoot => Recompute::Full,
            Recompute::Full => return None,
        })
    };
    successors(Some(Recompute::Nothing), next).collect()
}

/// Returns a cut (partition) of a toy model of 10 layers (embeddings, 4 blocks with two layers each, head) into the
/// given number of stages. It lists the index of the first layer of each stage. A stage boundary before a layer with an
/// even index divides a block.
fn cut(stages: usize) -> &'static str {
    match stages {
        1 => "0",
        2 => "0,4",
        3 => "0,3,6",
        4 => "0,2,5,8",
        6 => "0,1,3,4,6,9",
        _ => panic!("no cut of a toy model into {stages} stages"),
    }
}

/// Asserts that training gives the same bits with every schedule and every kind of recomputation, on 1, 2 or 3 workers.
/// `index` is the index of the model's family in the list of toy models.
///
/// Each pair of a schedule and a kind of recomputation runs on one number of workers, which depends on `turn`. Three
/// successive values of `turn` together run every pair on 1, 2 and 3 workers.
fn assert_same_bits(index: usize, tied: bool, turn: usize) {
    let folder = tempfile::tempdir().unwrap();
    let mut config = configurations().swap_remove(index);
    config["tie_word_embeddings"] = json!(tied);
    let model = new(folder.path(), &config);
    let expected = trained_whole(&model);
    for (at, schedule) in SCHEDULES.iter().enumerate() {
        for (number, recompute) in recomputations().into_iter().enumerate() {
            let workers = 1 + (at + number + turn) % 3;
            let found = trained(&model, cut(workers * schedule.chunks()), schedule.name(), recompute);
            assert_eq!(found, expected, "{}, {recompute}, {workers} workers, tied: {tied}", schedule.name());
        }
    }
}

#[test]
fn gpt2_with_a_tied_head_has_the_same_bits_for_every_schedule_and_recomputation() {
    assert_same_bits(0, true, 0);
}

#[test]
fn gpt2_with_its_own_head_has_the_same_bits_for_every_schedule_and_recomputation() {
    assert_same_bits(0, false, 1);
}

#[test]
fn llama_with_a_tied_head_has_the_same_bits_for_every_schedule_and_recomputation() {
    assert_same_bits(1, true, 2);
}

#[test]
fn llama_with_its_own_head_has_the_same_bits_for_every_schedule_and_recomputation() {
    assert_same_bits(1, false, 0);
}

#[test]
fn the_relatives_of_llama_have_the_same_bits_for_some_cuts() {
    let folder = tempfile::tempdir().unwrap();
    for config in &configurations()[2..] {
        let model = new(folder.path(), config);
        let expected = trained_whole(&model);
        for (cut, schedule, recompute) in [
            ("0,1,9", "1f1b", Recompute::Full),
            ("0,4", "zb-h1", Recompute::Selective),
            ("0,5,6", "gpipe", Recompute::FeedForward),
            ("0,1,4,9", "zb-v", Recompute::Nothing),
        ] {
            let found = trained(&model, cut, schedule, recompute);
            assert_eq!(found, expected, "{} {cut} {schedule} {recompute}", config["model_type"]);
        }
    }
}

#[test]
fn frozen_parameters_keep_their_bits_and_the_others_are_trained() {
    let folder = tempfile::tempdir().unwrap();
    for config in configurations() {
        let model = new(folder.path(), &config).freeze(|name| name.contains(".1.") || name.contains("embed"));
        let frozen = model.tensors().iter().filter(|(_, frozen)| *frozen).count();
        let is_gpt2 = config["model_type"] == "gpt2";
        assert!(frozen >= if is_gpt2 { 12 } else { 10 }, "{frozen}");
        let values = |trained: bool| {
            let mut pipeline = pipeline(&model, "0,3", "zb-h1", Recompute::Nothing);
            if trained {
                (0..STEPS).for_each(|step| drop(pipeline.step(batch(step)).unwrap()));
            }
            let place = folder.path().join(if trained { "after" } else { "before" });
            model.export(pipeline.snapshot().unwrap(), &place).unwrap();
            stageline_hub::ModelFolder::open(place).unwrap()
        };
        let (before, after) = (values(false), values(true));
        for (name, frozen) in model.tensors() {
            let [before, after] = [&before, &after].map(|folder| folder.tensor(&name).unwrap().to_f32().unwrap());
            assert_eq!(before == after, frozen, "{name}");
        }
    }
}

/// The id of the padding token in these tests. The token occurs in the input of a training step.
const PADDING: usize = 7;

/// Reads the token embedding table from a model folder of the Llama family: one row per token.
fn table(folder: &Path) -> Vec<Vec<f32>> {
    let table = ModelFolder::open(folder).unwrap().tensor("model.embed_tokens.weight").unwrap().to_f32().unwrap();
    table.chunks(table.len() / VOCABULARY).map(<[f32]>::to_vec).collect()
}

/// Tests the padding token of a new Llama. Its embedding is 0 at the start. The first layer does not train the
/// embedding, but the head of a tied model does.
#[test]
fn only_a_tied_head_trains_the_embedding_of_the_padding_token() {
    let folder = tempfile::tempdir().unwrap();
    assert!(batch_has(PADDING), "the token must occur in the input");
    for is_tied in [false, true] {
        let mut config = configurations()[1].clone();
        config["tie_word_embeddings"] = is_tied.into();
        config["pad_token_id"] = PADDING.into();
        let model = new(folder.path(), &config);
        let mut pipeline = pipeline(&model, "0,3", "zb-h1", Recompute::Nothing);
        let mut row_of = |steps: usize| {
            (0..steps).for_each(|step| drop(pipeline.step(batch(step)).unwrap()));
            let place = folder.path().join(format!("{is_tied} {steps}"));
            model.export(pipeline.snapshot().unwrap(), &place).unwrap();
            [PADDING, PADDING + 1].map(|token| table(&place)[token].clone())
        };
        let [[before, other], [after, other_after]] = [row_of(0), row_of(3)];
        assert!(before.iter().all(|value| *value == 0.0) && other.iter().all(|value| *value != 0.0));
        assert!(other != other_after, "other rows are trained");
        assert_eq!(after.iter().any(|value| *value != 0.0), is_tied, "{after:?}");
    }
}

/// Tests a padding token whose embedding in the model folder is not 0, as when it is also the end-of-text token. The
/// embedding is used like any other, but not trained.
#[test]
fn the_embedding_of_a_padding_token_is_used_and_not_trained() {
    let folder = tempfile::tempdir().unwrap();
    let [plain, padded, tuned] = ["plain", "padded", "tuned"].map(|name| folder.path().join(name));
    let mut config = configurations()[1].clone();
    config["tie_word_embeddings"] = false.into();
    let model = new(folder.path(), &config);
    let whole = |model: &LanguageModel| {
        let config = StageConfig::new(Device::flex(), SgdConfig::new().init(), 1.0);
        model.row().pipeline(&"0".parse().unwrap(), [config]).unwrap().micro_batches(6).build().unwrap()
    };
    for place in [&plain, &padded] {
        model.export(whole(&model).snapshot().unwrap(), place).unwrap();
    }
    let mut config = ModelFolder::open(&padded).unwrap().config().unwrap().clone();
    config["pad_token_id"] = PADDING.into();
    stageline_hub::write_config(&padded, &config).unwrap();
    let [plain, padded] = [&plain, &padded].map(|place| LanguageModel::open(place).unwrap());
    let mut pipeline = whole(&padded);
    assert_eq!(logits(&mut pipeline), logits(&mut whole(&plain)));
    let loss = pipeline.step(batch(0)).unwrap().loss;
    assert_eq!(loss.to_bits(), whole(&plain).step(batch(0)).unwrap().loss.to_bits());
    padded.export(pipeline.snapshot().unwrap(), &tuned).unwrap();
    let tables = [padded.home(), &tuned].map(table);
    assert_eq!(tables[0][PADDING], tables[1][PADDING]);
    assert_ne!(tables[0][PADDING + 1], tables[1][PADDING + 1]);
}

/// Whether the input of the first training step contains the token `token`.
fn batch_has(token: usize) -> bool {
    let input = tokens(0, 6, 9).into_data();
    input.iter::<i64>().any(|found| found == token as i64)
}
