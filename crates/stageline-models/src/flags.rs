//! The command-line flags for programs that use a language model: [`ModelFlags`] choose the model and its adapters, and
//! [`SamplingFlags`] choose how generated text is sampled. This module needs the feature `flags`.

use std::path::PathBuf;

use regex::Regex;

use crate::error::ModelError;
use crate::generation::Sampling;
use crate::lora::Lora;
use crate::model::LanguageModel;

/// The command-line flags that choose a language model, its frozen parameters, and LoRA adapters.
#[derive(Clone, Debug, clap::Args)]
pub struct ModelFlags {
    /// Model folder in the Hugging Face format: config.json, model.safetensors or its shards, and tokenizer.json
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Configuration of a new model, which is trained instead of --model: a file in the format of config.json, or a
    /// folder with one. A tokenizer.json is read from the same folder. The parameters are initialised from --seed
    #[arg(long, value_name = "CONFIG.json")]
    pub init: Option<PathBuf>,
    /// Parameters to freeze (not to train): a regular expression that matches any part of their tensors' names, such as
    /// `embed_tokens|layers\.[0-3]\.`
    #[arg(long, value_name = "REGEX")]
    pub freeze: Option<String>,
    /// Trains LoRA adapters of this rank; the model's own parameters are frozen
    #[arg(help_heading = "LoRA", long, value_name = "RANK")]
    pub lora: Option<usize>,
    /// Alpha of new LoRA adapters, which are scaled by alpha / rank [default: twice the rank]
    #[arg(help_heading = "LoRA", long, value_name = "ALPHA")]
    pub lora_alpha: Option<f64>,
    /// Scales new LoRA adapters by alpha / √rank instead (rsLoRA), so that larger ranks do not learn more slowly
    #[arg(help_heading = "LoRA", long)]
    pub rslora: bool,
    /// Linear layers that get LoRA adapters: a regular expression that matches any part of their weights' names, such
    /// as `q_proj|v_proj` [default: all in the model's blocks]
    #[arg(help_heading = "LoRA", long, value_name = "REGEX")]
    pub lora_targets: Option<String>,
    /// Adapter folder with LoRA adapters to continue training, as PEFT writes it: adapter_config.json and
    /// adapter_model.safetensors. It replaces --lora, and decides the adapters' rank, alpha and layers
    #[arg(help_heading = "LoRA", long, value_name = "DIR")]
    pub adapter: Option<PathBuf>,
}

/// The command-line flags that choose how tokens are sampled during text generation.
#[derive(Clone, Debug, clap::Args)]
pub struct SamplingFlags {
    /// Sampling temperature; 0 always takes the likeliest token [default: that of the model's settings, or 0.8]
    #[arg(help_heading = "Inference", long)]
    pub temperature: Option<f64>,
    /// Top-k sampling: each token is drawn from this number of likeliest tokens; 0 draws from all tokens [default: that
    /// of the model's settings, or 0]
    #[arg(help_heading = "Inference", long)]
    pub top_k: Option<usize>,
    /// Nucleus (top-p) sampling: each token is drawn from the smallest set of likeliest tokens whose probabilities add
    /// up to at least this number [default: that of the model's settings, or 1]
    #[arg(help_heading = "Inference", long)]
    pub top_p: Option<f64>,
    /// Repetition penalty for tokens that the text already has; 1 for none [default: that of the model's settings, or
    /// 1]
    #[arg(help_heading = "Inference", long)]
    pub repetition_penalty: Option<f64>,
}

