//! Training data in a JSON file of token rows, which are trained on in the order of the file ([`TokenRows`]).

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};
use stageline::Batch;
use stageline_data::open_file;

use crate::data::Data;
use crate::data::documents::{Sample, TokenSamples, Tokens, batch, shown, tensor};
use crate::fingerprint::hexadecimal;

/// Advice at the end of the error for a JSON file without token rows. It also mentions JSON lines, because document
/// datasets are often arrays of objects.
const ROWS: &str = "give an array of equally long arrays of tokens; give documents as JSON lines, one object a line, in a \
                    file that ends in .jsonl (rename a file of such lines; from an array of objects, jq -c '.[]' FILE.json > \
                    FILE.jsonl makes one)";

/// The largest allowed size, in bytes, of a JSON file with token rows.
const MOST_BYTES_OF_ROWS: u64 = 1 << 30;

/// Training data for a language model: token rows of equal length, each of which is one sample. Rows are used in order,
/// and again from the first after the last. In a row, every token but the first is a target.
pub struct TokenRows {
    path: PathBuf,
    rows: Vec<Vec<u32>>,
}

impl TokenRows {
    /// Reads a JSON file with an array of equally long arrays of token ids. One-token rows are accepted, but have no
    /// target, so [`batch`](Data::batch) returns an error for them.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, has no such array, or has no tokens.
    pub fn read(path: &Path) -> Result<Self> {
        let shown = || path.display().to_string();
        let mut json = Vec::new();
        open_file(path, MOST_BYTES_OF_ROWS)?.read_to_end(&mut json).with_context(shown)?;
        let rows: Vec<Vec<u32>> = serde_json::from_slice(&json).with_context(|| format!("{}: {ROWS}", shown()))?;
        let Some(first) = rows.first().filter(|row| !row.is_empty()) else {
            bail!("{}: there is no token; {ROWS}", shown());
        };
        if let Some(other) = rows.iter().position(|row| row.len() != first.len()) {
            let (length, expected) = (rows[other].len(), first.len());
            bail!("{}: row {other} has {length} tokens, and row 0 has {expected}; give rows of one length", shown());
        }
        Ok(Self { path: path.to_owned(), rows })
    }

    /// Checks that all token ids are below `vocabulary` (the model's vocabulary size), and that rows have at most
    /// `longest` tokens.
    ///
    /// # Errors
    /// Returns an error that names the file, and the token or the row length that does not fit.
    pub fn check(&self, vocabulary: usize, longest: usize) -> Result<()> {
        let (path, length) = (self.path.display(), self.rows[0].len());
        let largest = self.rows.iter().flatten().copied().max().unwrap_or_default() as usize;
        ensure!(
            largest < vocabulary,
            "{path}: the token {largest} is not in the model's vocabulary; give ids below {vocabulary}"
        );
        ensure!(length <= longest, "{path}: the rows have {length} tokens; give at most {longest}, the model's length");
        Ok(())
    }

    /// Returns the input length: a row's length without its last token, which is only a target.
    pub fn context(&self) -> usize {
        self.rows[0].len() - 1
    }

    /// Returns the token ids of all rows as one model input, `[rows, length]`.
    pub fn input(&self) -> Tokens {
        tensor(self.rows.iter().flatten().map(|token| *token as i32), [self.rows.len(), self.rows[0].len()])
    }
}

impl Data for TokenRows {
    type Input = TokenSamples;
    type Target = Tokens;

    fn batch(&self, step: usize, samples: usize) -> Result<Batch<TokenSamples, Tokens>> {
        let path = self.path.display();
        ensure!(self.rows[0].len() > 1, "{path}: a row of one token has no target; give rows of two tokens or more");
        let row = |sample: usize| Sample::of_row(&self.rows[(step * samples + sample) % self.rows.len()]);
        Ok(batch(&(0..samples).map(row).collect::<Vec<_>>()))
    }

    fn fingerprint(&self) -> String {
        // The row length is part of the data: it decides which tokens form a sample.
        let mut sum = Sha256::new_with_prefix((self.rows[0].len() as u64).to_le_bytes());
        self.rows.iter().flatten().for_each(|token| sum.update(token.to_le_bytes()));
        hexadecimal(sum)
    }

    fn samples_per_epoch(&self) -> Option<u64> {
        Some(self.rows.len() as u64)
    }

    fn tokens_per_sample(&self) -> Option<usize> {
        Some(self.context())
    }

    fn show_loss(&self, loss: f64) -> String {
        shown(loss)
    }
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use super::*;

    fn numbers(tokens: Tokens) -> Vec<i64> {
        tokens.into_data().iter::<i64>().collect()
    }

    #[test]
    fn rows_are_trained_on_in_their_order_and_must_be_equally_long() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.json");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            TokenRows::read(&path)
        };
        let rows = read("[[1, 2, 3], [4, 5, 6], [7, 8, 9]]").unwrap();
        let mut pieces = rows.batch(1, 2).unwrap().into_micro_batches(1).unwrap();
        let ((input, _), target) = pieces.pop().unwrap();
        assert_eq!((numbers(input), numbers(target)), (vec![7, 8, 1, 2], vec![8, 9, 2, 3]));
        assert_eq!(rows.input().dims(), [3, 3]);
        let longer = read("[[1, 2, 3, 4, 5, 6, 7, 8, 9]]").unwrap();
        assert_ne!(longer.fingerprint(), rows.fingerprint(), "the same tokens are other samples");
        assert!(rows.check(10, 3).is_ok());
        let refused = |vocabulary, longest| rows.check(vocabulary, longest).unwrap_err().to_string();
        let unknown = "rows.json: the token 9 is not in the model's vocabulary; give ids below 9";
        assert!(refused(9, 3).ends_with(unknown), "{}", refused(9, 3));
        let long = "rows.json: the rows have 3 tokens; give at most 2, the model's length";
        assert!(refused(10, 2).ends_with(long), "{}", refused(10, 2));
        for (text, message) in [
            ("[[1, 2], [3]]", "row 1 has 1 tokens, and row 0 has 2; give rows of one length"),
            ("[]", ROWS),
            ("\u{feff}[[1]]", ROWS),
            ("[[1], [-2]]", ROWS),
            ("[{\"text\": \"a\"}]", ROWS),
        ] {
            let error = read(text).map(drop).unwrap_err().to_string();
            assert!(error.ends_with(message), "{error}");
        }
    }
}
