//! Fuzzes the reading of token files: the input is a whole file, or describes a file that gets a right checksum. The
//! file is then opened and read.

use std::fs;
use std::ops::Range;

use sha2::{Digest, Sha256};
use stageline_data::{TokenError, TokenFile};
use tempfile::TempDir;

/// The largest length in bytes of a fuzz input. Longer inputs are skipped, because shorter ones reach the same code.
const LIMIT: usize = 4_096;

/// The byte that separates the parts of a token file in a fuzz input: the header, the tokens, the ends of the documents
/// and the prompts.
const BORDER: u8 = b'|';

const MAGIC: &[u8; 8] = b"stagetok";
/// The length of a token file's header in bytes.
const HEADER: usize = 112;
/// The length of a token file's checksum (a SHA-256) in bytes.
const HASH: usize = 32;
/// A token file with at least this number of documents holds out whole documents from training.
const DOCUMENTS: usize = 20;

/// The limit in bytes on an error message about a token file, which contains the file's path.
const LONGEST: usize = 1_000;

/// The shares of a token file's tokens that the fuzz target holds out from training. Some are in the allowed range, and
/// some are outside it or at its ends.
const SHARES: [f64; 9] = [0.1, 0.5, f64::MIN_POSITIVE, 0.999_999, 0.0, 1.0, -0.1, f64::NAN, f64::INFINITY];

/// The contents of a valid token file, parsed by the fuzz target itself. The tested code must read the same contents.
struct Expected {
    vocabulary: u64,
    tokens: Vec<u32>,
    /// The ends of the documents in a token file, as numbers of tokens from the file's start.
    ends: Vec<u64>,
    /// The runs of tokens that are not trained on, as positions of the first token and of that after the last.
    prompts: Vec<[u64; 2]>,
    /// The SHA-256 of the tokens, document ends and prompts in a token file, as hexadecimal digits.
    contents: String,
}

/// Opens and reads the token file that a fuzz input describes. Asserts that a valid file is accepted, and an invalid
/// one rejected.
///
/// The first byte is 0 if the rest is a whole file, and 1 if the rest describes a file. A description has four parts,
/// separated by `|`: the header, the tokens, the ends of the documents and the prompts. Each part is a list of numbers,
/// separated by commas. The numbers of the header are the version, the width of a token, the size of the vocabulary, and
/// the numbers of tokens, of documents and of prompts. A missing number gets a valid value (256 for the vocabulary). The hash and the
/// checksum are always right.
pub fn token_file(bytes: &[u8]) {
    let Some((&form, contents)) = bytes.split_first().filter(|_| bytes.len() <= LIMIT) else { return };
    let file = match form.wrapping_sub(b'0') % 2 {
        0 => contents.to_vec(),
        _ => described(contents),
    };
    let root = folder();
    let path = root.path().join("a.tokens");
    fs::write(&path, &file).expect("files can be made");
    match (TokenFile::open(&path), expected(&file)) {
        (Ok(opened), Some(expected)) => {
            assert_eq!(opened.path(), path);
            assert_read(&opened, &expected);
            SHARES.into_iter().for_each(|share| assert_split(&opened, &expected, share));
        }
        (Err(error), None) => {
            assert!(matches!(&error, TokenError::Damaged { path: found, .. } if *found == path), "{error}");
            assert_shown(&error);
        }
        (Ok(_), None) => panic!("a malformed file is opened"),
        (Err(error), Some(_)) => panic!("a valid file is refused: {error}"),
    }
}

fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("temporary folders can be made")
}

/// Returns the number of bytes of one token in a token file, given the size of the vocabulary.
fn width(vocabulary: u64) -> usize {
    if vocabulary <= 65_536 { 2 } else { 4 }
}

/// Returns the bytes of the token file that a fuzz input describes.
fn described(description: &[u8]) -> Vec<u8> {
    let description = String::from_utf8_lossy(description);
    let mut parts = description.split(char::from(BORDER));
    let mut numbers = || -> Vec<Option<u64>> {
        let part = parts.next().unwrap_or_default();
        part.split(',').map(|number| number.trim().parse().ok()).collect()
    };
    let header = numbers();
    let of_header = |at: usize| header.get(at).copied().flatten();
    let [tokens, ends, prompts] = [(); 3].map(|()| numbers().into_iter().flatten().collect::<Vec<u64>>());

    let vocabulary = of_header(2).unwrap_or(256);
    let bytes_of_token = |token: u64| token.to_le_bytes().into_iter().take(width(vocabulary));
    let tokens_bytes: Vec<u8> = tokens.iter().copied().flat_map(bytes_of_token).collect();
    let ends_bytes: Vec<u8> = ends.iter().chain(&prompts).flat_map(|number| number.to_le_bytes()).collect();
    let small = |at, right: usize| (of_header(at).unwrap_or(right as u64) as u32).to_le_bytes();
    let large = |at, right: usize| of_header(at).unwrap_or(right as u64).to_le_bytes();
    let mut file = MAGIC.to_vec();
    file.extend(small(0, 2));
    file.extend(small(1, width(vocabulary)));
    file.extend(vocabulary.to_le_bytes());
    file.extend(large(3, tokens.len()));
    file.extend(large(4, ends.len()));
    file.extend(large(5, prompts.len() / 2));
    file.extend([7; HASH]); // the key, which may be any
    file.extend(Sha256::new().chain_update(&tokens_bytes).chain_update(&ends_bytes).finalize());
    let checksum = Sha256::new().chain_update(&file).chain_update(&ends_bytes).finalize();
    [file, tokens_bytes, ends_bytes, checksum.to_vec()].concat()
}

