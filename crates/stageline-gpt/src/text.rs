//! Makes batches for training and evaluation from text files on the user's machine.

use std::env;
use std::f64::consts::LN_2;
use std::path::{Path, PathBuf};

use anyhow::Result;
use burn::tensor::{Device, Int, Tensor, TensorData};
use stageline::Batch;
use stageline_data::{Corpus, CorpusError, CorpusOptions, Sampler, Text};
use stageline_train::{Data, say};

use crate::model::Bytes;

/// Maximum number of held-out windows (text samples) in an evaluation.
const VALIDATION_WINDOWS: usize = 256;

/// The data source of the GPT example, for training and evaluation: the text, the sampler of training windows, and the
/// held-out windows.
pub struct Source {
    corpus: Corpus,
    sampler: Sampler,
    /// The windows (text samples) that validation evaluates, as start offsets in bytes within the held-out text.
    validation: Vec<u64>,
    /// Length of the model's input in bytes. A window of text is one byte longer, because each target is the byte after
    /// its input.
    context: usize,
    device: Device,
}

impl Source {
    /// Opens the training text at `path`, a file or a folder, and prints its size. If `path` is `None`, the text is the
    /// Rust sources in the cargo registry, or this project's own sources if there is no registry or it has no Rust
    /// sources. `context` is the length of the model's input in bytes. `seed` decides which files of a folder are held
    /// out for validation, and the order of the training windows. Batches are created on `device`.
    ///
    /// # Errors
    /// Returns an error if the text cannot be read, or if the training text or the held-out text is shorter than one
    /// window of `context + 1` bytes.
    pub fn open(path: Option<&Path>, context: usize, seed: u64, device: Device) -> Result<Self> {
        let by_default = path.is_none();
        let (path, extensions) = match path {
            Some(path) => (path.to_owned(), None),
            None => (default_path(), Some(vec!["rs".to_owned()])),
        };
        let options = CorpusOptions { extensions, seed, ..CorpusOptions::default() };
        let (path, corpus) = match Corpus::open(&path, &options) {
            // The registry may have no Rust sources, but this project always has some.
            Err(CorpusError::NothingToRead { .. }) if by_default => {
                (own_sources(), Corpus::open(&own_sources(), &options)?)
            }
            corpus => (path, corpus?),
        };
        say(format_args!(
            "{}: {:.1} MB in {} files for training, {:.1} MB in {} files held out",
            path.display(),
            corpus.train().len() as f64 / 1e6,
            corpus.train().files(),
            corpus.validation().len() as f64 / 1e6,
            corpus.validation().files(),
        ))?;
        let window = context + 1;
        let sampler = Sampler::new(corpus.train().len(), window, seed)?;
        let validation = Sampler::new(corpus.validation().len(), window, seed)?.evenly(VALIDATION_WINDOWS);
        Ok(Self { corpus, sampler, validation, context, device })
    }

    /// Returns the entropy of single bytes in the held-out text, in bits per byte: the lowest loss of a model that
    /// ignores the context and predicts from byte frequencies only.
    ///
    /// # Errors
    /// Returns an error if the held-out text cannot be read.
    pub fn unigram_entropy(&self) -> Result<f64> {
        Ok(self.corpus.validation().unigram_entropy()?)
    }

    /// Returns a prompt for the trained model, as long as the model's input: the beginning of the held-out text's first
    /// window.
    ///
    /// # Errors
    /// Returns an error if the held-out text cannot be read.
    pub fn prompt(&self) -> Result<Vec<u8>> {
        let mut prompt = vec![0; self.context];
        self.corpus.validation().read(self.validation[0], &mut prompt)?;
        Ok(prompt)
    }

    /// Reads the windows of a text at the given byte offsets into a batch: inputs and targets `[windows, context]`,
    /// where each target is the byte after its input.
    fn windows(&self, text: &Text, offsets: &[u64]) -> Result<Batch<Bytes, Bytes>> {
        let mut window = vec![0; self.context + 1];
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        for &offset in offsets {
            text.read(offset, &mut window)?;
            inputs.extend(window[..self.context].iter().map(|&byte| i32::from(byte)));
            targets.extend(window[1..].iter().map(|&byte| i32::from(byte)));
        }
        let tensor = |bytes| {
            let data = TensorData::new(bytes, [offsets.len(), self.context]);
            Tensor::<2, Int>::from_data(data, &self.device)
        };
        Ok(Batch::new(tensor(inputs), tensor(targets)))
    }
}

impl Data for Source {
    type Input = Bytes;
    type Target = Bytes;

    /// Returns a training step's batch: `samples` windows of the training text. Inputs and targets are `[samples,
    /// context]`, and each target is the byte after its input.
    fn batch(&self, step: usize, samples: usize) -> Result<Batch<Bytes, Bytes>> {
        self.windows(self.corpus.train(), &self.sampler.offsets(step as u64, samples))
    }

    fn validation(&self, samples: usize) -> Result<Vec<Batch<Bytes, Bytes>>> {
        self.validation.chunks(samples).map(|offsets| self.windows(self.corpus.validation(), offsets)).collect()
    }

    fn fingerprint(&self) -> String {
        self.corpus.fingerprint()
    }

    fn tokens_per_sample(&self) -> Option<usize> {
        Some(self.context)
    }

    fn show_loss(&self, loss: f64) -> String {
        format!("{:.3} bits a byte", loss / LN_2)
    }
}

/// Returns the path of the default text: the cargo registry's sources, usually tens of megabytes, or this project's own
/// sources if there is no registry.
fn default_path() -> PathBuf {
    let cargo_home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = cargo_home.or_else(|| env::home_dir().map(|home| home.join(".cargo")));
    let registry = home.map(|home| home.join("registry/src")).filter(|registry| registry.is_dir());
    registry.unwrap_or_else(own_sources)
}

/// Returns the folder of this project's crates, whose Rust sources can serve as training text.
fn own_sources() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
