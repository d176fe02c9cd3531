//! Tests samples that consist of several documents: each document is trained on as if it were alone.

use std::ops::Range;

use burn::tensor::{Device, TensorData};
use serde_json::json;
use stageline::nn::MASKED;
use stageline::{Batch, Recompute, SharedInput, Update};
use stageline_models::{LanguageModel, Samples, Tokens};

use crate::toy::{VOCABULARY, configurations, new, pipeline};

/// The length, in tokens, of the first and the second document of every sample.
const LENGTHS: [usize; 2] = [5, 7];
const SAMPLES: usize = 6;

fn tensor(rows: Vec<Vec<i64>>) -> Tokens {
    let shape = [rows.len(), rows[0].len()];
    Tokens::from_data(TensorData::new(rows.concat(), shape), &Device::flex())
}

/// Returns the tokens of the first or the second document (`number` 0 or 1) of a sample.
fn document(sample: usize, number: usize) -> Vec<i64> {
    (0..LENGTHS[number]).map(|at| ((at * at + 5 * at + 11 * sample + 17 * number) % VOCABULARY) as i64).collect()
}

/// Returns the input and the targets of a batch in which one document of each given sample is a sample of its own.
/// `number` is 0 for the first document of the samples, and 1 for the second.
fn alone(number: usize, samples: Range<usize>) -> (Samples, Tokens) {
    let documents: Vec<_> = samples.map(|sample| document(sample, number)).collect();
    let part =
        |tokens: Range<usize>| tensor(documents.iter().map(|document| document[tokens.clone()].to_vec()).collect());
    ((part(0..LENGTHS[number] - 1), None), part(1..LENGTHS[number]))
}

/// Returns a batch of samples with two documents each. If `separate` is false, the batch has no document starts, so
/// that tokens attend across documents. The first token of the second document is masked as a target.
fn packed(separate: bool) -> Batch<Samples, Tokens> {
    let [first, second] = LENGTHS;
    let samples: Vec<_> = (0..SAMPLES).map(|sample| [document(sample, 0), document(sample, 1)].concat()).collect();
    let input = samples.iter().map(|tokens| tokens[..first + second - 1].to_vec()).collect();
    let targets = samples.iter().map(|tokens| {
        let mut targets = tokens[1..].to_vec();
        targets[first - 1] = MASKED;
        targets
    });
    let starts = vec![[vec![0; first], vec![first as i64; second - 1]].concat(); SAMPLES];
    let starts = separate.then(|| SharedInput::new(tensor(starts)));
    Batch::new((tensor(input), starts), tensor(targets.collect()))
}

/// Trains a model for one step and returns the loss and the norm of the gradients.
fn step(model: &LanguageModel, cut: &str, recompute: Recompute, batch: Batch<Samples, Tokens>) -> [f64; 2] {
    let report = pipeline(model, cut, "1f1b", recompute).step(batch).unwrap();
    match report.update {
        Update::Stepped { gradient_norm, .. } => [report.loss, gradient_norm],
        update => panic!("{update:?}"),
    }
}

#[test]
fn the_loss_of_two_documents_is_the_mean_of_their_losses_by_their_targets() {
    let folder = tempfile::tempdir().unwrap();
    for mut config in configurations() {
        // With initial weights as large as these, the loss changes visibly if tokens attend to the other document.
        config["initializer_range"] = json!(0.3);
        let model = new(folder.path(), &config);
        for cut in ["0", "0,4"] {
            let mut pipeline = pipeline(&model, cut, "1f1b", Recompute::Nothing);
            let mut loss = |batch| pipeline.eval(batch).unwrap().loss;
            let losses = [0, 1].map(|number| {
                let (input, targets) = alone(number, 0..SAMPLES);
                loss(Batch::new(input, targets))
            });
            let [first, second] = LENGTHS.map(|length| (length - 1) as f64);
            let expected = (first * losses[0] + second * losses[1]) / (first + second);
            let (found, joined) = (loss(packed(true)), loss(packed(false)));
            let kind = &config["model_type"];
            assert!((found / expected - 1.0).abs() < 1e-5, "{kind} {cut}: {found} and not {expected}");
            assert!((joined / expected - 1.0).abs() > 1e-3, "{kind} {cut}: {joined} and {expected}");
        }
    }
}

#[test]
fn a_step_with_two_documents_in_a_sample_has_the_gradients_of_the_documents_alone() {
    let folder = tempfile::tempdir().unwrap();
    for mut config in configurations() {
        config["initializer_range"] = json!(0.3);
        let (model, kind) = (new(folder.path(), &config), &config["model_type"]);
        let pieces = [0, 1].map(|number| [0..2, 2..4, 4..6].map(|samples| alone(number, samples)));
        let pieces = pieces.into_iter().flatten().collect();
        let expected = step(&model, "0", Recompute::Nothing, Batch::from_micro_batches(pieces));
        let found = step(&model, "0", Recompute::Nothing, packed(true));
        for (found, expected) in found.iter().zip(expected) {
            assert!((found / expected - 1.0).abs() < 1e-4, "{kind}: {found} and not {expected}");
        }
        for (cut, recompute) in [("0,4", Recompute::Full), ("0,3,6", Recompute::Selective)] {
            let other = step(&model, cut, recompute, packed(true));
            assert_eq!(other.map(f64::to_bits), found.map(f64::to_bits), "{kind} {cut} {recompute}");
        }
    }
}
