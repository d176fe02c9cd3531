//! Tests random mutations of a valid model folder: opening one never panics or returns an unsafe error message.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use proptest::sample::Index;
use stageline_hub::{FolderError, ModelFolder};

use crate::toy;

/// The words that random mutations insert into the files of a model folder: parts of headers and indices, numbers at
/// the limits of their range, and text that is unsafe to print.
pub const WORDS: [&str; 20] = [
    "0",
    "-1",
    "1e999",
    "18446744073709551615",
    "18446744073709551616",
    "2305843009213693952",
    "null",
    "{",
    "}",
    "[]",
    "\"",
    ",",
    "../",
    "\\u0000",
    "\\u001b[2J",
    "\u{1b}[2J\u{202e}",
    "\"F4\"",
    "h.0.weight",
    "model-00001-of-00002.safetensors",
    "\"x\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},",
];

/// A random mutation of the bytes of a file, for tests.
#[derive(Clone, Debug)]
enum Mutation {
    Truncate(Index),
    Set(Index, u8),
    Flip(Index, u8),
    /// A random mutation that replaces some bytes of a file by a word from the list [`WORDS`]. The fields are the
    /// position of the first replaced byte, the largest number of replaced bytes, and the index of the word.
    Replace(Index, usize, usize),
    /// A random mutation that replaces the end of a file by a copy of another part. The first field is the position
    /// where the copied part begins; it extends to the end of the file. The second field is the position where the
    /// replaced end begins.
    Splice(Index, Index),
    /// A random mutation that replaces the first eight bytes of a file. In a weights file, these are the length of the
    /// header.
    Length(u64),
}

impl Mutation {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let place = |index: &Index, bytes: &Vec<u8>| index.index(bytes.len() + 1);
        match self {
            Self::Truncate(at) => bytes.truncate(place(at, bytes)),
            Self::Set(at, value) => {
                let at = place(at, bytes);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = *value;
                }
            }
            Self::Flip(at, bit) => {
                let at = place(at, bytes);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << bit;
                }
            }
            Self::Replace(at, most, word) => {
                let at = place(at, bytes);
                let end = bytes.len().min(at + most);
                bytes.splice(at..end, WORDS[*word].bytes());
            }
            Self::Splice(from, to) => {
                let tail = bytes[place(from, bytes)..].to_vec();
                bytes.truncate(place(to, bytes));
                bytes.extend(tail);
            }
            Self::Length(length) => {
                let end = bytes.len().min(8);
                bytes.splice(..end, length.to_le_bytes());
            }
        }
    }
}

fn mutation() -> impl Strategy<Value = Mutation> {
    prop_oneof![
        1 => any::<Index>().prop_map(Mutation::Truncate),
        4 => (any::<Index>(), any::<u8>()).prop_map(|(at, value)| Mutation::Set(at, value)),
        4 => (any::<Index>(), 0..8u8).prop_map(|(at, bit)| Mutation::Flip(at, bit)),
        8 => (any::<Index>(), 0..24usize, 0..WORDS.len()).prop_map(|(at, most, word)| Mutation::Replace(at, most, word)),
        1 => (any::<Index>(), any::<Index>()).prop_map(|(from, to)| Mutation::Splice(from, to)),
        1 => prop_oneof![any::<u64>(), 0..512u64].prop_map(Mutation::Length),
    ]
}

/// Opens a model folder that may be malformed, reads every tensor and writes a copy of the folder. Returns all errors,
/// for a test that checks their messages.
fn errors(path: &Path) -> Vec<FolderError> {
    let folder = match ModelFolder::open(path) {
        Ok(folder) => folder,
        Err(error) => return vec![error],
    };
    let mut errors = Vec::new();
    for (name, info) in folder.tensors() {
        let tensor = folder.expect(name, &info.shape).expect("the tensor is listed");
        match tensor.to_f32() {
            Ok(values) => assert_eq!(values.len(), info.shape.iter().product::<usize>()),
            Err(error) => errors.push(error),
        }
        errors.extend(folder.expect(name, &[7, 7, 7]).err());
        errors.extend(folder.tensor(&format!("{name}?")).err());
    }
    let layout = folder.layout().expect("the folder exists");
    assert_eq!(layout.tensors().count(), folder.tensors().len());
    assert_eq!(layout.files().len(), layout.files().iter().filter(|file| path.join(&file.name).is_file()).count());
    let copy = toy::folder(&[("config.json", b"{}")]);
    match layout.write(copy.path(), |name| folder.tensor(name)) {
        Ok(()) => {
            assert_eq!(ModelFolder::open(copy.path()).expect("it was written").tensors().len(), folder.tensors().len())
        }
        Err(error) => errors.push(error),
    }
    errors
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_mutated_folder_is_read_or_refused_with_a_safe_message(
        mutations in prop::collection::vec((0..4usize, mutation()), 1..4)
    ) {
        let mut files = toy::sharded_files();
        for (file, mutation) in &mutations {
            mutation.apply(&mut files[*file].1);
        }
        let dir = toy::folder(&[]);
        for (name, contents) in &files {
            fs::write(dir.path().join(name), contents).unwrap();
        }
        errors(dir.path()).iter().for_each(toy::check_text);
    }
}
