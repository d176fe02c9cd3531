//! Text on the user's machine, as batches.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::Result;
use burn::tensor::{Device, Int, Tensor, TensorData};
use stageline::Batch;
use stageline_data::{Corpus, CorpusError, CorpusOptions, Sampler, Text};

use crate::cut::Bytes;

/// How many held-out windows an evaluation reads.
const VALIDATION_WINDOWS: usize = 256;

/// The training text and its sampler, and the held-out windows.
pub struct Source {
    corpus: Corpus,
    sampler: Sampler,
    validation: Vec<u64>,
    context: usize,
    /// Where batches are made.
    device: Device,
}

impl Source {
    /// Opens `path`, or the Rust sources in the cargo registry, or this project's own.
    pub fn open(path: Option<&Path>, context: usize, seed: u64, device: Device) -> Result<Self> {
        let by_default = path.is_none();
        let (path, extensions) = match path {
            Some(path) => (path.to_owned(), None),
            None => (default_path(), Some(vec!["rs".to_owned()])),
        };
        let options = CorpusOptions { extensions, seed, ..CorpusOptions::default() };
        let (path, corpus) = match Corpus::open(&path, &options) {
            // A registry without sources; this project always has some.
            Err(CorpusError::NothingToRead { .. }) if by_default => {
                (own_sources(), Corpus::open(&own_sources(), &options)?)
            }
            corpus => (path, corpus?),
        };
        println!(
            "{}: {:.1} MB in {} files for training, {:.1} MB in {} files held out",
            path.display(),
            corpus.train().len() as f64 / 1e6,
            corpus.train().files(),
            corpus.validation().len() as f64 / 1e6,
            corpus.validation().files(),
        );
        let window = context + 1;
        let sampler = Sampler::new(corpus.train().len(), window, seed)?;
        let validation = Sampler::new(corpus.validation().len(), window, seed)?.evenly(VALIDATION_WINDOWS);
        Ok(Self { corpus, sampler, validation, context, device })
    }

    /// Of what text it is.
    pub fn fingerprint(&self) -> String {
        self.corpus.fingerprint()
    }

    /// The batch of a step: `size` windows, each byte the target of the ones before it.
    pub fn batch(&self, step: usize, size: usize) -> Result<Batch<Bytes, Bytes>> {
        self.windows(self.corpus.train(), &self.sampler.offsets(step as u64, size))
    }

    /// The held-out windows, in batches of `size`.
    pub fn validation(&self, size: usize) -> impl Iterator<Item = Result<Batch<Bytes, Bytes>>> {
        self.validation.chunks(size).map(|offsets| self.windows(self.corpus.validation(), offsets))
    }

    /// The entropy of single held-out bytes, in bits: what a model that ignores the context cannot go below.
    pub fn unigram_entropy(&self) -> Result<f64> {
        Ok(self.corpus.validation().unigram_entropy()?)
    }

    /// The first held-out window, to be continued.
    pub fn prompt(&self) -> Result<Vec<u8>> {
        let mut prompt = vec![0; self.context];
        self.corpus.validation().read(self.validation[0], &mut prompt)?;
        Ok(prompt)
    }

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

/// Every Rust user has tens of megabytes of text in the cargo registry.
fn default_path() -> PathBuf {
    let cargo_home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = cargo_home.or_else(|| env::home_dir().map(|home| home.join(".cargo")));
    let registry = home.map(|home| home.join("registry/src")).filter(|registry| registry.is_dir());
    registry.unwrap_or_else(own_sources)
}

fn own_sources() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}
