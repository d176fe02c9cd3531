//! Batches for text classifiers: padded tokens, and a label for each text ([`LabelledTexts`]).

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use burn::tensor::{Bool, Int, Tensor, TensorData};
use serde_json::Value;
use sha2::{Digest, Sha256};
use stageline::{Batch, SharedInput};
use stageline_data::{Encode, Epochs, open_file};

use crate::data::Data;
use crate::data::documents::{Tokens, host, tensor};
use crate::fingerprint::hexadecimal;

/// The largest allowed size, in bytes, of a file with labelled texts.
const MOST_BYTES: u64 = 4 << 30;

/// The hold-out interval: the last of every 10 consecutive texts in the file is held out for validation.
const HELD_OUT: usize = 10;

/// The input of a text classifier: the token ids, `[samples, length]`, and a padding mask of the same shape, which is
/// true for padding. Every pipeline stage can read the mask.
pub type PaddedTokens = (Tensor<2, Int>, SharedInput<Tensor<2, Bool>>);

/// Training data for a text classifier. The input is [`PaddedTokens`], and the targets are the labels of the texts,
/// `[samples]`. Every training text comes once per epoch, in an order that a seed decides.
pub struct LabelledTexts {
    texts: Vec<Labelled>,
    /// The length, in tokens, to which all texts are padded or truncated, so that they fit into one tensor.
    length: usize,
    epochs: Epochs,
}

struct Labelled {
    /// The text's line number in the file, counted from 1, for error messages.
    line: usize,
    tokens: Vec<u32>,
    label: i32,
}

impl LabelledTexts {
    /// Reads texts from a JSON-lines file. Each line is an object with a `text` and a `label`, a class index counted
    /// from 0. Every tenth text is held out for validation.
    ///
    /// Texts are padded with token 0, or truncated, to `length` tokens; a truncated text keeps the special tokens at
    /// its end. `seed` decides the order of the training texts in each epoch.
    ///
    /// # Errors
    /// Returns an error that names the line if the line is not such an object, if its text cannot be encoded, or if
    /// `length` leaves no room beside the special tokens. Also returns an error if the file cannot be read, or has no
    /// text.
    pub fn read(path: &Path, encoding: &dyn Encode, length: usize, seed: u64) -> Result<Self> {
        let file = std::io::read_to_string(open_file(path, MOST_BYTES)?);
        let file = file.with_context(|| path.display().to_string())?;
        let lines = (1..).zip(file.lines()).filter(|(_, line)| !line.trim().is_empty());
        let read = |(number, line)| {
            Labelled::read(line, number, encoding, length).with_context(|| format!("{}, line {number}", path.display()))
        };
        let texts = lines.map(read).collect::<Result<Vec<_>>>()?;
        ensure!(!texts.is_empty(), "{}: there is no text", path.display());
        let epochs = Epochs::new((texts.len() - texts.len() / HELD_OUT) as u64, seed)?;
        Ok(Self { texts, length, epochs })
    }

    /// Returns the number of classes: the largest label of all texts, including those held out for validation, plus 1.
    pub fn classes(&self) -> usize {
        self.texts.iter().map(|text| text.label as usize + 1).max().unwrap_or_default()
    }

    /// Checks that all tokens of the texts are below `vocabulary`, the size of the model's vocabulary.
    ///
    /// # Errors
    /// Returns an error that names the first token id that is not in the vocabulary, and the token's line.
    pub fn check(&self, vocabulary: usize) -> Result<()> {
        for Labelled { line, tokens, .. } in &self.texts {
            let beyond = tokens.iter().find(|token| **token as usize >= vocabulary);
            if let Some(token) = beyond {
                bail!(
                    "line {line} has the token id {token}, and the model knows only ids below {vocabulary}; use the model's own tokenizer"
                );
            }
        }
        Ok(())
    }

