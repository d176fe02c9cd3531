//! Batches of packed samples for language models: each sample has several whole documents ([`PackedDocuments`]).

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{Result, ensure};
use sha2::{Digest, Sha256};
use stageline::Batch;
use stageline_data::{Epochs, TokenFile};

use crate::data::Data;
use crate::data::documents::{Sample, TokenSamples, Tokens, batch, shown};
use crate::fingerprint::hexadecimal;

/// Maximum number of held-out samples per evaluation, to bound its duration.
const VALIDATION_SAMPLES: usize = 64;

/// Packed training data for a language model: each sample is filled with whole documents, and padding for the rest.
/// Each document is trained on as if it were alone: attention and positions restart at its first token. A plain text
/// longer than a sample is divided into pieces, each of which counts as a document. A longer prompt or conversation is
/// truncated at its end, or left out if no target remains.
///
/// Documents are packed by best-fit decreasing (the longest first, each into the fullest sample that has room), which
/// leaves little padding. Every sample comes once per epoch, in an order that the seed decides.
pub struct PackedDocuments {
    tokens: TokenFile,
    training: Vec<Vec<Piece>>,
    validation: Vec<Vec<Piece>>,
    epochs: Epochs,
    /// The length of the model's input, in tokens.
    context: usize,
    /// Fraction of the documents that is held out for validation, from 0 to below 1.
    held_out: f64,
    packing: Packing,
}

/// Statistics of how documents were packed, divided, truncated or left out. Held-out documents count too, except in
/// `samples` and `padding`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Packing {
    /// The number of training samples.
    pub samples: usize,
    /// The number of plain texts that were divided into several pieces because they are longer than a sample.
    pub divided: u64,
    /// The number of prompts and conversations that were truncated because they are longer than a sample.
    pub cut: u64,
    /// The number of tokens dropped by truncating prompts and conversations.
    pub lost_tokens: u64,
    /// The number of prompts and conversations that are left out because their first target lies beyond the length of a
    /// sample.
    pub beyond: u64,
    /// The number of documents that are left out because none of their tokens is a target.
    pub left_out: u64,
    /// The padding in the training samples, as a fraction of all their positions.
    pub padding: f64,
}

/// A document, or a piece of a divided one, to be packed into a sample. `start` is the index of its first token in the
/// token file, and `length` is its number of input tokens. Each input token's target is the next token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    start: u64,
    length: usize,
}

impl Packing {
    /// Appends `document`, a range of token indices, to `pieces`, divided or truncated to fit into samples of `context`
    /// tokens. Updates the packing statistics.
    fn add(&mut self, tokens: &TokenFile, document: Range<u64>, context: u64, pieces: &mut Vec<Piece>) {
        let whole = document.end - document.start - 1;
        let of = |start: u64| Piece { start, length: context.min(document.end - 1 - start) as usize };
        let is_target = |range: Range<u64>| !range.is_empty() && tokens.has_target(range);
        let first = of(document.start);
        if !is_target(document.start + 1..document.start + 1 + first.length as u64) {
            let has_target = is_target(document.start + 1..document.end);
            *if has_target { &mut self.beyond } else { &mut self.left_out } += 1;
        } else if whole <= context {
            pieces.push(first);
        } else if tokens.is_plain_text(document.start + 1..document.end) {
            self.divided += 1;
            pieces.extend((document.start..document.end - 1).step_by(context as usize).map(of));
        } else {
            self.cut += 1;
            self.lost_tokens += whole - context;
            pieces.push(first);
        }
    }
}

