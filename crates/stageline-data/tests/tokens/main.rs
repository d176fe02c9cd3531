//! Tests token files and tokenizers: sources, the cache, reading of damaged or forged files, and the inputs of a
//! fuzzer. All tests are one binary.

mod cache;
#[cfg(feature = "tokenizers")]
mod chats;
mod formats;
mod fuzz_inputs;
mod hostile;
mod prompts;
mod sources;
#[cfg(feature = "tokenizers")]
mod tokenizer;

use std::fs;
use std::path::{Path, PathBuf};

use stageline_data::{Bytes, Encode, TokenError, TokenFile, TokenOptions, prepare};

/// A test's temporary folder, which contains a text to tokenise and a folder for token files.
struct Room {
    root: tempfile::TempDir,
    source: PathBuf,
    options: TokenOptions,
}

impl Room {
    /// Creates a test's temporary folder with one text file to tokenise, which has the given name and contents.
    fn with(name: &str, contents: impl AsRef<[u8]>) -> Self {
        let root = tempfile::tempdir().unwrap();
        let source = root.path().join(name);
        fs::write(&source, contents).unwrap();
        let options = TokenOptions { folder: Some(root.path().join("tokens")), ..TokenOptions::default() };
        Self { root, source, options }
    }

    fn prepare(&self) -> Result<TokenFile, TokenError> {
        prepare(&self.source, &Bytes, &self.options)
    }

    /// Returns the sorted names of all files in the folder for token files.
    fn names(&self) -> Vec<String> {
        let folder = fs::read_dir(self.options.folder.as_ref().unwrap()).unwrap();
        let mut names: Vec<_> = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn tokens(file: &TokenFile) -> Vec<u32> {
    let mut tokens = vec![0; file.len() as usize];
    file.read(0, &mut tokens).unwrap();
    tokens
}

/// Returns the text of each document of a token file whose tokens are bytes.
fn documents(file: &TokenFile) -> Vec<String> {
    let mut documents = Vec::new();
    let mut end = file.len();
    while end > 0 {
        let start = file.document_start(end - 1);
        let mut tokens = vec![0; (end - start) as usize];
        file.read(start, &mut tokens).unwrap();
        documents.push(Bytes.decode(&tokens).unwrap());
        end = start;
    }
    documents.reverse();
    assert_eq!(documents.len() as u64, file.documents());
    documents
}

fn reopen(file: &TokenFile) -> TokenFile {
    let path: &Path = file.path();
    TokenFile::open(path).unwrap()
}
