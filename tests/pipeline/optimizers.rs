//! Tests of `--optimizer` and `--optimizer-state` on a model with a first layer, blocks and a last layer. Muon steps
//! the matrices of the blocks, and AdamW everything else. A resumed training gives the same bits as an undisturbed one,
//! and so does one that keeps its optimizer states on the host.

use std::path::Path;

use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use stageline::checkpoint::Saved;
use stageline::{Batch, OptimizerState};
use stageline_train::{Data, NoFlags, Program};

use crate::model::{Bytes, Shape, gpt};

const SHAPE: Shape = Shape { layers: 2, width: 16, context: 8 };

/// A data source for tests of optimizers: bytes that depend on the step and the sample only.
struct Texts;

impl Data for Texts {
    type Input = Bytes;
    type Target = Bytes;

    fn batch(&self, step: usize, samples: usize) -> anyhow::Result<Batch<Bytes, Bytes>> {
        let text = |shift: usize| {
            let bytes: Vec<i32> =
                (0..samples * SHAPE.context).map(|at| ((at + 100 * step + shift) * 37 % 256) as i32).collect();
            Tensor::<2, Int>::from_data(TensorData::new(bytes, [samples, SHAPE.context]), &Device::flex())
        };
        Ok(Batch::new(text(0), text(1)))
    }
}

/// Trains with the settings that all optimizer tests share and with the given additional settings. Returns the hash of
/// the parameters; `None` if the training ended early.
fn trained(settings: &[(&str, &str)]) -> Option<String> {
    let common = [("micro_batches", "2"), ("micro_batch_size", "1"), ("steps", "4"), ("optimizer", "muon")];
    let common = common.into_iter().filter(|(name, _)| settings.iter().all(|(other, _)| other != name));
    let run = Program::<NoFlags>::new().configured(common.chain(settings.iter().copied())).unwrap();
    run.train(&gpt(SHAPE, 1), Texts).unwrap().map(|trained| trained.parameters_sha256.unwrap())
}

#[test]
fn muon_steps_the_matrices_of_blocks_and_adamw_everything_else() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_str().unwrap();
    for stages in ["1", "3"] {
        let folder = format!("{place}/{stages}");
        trained(&[("stages", stages), ("checkpoint", folder.as_str())]).unwrap();
        let states = Saved::open(Path::new(&folder)).unwrap().read().unwrap().optimizer;
        let with = |field: &str| -> Vec<String> {
            states.keys().filter_map(|name| name.strip_suffix(field)).map(str::to_owned).collect()
        };
        let matrices = ["attention.output", "attention.query_key_value", "down", "up"];
        let of_block = |block: usize| matrices.map(|name| format!("blocks.{block}.{name}.weight"));
        assert_eq!(with("/momentum.velocity"), [of_block(0), of_block(1)].concat(), "P = {stages}");
        let by_adamw = with("/momentum.moment_1");
        for name in [
            "embeddings.bytes.weight",
            "embeddings.positions",
            "blocks.1.up.bias",
            "blocks.1.mlp_norm.gamma",
            "head.norm.gamma",
            "head.logits.weight",
        ] {
            assert!(by_adamw.iter().any(|other| other == name), "P = {stages}: {name} is not among {by_adamw:?}");
        }
    }
}

#[test]
fn a_training_with_muon_resumes_bit_for_bit_on_another_cut() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_str().unwrap();
    let whole = trained(&[("stages", "2")]).unwrap();
    assert_eq!(trained(&[("stages", "2"), ("checkpoint", place), ("stop_after", "2")]), None);
    assert_eq!(trained(&[("resume", place), ("stages", "4")]), Some(whole));
}

#[test]
fn states_on_the_host_give_the_same_bits_and_resume_in_the_other_memory() {
    for optimizer in ["adamw", "adafactor", "lion", "muon", "sgd"] {
        let with = |settings: &[(&str, &str)]| {
            trained(&[("optimizer", optimizer)].iter().chain(settings).copied().collect::<Vec<_>>())
        };
        let whole = with(&[("stages", "2")]);
        for (before, after) in [("host", "device"), ("device", "host")] {
            let folder = tempfile::tempdir().unwrap();
            let place = folder.path().to_str().unwrap();
            assert_eq!(with(&[("optimizer_state", before), ("checkpoint", place), ("stop_after", "2")]), None);
            let resumed = with(&[("optimizer_state", after), ("resume", place), ("stages", "3")]);
            assert_eq!(resumed, whole, "{optimizer}, states on the {before} and then on the {after}");
        }
        assert!(whole.is_some());
    }
}

#[test]
fn a_programs_own_optimizer_decides_about_its_states() {
    let own = |state: &str| {
        let settings = [("micro_batches", "2"), ("micro_batch_size", "1"), ("steps", "1"), ("optimizer_state", state)];
        let run = Program::<NoFlags>::new().configured(settings).unwrap();
        let run = run.optimizer(OptimizerState::Host.of(AdamWConfig::new().build()));
        run.train(&gpt(SHAPE, 1), Texts).map(|trained| assert!(trained.is_some()))
    };
    own("device").unwrap();
    let error = own("host").unwrap_err().to_string();
    assert!(error.starts_with("--optimizer-state host: this program sets its optimizer in its code"), "{error}");
}