/// The error if the model or an adapter cannot be opened as the flags request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelFlagError {
    /// Neither `--model` nor `--init` was given. Give `--model` for an existing model folder, or `--init` for a new
    /// model.
    #[error("give --model DIR for a model of the hub, or --init CONFIG.json for a new one")]
    NoModel,
    /// Both `--model` and `--init` were given; remove one. One of the two may come from the checkpoint of `--resume`,
    /// because a resumed run keeps its model, or from the settings file of `--config`.
    #[error(
        "--model and --init exclude each other, and one of them may come from the checkpoint of --resume or the file of --config; a \
         training that resumes keeps the model with which it began"
    )]
    TwoModels,
    /// Two flags that exclude each other, such as `--freeze` and `--lora`, were given. The values are the names of the
    /// two flags; remove one of them.
    #[error("{0} and {1} exclude each other: give one of them")]
    Exclusive(&'static str, &'static str),
    /// A flag for new LoRA adapters, such as `--lora-alpha`, was given without `--lora`, which creates them. The value
    /// is the flag's name.
    #[error("{0} is for new adapters: give --lora RANK, too")]
    WithoutLora(&'static str),
    /// A flag for new LoRA adapters, such as `--lora-alpha`, was given together with `--adapter`, whose folder decides
    /// the adapters' rank, alpha and layers. The value is the flag's name; remove the flag.
    #[error("{0} is for new adapters, and the folder of --adapter decides what its adapters are: leave {0} out")]
    WithAdapter(&'static str),
    /// A flag's value is not a valid regular expression.
    #[error("{flag}")]
    Regex {
        /// The flag whose value is not a valid regular expression.
        flag: &'static str,
        /// The error of the regular expression parser.
        source: regex::Error,
    },
    /// The regular expression of `--freeze` matches no tensor name of the model, so it would freeze nothing.
    #[error("--freeze {pattern}: no tensor has such a name; they are like {known}")]
    NothingFrozen {
        /// The regular expression of `--freeze` that matches no tensor name.
        pattern: String,
        /// The name of one of the model's tensors, as an example for the error message.
        known: String,
    },
    /// The model or its adapters, which the flag `flag` names, cannot be opened. `source` is the reason.
    #[error("{flag}")]
    Model {
        /// The flag whose model or adapters cannot be opened, such as `--model` or `--lora`.
        flag: &'static str,
        /// The error from opening the model or its adapters.
        source: ModelError,
    },
}

impl ModelFlags {
    /// Opens the model of `--model`, or creates a new model from the configuration of `--init`. Freezes the parameters
    /// that `--freeze` selects, and adds LoRA adapters. A new model's parameters and new adapters are drawn at random
    /// from `seed`.
    ///
    /// # Errors
    /// Returns [`ModelFlagError`] if:
    ///
    /// - The flags contradict each other, or neither `--model` nor `--init` was given.
    /// - The model or its adapters cannot be opened.
    /// - A regular expression is invalid, or that of `--freeze` selects no tensor.
    pub fn open(&self, seed: u64) -> Result<LanguageModel, ModelFlagError> {
        self.check()?;
        let of = |flag| move |source| ModelFlagError::Model { flag, source };
        let model = match (&self.model, &self.init) {
            (Some(folder), None) => LanguageModel::open(folder).map_err(of("--model"))?,
            (None, Some(config)) => LanguageModel::new(config, seed).map_err(of("--init"))?,
            (Some(_), Some(_)) => return Err(ModelFlagError::TwoModels),
            (None, None) => return Err(ModelFlagError::NoModel),
        };
        if let Some(folder) = &self.adapter {
            let adapted = Lora::open(folder).and_then(|lora| model.adapt(lora));
            return adapted.map_err(of("--adapter"));
        }
        if let Some(rank) = self.lora {
            let mut lora = Lora::new(rank, self.lora_alpha.unwrap_or(2.0 * rank as f64)).seed(seed);
            if self.rslora {
                lora = lora.rank_stabilised();
            }
            if let Some(pattern) = &self.lora_targets {
                let regex = regex_of("--lora-targets", pattern)?;
                lora = lora.targets(move |name| regex.is_match(name));
            }
            return model.adapt(lora).map_err(of("--lora"));
        }
        let Some(pattern) = &self.freeze else { return Ok(model) };
        let regex = regex_of("--freeze", pattern)?;
        let model = model.freeze(move |name| regex.is_match(name));
        let tensors = model.tensors();
        match tensors.first() {
            Some((known, _)) if !tensors.iter().any(|(_, is_frozen)| *is_frozen) => {
                Err(ModelFlagError::NothingFrozen { pattern: pattern.clone(), known: known.clone() })
            }
            _ => Ok(model),
        }
    }

    /// Checks that the flags do not contradict each other. clap cannot check this, because a program may also take
    /// flags from a file.
    fn check(&self) -> Result<(), ModelFlagError> {
        let given = [
            ("--freeze", self.freeze.is_some()),
            ("--lora", self.lora.is_some()),
            ("--adapter", self.adapter.is_some()),
        ];
        let given: Vec<_> = given.into_iter().filter(|(_, is_given)| *is_given).collect();
        if let [(one, _), (other, _), ..] = given[..] {
            return Err(ModelFlagError::Exclusive(one, other));
        }
        let of_new = [
            ("--lora-alpha", self.lora_alpha.is_some()),
            ("--rslora", self.rslora),
            ("--lora-targets", self.lora_targets.is_some()),
        ];
        match of_new.into_iter().find(|(_, is_given)| *is_given) {
            Some((flag, _)) if self.adapter.is_some() => Err(ModelFlagError::WithAdapter(flag)),
            Some((flag, _)) if self.lora.is_none() => Err(ModelFlagError::WithoutLora(flag)),
            _ => Ok(()),
        }
    }
}

fn regex_of(flag: &'static str, pattern: &str) -> Result<Regex, ModelFlagError> {
    Regex::new(pattern).map_err(|source| ModelFlagError::Regex { flag, source })
}

impl SamplingFlags {
    /// Returns the sampling settings that the flags give, with the seed `seed`. An unset flag takes its value from the
    /// model's `generation_config.json`, or else its default.
    ///
    /// # Errors
    /// Returns [`ModelError::Config`] if a setting of that file has a wrong type or an impossible value.
    pub fn sampling(&self, model: &LanguageModel, seed: u64) -> Result<Sampling, ModelError> {
        let of_model = model.sampling(Sampling { temperature: 0.8, seed, ..Sampling::GREEDY })?;
        Ok(Sampling {
            temperature: self.temperature.unwrap_or(of_model.temperature),
            top_k: self.top_k.or(of_model.top_k),
            top_p: self.top_p.or(of_model.top_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(of_model.repetition_penalty),
            ..of_model
        })
    }

    /// Whether at least one of the sampling flags was given.
    pub fn is_given(&self) -> bool {
        let numbers = [self.temperature, self.top_p, self.repetition_penalty];
        numbers.iter().any(Option::is_some) || self.top_k.is_some()
    }
}