impl PackedDocuments {
    /// Creates training data from a tokenised text, in samples of `context` tokens. The fraction `held_out` of the
    /// documents, spread evenly over the text, is used only for evaluation.
    ///
    /// # Errors
    /// Returns an error if `context` is 0, if `held_out` is not from 0 to below 1, if there are too few documents to
    /// hold some out, or if the training or held-out part has no target.
    pub fn new(tokens: TokenFile, context: usize, held_out: f64, seed: u64) -> Result<Self> {
        ensure!(context > 0, "samples of 0 tokens; give a context of 1 or more");
        ensure!((0.0..1.0).contains(&held_out), "a share of {held_out} is held out; give at least 0 and less than 1");
        let documents = tokens.documents();
        ensure!(
            held_out == 0.0 || documents > 1,
            "there is one document, so none can be held out; give --held-out 0, or more documents"
        );
        let evaluated = ((documents as f64 * held_out).round() as u64).clamp(u64::from(held_out > 0.0), documents - 1);
        let mut packing = Packing::default();
        let (mut training, mut validation) = (Vec::with_capacity(documents as usize), Vec::new());
        for index in 0..documents {
            // The held-out documents are spread evenly: the last of each of `evaluated` equal groups of documents.
            let part = |index: u64| u128::from(index) * u128::from(evaluated) / u128::from(documents);
            let pieces = if part(index) < part(index + 1) { &mut validation } else { &mut training };
            packing.add(&tokens, tokens.document(index), context as u64, pieces);
        }
        let [training, mut validation] = [training, validation].map(|pieces| pack(pieces, context));
        ensure!(
            evaluated == 0 || !validation.is_empty(),
            "none of the {evaluated} documents that are held out has a token to evaluate among its first {context} after the \
             very first, which is never a target; hold out more documents, or give a longer context"
        );
        ensure!(
            !training.is_empty(),
            "no document{} has a token to train on among its first {context} after the very first, which is never a target; \
             give a longer context, or data with completions or with messages of the role `assistant`",
            if evaluated > 0 { " for training" } else { "" }
        );
        // Validation samples are taken at even intervals, because packing puts the samples with the longest documents
        // first.
        let (all, count) = (validation.len(), validation.len().min(VALIDATION_SAMPLES));
        let validation = (0..count).map(|at| std::mem::take(&mut validation[at * all / count])).collect();
        let filled: usize = training.iter().flatten().map(|piece| piece.length).sum();
        packing.samples = training.len();
        packing.padding = 1.0 - filled as f64 / (training.len() * context) as f64;
        let epochs = Epochs::new(training.len() as u64, seed)?;
        Ok(Self { tokens, training, validation, epochs, context, held_out, packing })
    }

    /// Returns statistics of how the documents are packed into samples.
    pub fn packing(&self) -> Packing {
        self.packing
    }

    fn sample(&self, pieces: &[Piece]) -> Result<Sample> {
        let mut sample = Sample { input: Vec::new(), targets: Vec::new(), starts: Some(Vec::new()) };
        for piece in pieces {
            let mut tokens = vec![0; piece.length + 1];
            self.tokens.read(piece.start, &mut tokens)?;
            let begins = sample.input.len();
            sample.input.extend(&tokens[..piece.length]);
            let targets = (piece.start + 1..).zip(&tokens[1..]);
            sample.targets.extend(targets.map(|(position, token)| self.tokens.is_target(position).then_some(*token)));
            sample.starts.iter_mut().for_each(|starts| starts.resize(begins + piece.length, begins));
        }
        let filled = sample.input.len();
        sample.input.resize(self.context, 0);
        sample.targets.resize(self.context, None);
        sample.starts.iter_mut().for_each(|starts| starts.resize(self.context, filled));
        Ok(sample)
    }

    fn samples<'a>(&self, rows: impl IntoIterator<Item = &'a Vec<Piece>>) -> Result<Batch<TokenSamples, Tokens>> {
        Ok(batch(&rows.into_iter().map(|pieces| self.sample(pieces)).collect::<Result<Vec<_>>>()?))
    }
}

/// Packs pieces of documents into samples of `context` tokens by best-fit decreasing. The longest pieces are placed
/// first. Each piece goes into the fullest sample that still has room for it, or into a new sample if none has. Pieces
/// of equal length keep their order. No piece may be longer than `context`.
fn pack(mut pieces: Vec<Piece>, context: usize) -> Vec<Vec<Piece>> {
    pieces.sort_by_key(|piece| std::cmp::Reverse(piece.length));
    let mut samples: Vec<Vec<Piece>> = Vec::new();
    // Maps a number of free positions to the indices of the samples that still have this much room.
    let mut with_room: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for piece in pieces {
        let fitting = with_room.range_mut(piece.length..).next().map(|(room, of_room)| {
            let sample = of_room.pop().expect("a list without samples is removed");
            (*room, sample, of_room.is_empty())
        });
        let (room, sample) = match fitting {
            Some((room, sample, is_last)) => {
                if is_last {
                    with_room.remove(&room);
                }
                (room, sample)
            }
            None => {
                samples.push(Vec::new());
                (context, samples.len() - 1)
            }
        };
        samples[sample].push(piece);
        if room > piece.length {
            with_room.entry(room - piece.length).or_default().push(sample);
        }
    }
    samples
}

impl Data for PackedDocuments {
    type Input = TokenSamples;
    type Target = Tokens;

