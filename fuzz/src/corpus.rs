//! Fuzzes the corpus of training text: reads bytes as a folder of small files with options, opens the folder as a
//! corpus, samples windows, and then changes a file.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use stageline_data::{Corpus, CorpusError, CorpusOptions, Sampler, Text};

/// The largest length in bytes of a fuzz input. Longer inputs are skipped, because shorter ones reach the same code.
const LIMIT: usize = 1_024;
/// The largest number of text files that a fuzz input describes.
const FILES: usize = 8;

/// The byte that separates the contents of two text files in a fuzz input.
const BORDER: u8 = b'|';

const MAX_BYTES: [u64; 6] = [32 << 20, 0, 1, 7, 100, u64::MAX];
const MAX_FILES: [usize; 6] = [16_384, 0, 1, 2, 3, usize::MAX];
const FRACTIONS: [f64; 8] = [0.1, 0.0, 0.5, 0.999_999, 1.0, -0.1, f64::NAN, f64::MIN_POSITIVE];
const WINDOWS: [usize; 6] = [4, 0, 1, 2, 65, usize::MAX];

/// Opens the corpus of training text that a fuzz input describes. Asserts that its texts, the windows (short pieces of
/// text) that a sampler chooses from them, and its errors are right.
///
/// The first six bytes choose the settings, in this order: seed, limit on bytes, limit on files, held-out share, window
/// length, and later change of a file. The rest is the contents of the files.
pub fn corpus(bytes: &[u8]) {
    let Some((&[seed, max_bytes, max_files, fraction, window, change], contents)) = bytes.split_first_chunk() else {
        return;
    };
    let contents: Vec<&[u8]> = contents.split(|&byte| byte == BORDER).take(FILES).collect();
    if bytes.len() > LIMIT {
        return;
    }
    let root = tempfile::tempdir().expect("temporary folders can be made");
    let paths: Vec<PathBuf> = (0..contents.len()).map(|i| path(root.path(), i)).collect();
    for (path, contents) in paths.iter().zip(&contents) {
        fs::create_dir_all(path.parent().expect("it lies in a folder")).expect("folders can be made");
        fs::write(path, contents).expect("files can be made");
    }
    let options = CorpusOptions {
        extensions: None,
        max_bytes: *digit(&MAX_BYTES, max_bytes),
        max_files: *digit(&MAX_FILES, max_files),
        validation_fraction: *digit(&FRACTIONS, fraction),
        seed: u64::from(seed),
    };
    let Some(corpus) = opened(root.path(), &contents, &options) else { return };
    let texts = [corpus.train(), corpus.validation()];
    let wholes = texts.map(|text| whole(text).expect("nothing has changed"));
    assert_complete(&texts, &wholes, &contents, &options);
    for (text, whole) in texts.into_iter().zip(&wholes) {
        assert_windows(text, whole, *digit(&WINDOWS, window), u64::from(seed));
    }
    let again = Corpus::open(root.path(), &options).expect("it was opened before");
    assert_eq!(again.fingerprint(), corpus.fingerprint());

    let all = wholes.concat().len() == contents.concat().len();
    if changed(&paths[usize::from(seed) % paths.len()], change) {
        let reads = texts.map(whole_or_changed);
        assert!(!all || reads.contains(&None), "a file that changed is read as if it had not");
        for (read, whole) in reads.iter().zip(&wholes) {
            assert!(read.as_ref().is_none_or(|read| read == whole));
        }
    }
}

/// Returns the element of `list` at the index given by the digit `byte`, modulo the length of the list. A byte that is
/// no digit also selects an element.
fn digit<T>(list: &[T], byte: u8) -> &T {
    &list[usize::from(byte.wrapping_sub(b'0')) % list.len()]
}

/// Returns the path of the corpus's text file with the index `i`. Some files have an extension, and some are in nested
/// folders.
fn path(root: &Path, i: usize) -> PathBuf {
    root.join(match i % 4 {
        0 => format!("{i}"),
        1 => format!("{i}.txt"),
        2 => format!("folder/{i}.rs"),
        _ => format!("folder/{i}/é .txt"),
    })
}