/// Returns the contents of a token file; `None` if the file is not valid. Lengths are computed in 128 bits, so they
/// cannot overflow.
fn expected(file: &[u8]) -> Option<Expected> {
    let header = file.get(..HEADER)?;
    let small = |at: usize| u32::from_le_bytes(*header[at..].first_chunk().expect("it is in the header"));
    let large = |at: usize| u64::from_le_bytes(*header[at..].first_chunk().expect("it is in the header"));
    let (vocabulary, tokens, documents, prompts) = (large(16), large(24), large(32), large(40));
    let width = width(vocabulary);
    let is_known = header.starts_with(MAGIC) && small(8) == 2 && u64::from(small(12)) == width as u64;
    let numbers = u128::from(documents) * 8 + u128::from(prompts) * 16;
    let length = HEADER as u128 + u128::from(tokens) * width as u128 + numbers + HASH as u128;
    if !is_known || vocabulary == 0 || vocabulary > 1 << 32 || documents == 0 || length != file.len() as u128 {
        return None;
    }
    let (body, checksum) = file[HEADER..].split_at(file.len() - HEADER - HASH);
    let (tokens_bytes, numbers) = body.split_at(tokens as usize * width);
    if Sha256::new().chain_update(header).chain_update(numbers).finalize()[..] != *checksum {
        return None;
    }
    let (ends_bytes, prompts_bytes) = numbers.split_at(documents as usize * 8);
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
    let ends: Vec<u64> = ends_bytes.chunks(8).map(number).collect();
    let is_ascending = ends[0] > 0 && ends.windows(2).all(|pair| pair[0] < pair[1]);
    let contents = header[80..].iter().map(|byte| format!("{byte:02x}")).collect();
    let tokens_read = tokens_bytes.chunks(width).map(|bytes| number(bytes) as u32).collect();
    let prompts: Vec<[u64; 2]> =
        prompts_bytes.chunks(16).map(|range| [number(&range[..8]), number(&range[8..])]).collect();
    let flat = prompts.as_flattened();
    let is_within = flat.windows(2).all(|pair| pair[0] < pair[1]) && flat.last().is_none_or(|last| *last <= tokens);
    let is_complete = is_ascending && ends.last() == Some(&tokens) && is_within;
    is_complete.then_some(Expected { vocabulary, tokens: tokens_read, ends, prompts, contents })
}

/// Asserts that the message of an error about a token file is short and has no control characters.
fn assert_shown(error: &TokenError) {
    for text in [error.to_string(), format!("{error:?}")] {
        assert!(!text.is_empty() && text.len() < LONGEST, "{} bytes: {text}", text.len());
        assert!(!text.contains(|letter: char| letter.is_control() || letter == '\u{202e}'), "{text:?}");
    }
}

/// Asserts that an opened token file has the expected header, tokens and documents.
fn assert_read(file: &TokenFile, expected: &Expected) {
    let (tokens, ends) = (&expected.tokens, &expected.ends);
    assert_eq!((file.len(), file.documents()), (tokens.len() as u64, ends.len() as u64));
    assert_eq!((file.vocabulary() as u64, file.fingerprint()), (expected.vocabulary, expected.contents.clone()));
    let is_prompt = |position: u64| expected.prompts.iter().any(|[start, end]| (*start..*end).contains(&position));
    assert_eq!(file.has_prompts(), !expected.prompts.is_empty());
    assert!((0..file.len()).all(|position| file.is_target(position) != is_prompt(position)));
    let mut start = 0;
    for (document, &end) in (0..).zip(ends) {
        assert_eq!(file.document(document), start..end);
        assert_eq!(file.has_target(start..end), (start..end).any(|position| file.is_target(position)));
        assert!((start..end).all(|position| file.document_start(position) == start));
        assert_range(file, expected, start..end);
        assert_range(file, expected, start..file.len());
        start = end;
    }
    assert_range(file, expected, file.len()..file.len());
}

/// Asserts that reading a range of a token file returns the expected tokens if all are in the vocabulary. Otherwise it
/// must return the error that the file is damaged.
fn assert_range(file: &TokenFile, expected: &Expected, range: Range<u64>) {
    let tokens = &expected.tokens[range.start as usize..range.end as usize];
    let is_known = tokens.iter().all(|&token| u64::from(token) < expected.vocabulary);
    let mut buffer = vec![0; tokens.len()];
    match file.read(range.start, &mut buffer) {
        Ok(()) => assert!(is_known && buffer == tokens, "{buffer:?} is not {tokens:?}"),
        Err(error) => {
            assert!(!is_known && matches!(error, TokenError::Damaged { .. }), "{error}");
            assert_shown(&error);
        }
    }
}

/// Asserts that the split of a token file into training tokens and held-out tokens covers all tokens, and that neither
/// part is empty. With at least `DOCUMENTS` documents, no document may be divided. An error must come from an invalid
/// share or a file of a single token.
fn assert_split(file: &TokenFile, expected: &Expected, share: f64) {
    let is_share = share > 0.0 && share < 1.0;
    match file.split(share) {
        Ok((train, held_out)) => {
            assert!(is_share && train.start == 0 && train.end == held_out.start && held_out.end == file.len());
            assert!(!train.is_empty() && !held_out.is_empty());
            assert!(expected.ends.len() < DOCUMENTS || expected.ends.contains(&train.end));
        }
        Err(error) => {
            match error {
                TokenError::OutOfRange { .. } => assert!(!is_share, "{error}"),
                TokenError::TooFewTokens { tokens } => assert!(is_share && tokens == 1 && file.len() == 1, "{error}"),
                _ => panic!("{error}"),
            }
            assert_shown(&error);
        }
    }
}