    fn batch_of(&self, texts: &[&Labelled]) -> Batch<PaddedTokens, Tensor<1, Int>> {
        let shape = [texts.len(), self.length];
        let places = || texts.iter().flat_map(|text| (0..self.length).map(|place| text.tokens.get(place)));
        let padding = places().map(|token| token.is_none()).collect::<Vec<_>>();
        let padding = Tensor::from_data(TensorData::new(padding, shape), &host());
        let tokens: Tokens = tensor(places().map(|token| token.map_or(0, |token| *token as i32)), shape);
        let labels = TensorData::new(texts.iter().map(|text| text.label).collect::<Vec<_>>(), [texts.len()]);
        Batch::new((tokens, SharedInput::new(padding)), Tensor::from_data(labels, &host()))
    }
}

impl Labelled {
    fn read(text: &str, line: usize, encoding: &dyn Encode, length: usize) -> Result<Self> {
        let value: Value = serde_json::from_str(text)?;
        let text = value["text"].as_str().context("it has no `text`")?;
        let label = value["label"].as_u64().and_then(|label| i32::try_from(label).ok());
        let label = label.context("its `label` is no number of a class, counted from 0")?;
        let (mut tokens, special) = (encoding.encode_whole(text)?, encoding.special_tokens());
        let around = special.before.len() + special.after.len();
        ensure!(length > around, "{length} tokens are too few for a text with {around} special tokens");
        if tokens.len() > length {
            tokens.truncate(length - special.after.len());
            tokens.extend(special.after);
        }
        ensure!(!tokens.is_empty(), "its text has no tokens");
        Ok(Self { line, tokens, label })
    }
}

impl Data for LabelledTexts {
    type Input = PaddedTokens;
    type Target = Tensor<1, Int>;

    fn batch(&self, step: usize, samples: usize) -> Result<Batch<PaddedTokens, Tensor<1, Int>>> {
        // Skips every tenth text, which is held out.
        let text = |drawn: u64| drawn as usize + drawn as usize / (HELD_OUT - 1);
        let drawn = self.epochs.of_step(step as u64, samples);
        Ok(self.batch_of(&drawn.into_iter().map(|drawn| &self.texts[text(drawn)]).collect::<Vec<_>>()))
    }

    fn validation(&self, samples: usize) -> Result<Vec<Batch<PaddedTokens, Tensor<1, Int>>>> {
        let held_out: Vec<_> = self.texts.iter().skip(HELD_OUT - 1).step_by(HELD_OUT).collect();
        Ok(held_out.chunks(samples).map(|texts| self.batch_of(texts)).collect())
    }

    fn fingerprint(&self) -> String {
        let mut sum = Sha256::new_with_prefix("each once an epoch, orders of 2026-11");
        sum.update((self.length as u64).to_le_bytes());
        for text in &self.texts {
            sum.update((text.tokens.len() as u64).to_le_bytes());
            text.tokens.iter().for_each(|token| sum.update(token.to_le_bytes()));
            sum.update(text.label.to_le_bytes());
        }
        hexadecimal(sum)
    }

    fn samples_per_epoch(&self) -> Option<u64> {
        Some(self.epochs.samples())
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use stageline_data::{SpecialTokens, TokenError};

    use super::*;

    /// An encoding in which each byte is a token, with the token 300 before each text and 301 after it.
    struct Between;

    impl Encode for Between {
        fn encode(&self, text: &str) -> Result<Vec<u32>, TokenError> {
            Ok(text.bytes().map(u32::from).collect())
        }

        fn special_tokens(&self) -> SpecialTokens {
            SpecialTokens { before: vec![300], after: vec![301] }
        }

        fn decode(&self, _: &[u32]) -> Result<String, TokenError> {
            unreachable!()
        }

        fn vocabulary(&self) -> usize {
            302
        }

        fn fingerprint(&self) -> String {
            "between".to_owned()
        }
    }

    fn read(text: &str, length: usize) -> Result<LabelledTexts> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("texts.jsonl");
        std::fs::write(&path, text).unwrap();
        LabelledTexts::read(&path, &Between, length, 3)
    }

    type Row = (Vec<i64>, Vec<bool>, i64);