    fn batch(&self, step: usize, samples: usize) -> Result<Batch<TokenSamples, Tokens>> {
        let chosen = self.epochs.of_step(step as u64, samples);
        self.samples(chosen.into_iter().map(|sample| &self.training[sample as usize]))
    }

    fn validation(&self, samples: usize) -> Result<Vec<Batch<TokenSamples, Tokens>>> {
        self.validation.chunks(samples).map(|rows| self.samples(rows)).collect()
    }

    fn fingerprint(&self) -> String {
        // A different context length or held-out share gives different samples, and so a different fingerprint.
        let mut sum =
            Sha256::new_with_prefix("held out evenly, long texts divided, conversations cut, orders of 2026-11");
        sum.update(self.tokens.fingerprint());
        sum.update((self.context as u64).to_le_bytes());
        sum.update(self.held_out.to_le_bytes());
        hexadecimal(sum)
    }

    fn samples_per_epoch(&self) -> Option<u64> {
        Some(self.epochs.samples())
    }

    fn tokens_per_sample(&self) -> Option<usize> {
        Some(self.context)
    }

    fn show_loss(&self, loss: f64) -> String {
        shown(loss)
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use stageline::nn::MASKED;
    use stageline_data::{Bytes, TokenOptions, prepare};

    use super::*;

    fn of_lengths(lengths: &[usize], context: usize) -> Vec<Vec<usize>> {
        let pieces = lengths.iter().enumerate().map(|(at, length)| Piece { start: at as u64, length: *length });
        let samples = pack(pieces.collect(), context);
        samples.iter().map(|pieces| pieces.iter().map(|piece| piece.length).collect()).collect()
    }

    #[test]
    fn pieces_go_where_they_leave_the_least_room() {
        assert_eq!(of_lengths(&[2, 7, 3, 8, 5], 10), vec![vec![8, 2], vec![7, 3], vec![5]]);
        assert_eq!(of_lengths(&[10, 10, 1], 10), vec![vec![10], vec![10], vec![1]]);
        assert!(of_lengths(&[], 10).is_empty());
        // With many pieces, none is lost and no sample overflows.
        let lengths: Vec<usize> = (0..1000).map(|at| at * at % 97 + 1).collect();
        let samples = of_lengths(&lengths, 100);
        let sums: Vec<usize> = samples.iter().map(|sample| sample.iter().sum()).collect();
        let mut found: Vec<usize> = samples.into_iter().flatten().collect();
        let mut expected = lengths.clone();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected);
        assert!(sums.iter().all(|sum| *sum <= 100));
        let least = lengths.iter().sum::<usize>().div_ceil(100);
        // Best-fit decreasing needs at most 11/9 of the least possible number of samples, plus 4 (Johnson, 1973).
        assert!(sums.len() <= least * 11 / 9 + 4, "{} samples, at least {least}", sums.len());
    }

