//! Shows a language model's samples as text, with their targets marked ([`show_samples`]).

use std::fmt::Write;
use std::iter;

use anyhow::{Result, ensure};
use stageline::checkpoint::Printable;
use stageline::nn::MASKED;
use stageline_data::Encode;

use crate::data::Data;
use crate::data::documents::{TokenSamples, Tokens};

/// Returns the first `count` training samples (or all, if an epoch has fewer) as text, to show what a model reads and
/// is trained to predict. Text whose tokens are targets is between `«` and `»`, and each document begins on a line of
/// its own.
///
/// # Errors
/// Returns an error if `count` is 0, or if the samples cannot be read or their tokens cannot be decoded.
pub fn show_samples<D>(data: &D, encoding: &dyn Encode, count: usize) -> Result<String>
where
    D: Data<Input = TokenSamples, Target = Tokens> + ?Sized,
{
    ensure!(count > 0, "0 samples are to be shown; give 1 or more");
    let all = data.samples_per_epoch().and_then(|all| usize::try_from(all).ok());
    let count = all.map_or(count, |all| count.min(all));
    let mut text = String::new();
    let samples = data.batch(0, count)?.into_micro_batches(count)?;
    for (at, ((input, starts), targets)) in samples.into_iter().enumerate() {
        let starts = starts.map(|starts| numbers(starts.get()));
        let documents = documents(&numbers(input), starts.as_deref(), &numbers(targets));
        let all: usize = documents.iter().map(Vec::len).sum();
        let trained = documents.iter().flatten().filter(|(_, is_target)| *is_target).count();
        writeln!(text, "sample {at}: {all} tokens in {} documents, {trained} are trained on", documents.len())?;
        for document in documents {
            writeln!(text, "  {}", shown(&document, encoding)?)?;
        }
    }
    Ok(text)
}

fn numbers(tokens: Tokens) -> Vec<i64> {
    tokens.into_data().iter::<i64>().collect()
}

/// A token id, and whether the token is a target (marked in the shown text).
type Marked = (u32, bool);

/// Splits a sample into its documents, drops padding, and marks the tokens that are targets (not masked out in
/// `targets`). `starts` are the document starts; without them, the sample is one document.
fn documents(input: &[i64], starts: Option<&[i64]>, targets: &[i64]) -> Vec<Vec<Marked>> {
    let begins = |at: usize| starts.map_or(at == 0, |starts| at == 0 || starts[at] != starts[at - 1]);
    let borders: Vec<_> = (0..input.len()).filter(|at| begins(*at)).chain(iter::once(input.len())).collect();
    let mut documents = Vec::new();
    for border in borders.windows(2) {
        let (input, targets) = (&input[border[0]..border[1]], &targets[border[0]..border[1]]);
        let is_last = border[1] == borders[borders.len() - 1];
        let has_no_target = targets.iter().all(|target| *target == MASKED);
        let is_padding =
            starts.is_some() && is_last && has_no_target && border[0] > 0 && input.iter().all(|token| *token == 0);
        if is_padding {
            continue;
        }
        let mut document = vec![(input[0] as u32, false)];
        // A masked-out target's token id is taken from the input.
        let next = input[1..].iter().map(Some).chain(iter::once(None));
        document.extend(targets.iter().zip(next).filter_map(|(target, next)| match *target {
            MASKED => next.map(|token| (*token as u32, false)),
            target => Some((target as u32, true)),
        }));
        documents.push(document);
    }
    documents
}

/// Decodes a document, with `«` and `»` around the text whose tokens are targets.
fn shown(document: &[Marked], encoding: &dyn Encode) -> Result<String> {
    let mut text = String::new();
    for run in document.chunk_by(|(_, one), (_, other)| one == other) {
        let tokens: Vec<_> = run.iter().map(|(token, _)| *token).collect();
        let mut decoded = String::new();
        let is_known = |token: &u32| (*token as usize) < encoding.vocabulary();
        for part in tokens.chunk_by(|one, other| is_known(one) == is_known(other)) {
            match is_known(&part[0]) {
                true => decoded += &encoding.decode(part)?,
                false => part.iter().try_for_each(|token| write!(decoded, "<{token}>"))?,
            }
        }
        // Control characters are escaped, because the text goes to a terminal.
        let plain: String = decoded.split_inclusive(['\n', '\t']).map(escaped).collect();
        text += &if run[0].1 { format!("«{plain}»") } else { plain };
    }
    Ok(text)
}

/// Escapes the control characters of `text`, except for one line feed or tab at its end.
fn escaped(text: &str) -> String {
    let line = text.strip_suffix(['\n', '\t']).unwrap_or(text);
    Printable::new(line).at_most(usize::MAX).to_string() + &text[line.len()..]
}

#[cfg(test)]
#[cfg(feature = "flex")]
mod tests {
    use stageline_data::{Bytes, TokenOptions, prepare};

    use super::*;
    use crate::data::packed::PackedDocuments;
    use crate::data::windows::TokenWindows;

    #[test]
    fn targets_are_marked_and_padding_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let prepared = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            let tokens = Some(folder.path().join("tokens"));
            let options = TokenOptions { folder: tokens, end_of_document: Some(256), ..TokenOptions::default() };
            prepare(&path, &Bytes, &options).unwrap()
        };
        let lines = "{\"prompt\": \"ab\", \"completion\": \"cd\"}\n{\"prompt\": \"x\\u001b\", \"completion\": \"y\"}\n";
        let packed = PackedDocuments::new(prepared("a.jsonl", lines), 10, 0.0, 0).unwrap();
        let expected = "sample 0: 9 tokens in 2 documents, 5 are trained on\n  ab«cd<256>»\n  x\\u{1b}«y<256>»\n";
        assert_eq!(show_samples(&packed, &Bytes, 1).unwrap(), expected);
        let windows = TokenWindows::new(prepared("b.txt", "abcdef"), 6, 0.0, 0).unwrap();
        let expected = "sample 0: 7 tokens in 1 documents, 6 are trained on\n  a«bcdef<256>»\n";
        assert_eq!(show_samples(&windows, &Bytes, 1).unwrap(), expected);
    }
}