    fn rows(batch: Batch<PaddedTokens, Tensor<1, Int>>) -> Vec<Row> {
        let ((tokens, padding), labels) = batch.into_micro_batches(1).unwrap().pop().unwrap();
        let [_, length] = tokens.dims();
        let (tokens, padding) = (tokens.into_data(), padding.get().into_data());
        let (tokens, padding): (Vec<i64>, Vec<bool>) = (tokens.iter().collect(), padding.iter().collect());
        let labels = labels.into_data().iter::<i64>().collect::<Vec<_>>();
        let rows = tokens.chunks(length).zip(padding.chunks(length)).zip(labels);
        rows.map(|((tokens, padding), label)| (tokens.to_vec(), padding.to_vec(), label)).collect()
    }

    /// Returns 20 lines. Text `i` is the letter `A` and `i` further letters, of class `i % 3`.
    fn lines() -> String {
        let line = |i| format!("{{\"text\": \"A{}\", \"label\": {}}}\n", "b".repeat(i), i % 3);
        (0..20).map(line).collect()
    }

    #[test]
    fn a_token_that_a_model_does_not_know_is_named_with_its_line() {
        let texts = read(&lines(), 5).unwrap();
        assert!(texts.check(302).is_ok());
        let error = texts.check(301).unwrap_err().to_string();
        assert!(error.starts_with("line 1 has the token id 301, and the model knows only ids below 301"), "{error}");
    }

    #[test]
    fn texts_are_padded_or_cut_and_end_with_their_special_tokens() {
        let texts = read(&lines(), 5).unwrap();
        assert_eq!(texts.classes(), 3);
        let [short, exact, long] = [0, 2, 7].map(|text| rows(texts.batch_of(&[&texts.texts[text]])).remove(0));
        let (a, b) = (i64::from(b'A'), i64::from(b'b'));
        assert_eq!(short, (vec![300, a, 301, 0, 0], vec![false, false, false, true, true], 0));
        assert_eq!(exact, (vec![300, a, b, b, 301], vec![false; 5], 2));
        assert_eq!(long, (vec![300, a, b, b, 301], vec![false; 5], 1));
    }

    #[test]
    fn every_tenth_text_is_held_out_and_all_others_are_trained_on() {
        let texts = read(&lines(), 30).unwrap();
        let letters = |row: &Row| row.1.iter().filter(|padding| !**padding).count() - 3;
        let held_out = texts.validation(4).unwrap().into_iter().flat_map(rows);
        assert_eq!(held_out.map(|row| letters(&row)).collect::<Vec<_>>(), [9, 19]);
        let trained = (0..100).flat_map(|step| rows(texts.batch(step, 4).unwrap()));
        let trained: std::collections::BTreeSet<_> = trained.map(|row| letters(&row)).collect();
        assert_eq!(trained, (0..19).filter(|text| *text != 9).collect());
    }

    #[test]
    fn other_texts_labels_and_lengths_are_other_data() {
        let fingerprint = |text: &str, length| read(text, length).unwrap().fingerprint();
        let expected = fingerprint(&lines(), 5);
        assert_eq!(fingerprint(&lines(), 5), expected);
        assert_ne!(fingerprint(&lines(), 6), expected);
        assert_ne!(fingerprint(&lines().replacen("\"label\": 0", "\"label\": 1", 1), 5), expected);
        assert_ne!(fingerprint(&lines().replacen("Ab", "Ac", 1), 5), expected);
    }

    #[test]
    fn lines_that_cannot_be_read_are_named() {
        for (line, message) in [
            ("[", "EOF"),
            ("{\"label\": 1}", "it has no `text`"),
            ("{\"text\": \"a\", \"label\": -1}", "its `label` is no number of a class, counted from 0"),
            ("{\"text\": \"a\", \"label\": \"good\"}", "its `label` is no number of a class, counted from 0"),
        ] {
            let error = format!("{:#}", read(&format!("{}{line}\n", lines()), 5).map(drop).unwrap_err());
            assert!(error.contains("texts.jsonl, line 21") && error.contains(message), "{error}");
        }
        assert!(format!("{:#}", read("\n", 5).map(drop).unwrap_err()).contains("there is no text"));
        let few = format!("{:#}", read(&lines(), 2).map(drop).unwrap_err());
        assert!(few.contains("2 tokens are too few for a text with 2 special tokens"), "{few}");
    }
}
