//! Tests that trained models have the same bits for every cut (partition into stages), schedule and recomputation.

use stageline::Recompute;
use stageline_models::LanguageModel;

use crate::toy::{batch, configurations, logits, new, pipeline};

const STEPS: usize = 3;

/// Trains a model for 3 steps with the given cut (partition into stages), schedule and recomputation. Returns the bits
/// of the loss of each step and of the logits after the 3 steps.
fn trained(model: &LanguageModel, cut: &str, how: (&str, Recompute)) -> (Vec<u64>, Vec<u32>) {
    let mut pipeline = pipeline(model, cut, how);
    let losses = (0..STEPS).map(|step| pipeline.step(batch(step)).unwrap().loss.to_bits()).collect();
    (losses, logits(&mut pipeline))
}

#[test]
fn every_cut_schedule_and_recomputation_gives_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    for config in configurations() {
        let model = new(folder.path(), &config);
        let expected = trained(&model, "0", ("1f1b", Recompute::Nothing));
        let losses: Vec<_> = expected.0.iter().map(|bits| f64::from_bits(*bits)).collect();
        assert!(losses.iter().all(|loss| loss.is_finite()) && losses[2] != losses[0], "{losses:?}");
        for (cut, how) in [
            ("0,1,5", ("1f1b", Recompute::Full)),
            ("0,2", ("zb-h1", Recompute::Selective)),
            ("0,3,4", ("gpipe", Recompute::FeedForward)),
            ("0,1,2,5", ("zb-v", Recompute::Nothing)),
        ] {
            assert_eq!(trained(&model, cut, how), expected, "{} {cut} {how:?}", config["model_type"]);
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
            let mut pipeline = pipeline(&model, "0,3", ("zb-h1", Recompute::Nothing));
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