/// Opens a corpus of text files. Asserts that this succeeds if the options are in range and at least one file is not
/// empty. Otherwise it must give the right error. Returns `None` if the corpus does not open.
fn opened(root: &Path, contents: &[&[u8]], options: &CorpusOptions) -> Option<Corpus> {
    let in_range = options.max_bytes > 0 && options.max_files > 0 && (0.0..1.0).contains(&options.validation_fraction);
    let empty = contents.iter().all(|contents| contents.is_empty());
    match Corpus::open(root, options) {
        Ok(corpus) => {
            assert!(in_range && !empty);
            Some(corpus)
        }
        Err(CorpusError::OutOfRange { .. }) if !in_range => None,
        Err(CorpusError::NothingToRead { .. }) if in_range && empty => None,
        Err(other) => panic!("{other}"),
    }
}

fn whole(text: &Text) -> Result<Vec<u8>, CorpusError> {
    let mut bytes = vec![0; text.len() as usize];
    text.read(0, &mut bytes)?;
    Ok(bytes)
}

/// Reads all bytes of a corpus's training text or validation text. Returns `None` if one of the text's files has
/// changed since the corpus was opened.
fn whole_or_changed(text: &Text) -> Option<Vec<u8>> {
    match whole(text) {
        Ok(bytes) => Some(bytes),
        Err(CorpusError::Changed { .. }) => None,
        Err(other) => panic!("{other}"),
    }
}

/// Asserts that the training text and the validation text together have the bytes of the corpus's files, up to the
/// limits in the options.
fn assert_complete(texts: &[&Text; 2], wholes: &[Vec<u8>; 2], contents: &[&[u8]], options: &CorpusOptions) {
    let [train, validation] = texts;
    assert!(!train.is_empty());
    assert!(train.files() <= options.max_files && validation.files() <= options.max_files);
    let read = train.len() + validation.len();
    assert_eq!(validation.is_empty(), options.validation_fraction == 0.0 || read == 1);
    let count = |bytes: &[u8]| {
        let mut counts = [0_u64; 256];
        bytes.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
        counts
    };
    let there = contents.concat();
    let all = count(&there);
    let counts = texts.map(|text| text.byte_counts().expect("nothing has changed"));
    assert_eq!(counts, [count(&wholes[0]), count(&wholes[1])]);
    assert!((0..256).all(|byte| counts[0][byte] + counts[1][byte] <= all[byte]));
    assert!(read <= options.max_bytes);
    if options.max_files >= contents.len() {
        assert_eq!(read, options.max_bytes.min(there.len() as u64));
    }
    let entropy = train.unigram_entropy().expect("nothing has changed");
    assert!((0.0..=8.0).contains(&entropy));
}

/// Asserts that the windows that a sampler chooses lie inside the text, and that reading them gives the text's bytes.
fn assert_windows(text: &Text, whole: &[u8], window: usize, step: u64) {
    let sampler = match Sampler::new(text.len(), window, step) {
        Ok(sampler) => sampler,
        Err(CorpusError::OutOfRange { name: "window", .. }) => return assert_eq!(window, 0),
        Err(CorpusError::TextTooShort { text_len, .. }) => return assert!((text_len as usize) < window),
        Err(other) => panic!("{other}"),
    };
    let mut buffer = vec![0; window];
    let even = sampler.evenly(4);
    assert_eq!(even.len(), (whole.len() / window).min(4));
    assert!(even.windows(2).all(|pair| pair[0] + window as u64 <= pair[1]));
    for offset in sampler.offsets(step, 8).into_iter().chain(even) {
        text.read(offset, &mut buffer).expect("nothing has changed");
        assert_eq!(buffer, whole[offset as usize..offset as usize + window]);
    }
}

/// Changes a file in the way that the digit `change` selects: not at all, cut in half, made longer, removed, or
/// replaced by a folder. Returns true if the file was not empty and has changed.
fn changed(path: &Path, change: u8) -> bool {
    let length = fs::metadata(path).expect("it is there").len();
    let file = File::options().write(true).open(path).expect("it is there");
    let resized = |length| file.set_len(length).expect("it can be resized");
    match usize::from(change.wrapping_sub(b'0')) % 5 {
        0 => return false,
        1 => resized(length / 2),
        2 => resized(length + 1),
        3 => fs::remove_file(path).expect("it can be removed"),
        _ => {
            fs::remove_file(path).expect("it can be removed");
            fs::create_dir(path).expect("folders can be made");
        }
    }
    length > 0
}