    fn packed(lines: &[(&str, &str)], context: usize, held_out: f64) -> Result<PackedDocuments> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.jsonl");
        let line = |(prompt, completion): &(&str, &str)| {
            serde_json::json!({"prompt": prompt, "completion": completion}).to_string() + "\n"
        };
        std::fs::write(&path, lines.iter().map(line).collect::<String>()).unwrap();
        let options = TokenOptions { folder: Some(folder.path().join("tokens")), ..TokenOptions::default() };
        PackedDocuments::new(prepare(&path, &Bytes, &options)?, context, held_out, 3)
    }

    #[test]
    fn a_long_conversation_is_cut_also_if_all_its_tokens_are_trained_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.jsonl");
        std::fs::write(&path, "{\"prompt\": \"mm\", \"completion\": \"nopqrstuv\"}\n{\"text\": \"klmnopqrst\"}\n")
            .unwrap();
        let options = TokenOptions { folder: Some(folder.path().join("tokens")), ..TokenOptions::default() };
        let tokens = prepare(&path, &Bytes, &options).unwrap();
        for tokens in [tokens.training_on_prompts(), prepare(&path, &Bytes, &options).unwrap()] {
            let Packing { divided, cut, lost_tokens, .. } = PackedDocuments::new(tokens, 6, 0.0, 3).unwrap().packing();
            assert_eq!((divided, cut, lost_tokens), (1, 1, 4));
        }
    }

    fn numbers(tokens: Tokens) -> Vec<i64> {
        tokens.into_data().iter::<i64>().collect()
    }

    /// Returns, for each sample of a batch, the input as text (`.` is padding), the targets as text (`_` is masked
    /// out), and the document starts.
    fn shown_samples(batch: Batch<TokenSamples, Tokens>, count: usize) -> Vec<(String, String, Vec<i64>)> {
        let letter = |number: i64| match number {
            0 => '.',
            MASKED => '_',
            letter => char::from(letter as u8),
        };
        let text = |tokens| numbers(tokens).into_iter().map(letter).collect::<String>();
        let pieces = batch.into_micro_batches(count).unwrap();
        pieces
            .into_iter()
            .map(|((input, starts), targets)| (text(input), text(targets), numbers(starts.unwrap().get())))
            .collect()
    }

    #[test]
    fn documents_share_a_sample_and_only_completions_are_targets() {
        let documents = [("ab", "cd"), ("x", "yz"), ("", "klmnopqrst"), ("long prompt", "!"), ("mm", "nopqrstuv")];
        let data = packed(&documents, 6, 0.0).unwrap();
        let Packing { samples, divided, cut, lost_tokens, beyond, left_out, padding } = data.packing();
        assert_eq!((samples, divided, cut, lost_tokens, beyond, left_out), (4, 1, 1, 4, 1, 0));
        assert_eq!(((padding * 24.0).round(), data.samples_per_epoch()), (4.0, Some(4)));
        let mut found = shown_samples(data.batch(0, 4).unwrap(), 4);
        found.sort();
        let expected = [
            ("abcqrs".to_owned(), "_cdrst".to_owned(), vec![0, 0, 0, 3, 3, 3]),
            ("klmnop".to_owned(), "lmnopq".to_owned(), vec![0; 6]),
            ("mmnopq".to_owned(), "_nopqr".to_owned(), vec![0; 6]),
            ("xy....".to_owned(), "yz____".to_owned(), vec![0, 0, 2, 2, 2, 2]),
        ];
        assert_eq!(found, expected);
        assert!(data.validation(2).unwrap().is_empty());
        assert_eq!(data.tokens_per_sample(), Some(6));
    }

    #[test]
    fn held_out_documents_are_spread_over_the_text_and_every_sample_comes_once_an_epoch() {
        let lines: Vec<_> = ["a", "b", "c", "d", "e", "f", "g", "h"].map(|letter| (letter, "completion")).into();
        let data = packed(&lines, 10, 0.2).unwrap();
        let first =
            |samples: Vec<(String, String, Vec<i64>)>| samples.into_iter().map(|(input, ..)| input[..1].to_owned());
        let held_out = data.validation(5).unwrap().into_iter().flat_map(|batch| first(shown_samples(batch, 2)));
        assert_eq!(held_out.collect::<Vec<_>>(), ["d", "h"]);
        let mut trained: Vec<_> =
            (0..2).flat_map(|step| first(shown_samples(data.batch(step, 3).unwrap(), 3))).collect();
        trained.sort();
        assert_eq!(trained, ["a", "b", "c", "e", "f", "g"]);
    }

    #[test]
    fn held_out_samples_are_of_all_lengths() {
        let lines: Vec<_> = (0..1000).map(|at| ("x".repeat(at / 10 + 1), "y")).collect();
        let lines: Vec<_> = lines.iter().map(|(prompt, completion)| (prompt.as_str(), *completion)).collect();
        let data = packed(&lines, 100, 0.9).unwrap();
        let lengths = data.validation.iter().map(|pieces| pieces[0].length).collect::<Vec<_>>();
        assert_eq!((lengths.len(), lengths[0]), (64, 100));
        assert!(lengths[63] < 55, "{lengths:?}");
        let other = packed(&lines, 90, 0.9).unwrap();
        assert_ne!(data.fingerprint(), other.fingerprint(), "other samples are other data");
    }

    #[test]
    fn data_without_anything_to_train_on_is_refused() {
        let refused = |lines: &[(&str, &str)], held_out| packed(lines, 4, held_out).map(drop).unwrap_err().to_string();
        let message = "no document has a token to train on among its first 4 after the very first, which is never a target; give a \
                       longer context, or data with completions or with messages of the role `assistant`";
        assert_eq!(refused(&[("a long prompt", "x")], 0.0), message);
        let message = "none of the 1 documents that are held out has a token to evaluate among its first 4 after the very \
                       first, which is never a target; hold out more documents, or give a longer context";
        assert_eq!(refused(&[("a", "x"), ("a long prompt", "x")], 0.1), message);
        let message = "there is one document, so none can be held out; give --held-out 0, or more documents";
        assert_eq!(refused(&[("a", "x")], 0.1), message);
    }
}
