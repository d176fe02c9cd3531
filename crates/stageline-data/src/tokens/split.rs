//! Splits the tokens of a token file into training tokens and tokens that are held out for validation.

use std::ops::Range;

use crate::tokens::error::TokenError;
use crate::tokens::file::TokenFile;

/// Minimum number of documents for splitting a token file at a document boundary, so that no document is in both
/// training and validation. With fewer documents, one may be divided.
const DOCUMENTS: usize = 20;

impl TokenFile {
    /// Splits the file into two ranges of token positions: the training tokens, and the tokens at the end of the file
    /// that are held out for validation. `held_out`, above 0 and below 1, is the fraction of the tokens to hold out.
    /// Neither range is empty.
    ///
    /// In a file of at least 20 documents, the split point moves to the nearest start of a document, so that each
    /// document is in one range. With long documents, the held-out fraction may then differ from `held_out`.
    ///
    /// # Errors
    /// - [`TokenError::OutOfRange`] if `held_out` is not above 0 and below 1.
    /// - [`TokenError::TooFewTokens`] if the file has a single token.
    pub fn split(&self, held_out: f64) -> Result<(Range<u64>, Range<u64>), TokenError> {
        let border = border(self.len(), self.ends(), held_out)?;
        Ok((0..border, border..self.len()))
    }
}

/// Returns the position of the first held-out token, counted from 0, in a file of `tokens` tokens. `ends` lists the end
/// position of each document as little-endian bytes. `held_out` is the fraction of the tokens to hold out.
fn border(tokens: u64, ends: &[[u8; 8]], held_out: f64) -> Result<u64, TokenError> {
    if !(held_out > 0.0 && held_out < 1.0) {
        let (name, allowed) = ("held_out", "above 0 and below 1".into());
        return Err(TokenError::OutOfRange { name, value: held_out.to_string(), allowed });
    }
    if tokens < 2 {
        return Err(TokenError::TooFewTokens { tokens });
    }
    let border = tokens - ((tokens as f64 * held_out).round() as u64).clamp(1, tokens - 1);
    if ends.len() < DOCUMENTS {
        return Ok(border);
    }
    // Each end but the last is the start of the next document. The nearest start is either the last one before the
    // border, or the first one at or after it.
    let starts = &ends[..ends.len() - 1];
    let after = starts.partition_point(|&start| u64::from_le_bytes(start) < border);
    let near = &starts[after.saturating_sub(1)..(after + 1).min(starts.len())];
    let near = near.iter().map(|&start| u64::from_le_bytes(start));
    Ok(near.min_by_key(|start| start.abs_diff(border)).unwrap_or(border))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the index, from 0, of the first held-out token in a test file whose documents have the given `lengths`
    /// in tokens. `held_out` is the share of the tokens to hold out.
    fn split(lengths: &[u64], held_out: f64) -> Result<u64, TokenError> {
        let mut end = 0;
        let ends = lengths.iter().map(|length| {
            end += length;
            end.to_le_bytes()
        });
        let ends: Vec<_> = ends.collect();
        border(end, &ends, held_out)
    }

    #[test]
    fn few_documents_are_split_by_tokens() {
        assert_eq!(split(&[1_000], 0.1).unwrap(), 900);
        assert_eq!(split(&[50; 19], 0.1).unwrap(), 855);
        assert_eq!(split(&[2], 0.001).unwrap(), 1);
        assert_eq!(split(&[2], 0.999).unwrap(), 1);
    }

    #[test]
    fn many_documents_are_held_out_whole() {
        assert_eq!(split(&[50; 20], 0.1).unwrap(), 900);
        assert_eq!(split(&[50; 20], 0.13).unwrap(), 850); // the split point 870 is nearest to 850
        assert_eq!(split(&[50; 20], 0.12).unwrap(), 900); // the split point 880 is nearest to 900
        assert_eq!(split(&[50; 20], 0.0001).unwrap(), 950);
        assert_eq!(split(&[50; 20], 0.9999).unwrap(), 50);
        let mut long_end = [1; 20];
        long_end[19] = 1_000;
        assert_eq!(split(&long_end, 0.1).unwrap(), 19);
        long_end.reverse();
        assert_eq!(split(&long_end, 0.9).unwrap(), 1_000);
    }

    #[test]
    fn one_token_and_shares_out_of_range_are_refused() {
        assert!(matches!(split(&[1], 0.5), Err(TokenError::TooFewTokens { tokens: 1 })));
        for held_out in [0.0, 1.0, -0.1, f64::NAN, f64::INFINITY] {
            let error = split(&[10], held_out).unwrap_err();
            assert_eq!(error.to_string(), format!("held_out is {held_out}; it must be above 0 and below 1"));
        }
    }
}
