//! Writes a token file under a temporary name and renames it, so that the file is complete or absent. A document that
//! does not end with the end-of-document token gets it here.

use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

use crate::tokens::error::TokenError;
use crate::tokens::format::{HASH, HEADER, Header};

/// A writer of a token file. The file has a temporary name until the writer finishes it. If the writer is dropped
/// earlier, the file is deleted.
///
/// The tokens are written as they come. The end position of each document (8 bytes) and the positions of each prompt
/// (16 bytes) stay in memory until the file is finished.
pub(crate) struct TokenWriter {
    temporary: Temporary,
    file: BufWriter<File>,
    vocabulary: u64,
    tokens: u64,
    /// The last token of the current document; `None` while the document has no tokens.
    last: Option<u32>,
    ends: Vec<u64>,
    /// The prompts, which are runs of tokens that are not trained on. A prompt is the position of its first token and
    /// the position after its last token, counted from the start of the file.
    prompts: Vec<[u64; 2]>,
    contents: Sha256,
}

impl TokenWriter {
    /// Creates a temporary file, which becomes the token file at `path` once it is complete. Creates the folder of
    /// `path` if it does not exist.
    pub(crate) fn create(path: &Path, vocabulary: u64) -> Result<Self, TokenError> {
        let folder = path.parent().unwrap_or(Path::new(""));
        fs::create_dir_all(folder).map_err(TokenError::write(folder))?;
        let (temporary, file) = Temporary::create(path)?;
        let mut writer = Self {
            file: BufWriter::with_capacity(1 << 20, file),
            temporary,
            vocabulary,
            tokens: 0,
            last: None,
            ends: Vec::new(),
            prompts: Vec::new(),
            contents: Sha256::new(),
        };
        // The header is known at the end, so its place is left free.
        let written = writer.file.write_all(&[0; HEADER]);
        written.map_err(TokenError::write(&writer.temporary.path))?;
        Ok(writer)
    }

    /// Appends tokens to the current document of the token file. `is_target` tells whether a model is trained to
    /// predict them. The tokens must be in the vocabulary; this is not checked.
    pub(crate) fn push(&mut self, tokens: &[u32], is_target: bool) -> Result<(), TokenError> {
        let bytes: Vec<u8> = match Header::width(self.vocabulary) {
            2 => tokens.iter().flat_map(|&token| (token as u16).to_le_bytes()).collect(),
            _ => tokens.iter().flat_map(|&token| token.to_le_bytes()).collect(),
        };
        self.contents.update(&bytes);
        let (start, end) = (self.tokens, self.tokens + tokens.len() as u64);
        match self.prompts.last_mut() {
            Some(last) if !is_target && last[1] == start => last[1] = end,
            _ if !is_target && end > start => self.prompts.push([start, end]),
            _ => {}
        }
        self.tokens = end;
        self.last = tokens.last().copied().or(self.last);
        self.file.write_all(&bytes).map_err(TokenError::write(&self.temporary.path))
    }

    /// Ends the current document of the token file. If `end` is given and is not the last token of the document, it is
    /// appended to the document first. A document without tokens is left out of the file and gets no end token.
    pub(crate) fn end_document(&mut self, end: Option<u32>) -> Result<(), TokenError> {
        let Some(last) = self.last else { return Ok(()) };
        if let Some(end) = end.filter(|&end| end != last) {
            self.push(&[end], true)?;
        }
        self.last = None;
        self.ends.push(self.tokens);
        Ok(())
    }

    /// Returns the number of tokens that the new token file has so far.
    pub(crate) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Completes the token file: writes its header, which contains `key`, and renames it to `path`. `key` is the hash
    /// of the source, the encoding and the options.
    pub(crate) fn finish(mut self, key: [u8; HASH], path: &Path) -> Result<(), TokenError> {
        self.complete(key).map_err(TokenError::write(&self.temporary.path))?;
        fs::rename(&self.temporary.path, path).map_err(TokenError::write(path))?;
        self.temporary.is_renamed = true;
        Ok(())
    }

    /// Writes the end positions of the documents, the prompts, the checksum and the header of the token file, and syncs
    /// the file to disk.
    fn complete(&mut self, key: [u8; HASH]) -> io::Result<()> {
        let numbers = self.ends.iter().chain(self.prompts.as_flattened());
        let numbers: Vec<u8> = numbers.flat_map(|number| number.to_le_bytes()).collect();
        self.contents.update(&numbers);
        let header = Header {
            vocabulary: self.vocabulary,
            tokens: self.tokens,
            documents: self.ends.len() as u64,
            prompts: self.prompts.len() as u64,
            key,
            contents: self.contents.clone().finalize().into(),
        };
        self.file.write_all(&numbers)?;
        self.file.write_all(&checksum(&header.to_bytes(), &numbers))?;
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&header.to_bytes())?;
        self.file.flush()?;
        self.file.get_ref().sync_all()
    }
}

/// Returns the checksum at the end of a token file. It is the SHA-256 of the file's header and of `numbers`: the end
/// positions of the documents, and the prompts.
pub(crate) fn checksum(header: &[u8], numbers: &[u8]) -> [u8; HASH] {
    Sha256::new().chain_update(header).chain_update(numbers).finalize().into()
}

/// A temporary file. It is deleted when this value is dropped, unless it was renamed before.
struct Temporary {
    path: PathBuf,
    is_renamed: bool,
}

impl Temporary {
    /// Creates a temporary file in the folder of `path`, with a new name that begins with the file name in `path`.
    fn create(path: &Path) -> Result<(Self, File), TokenError> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        loop {
            let mut name = path.as_os_str().to_os_string();
            name.push(format!(".{}-{}.tmp", process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
            let path = PathBuf::from(name);
            match File::create_new(&path) {
                Ok(file) => return Ok((Self { path, is_renamed: false }, file)),
                // A killed process with the same id left this file, or a process on another host uses the same folder.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(TokenError::write(&path)(error)),
            }
        }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.is_renamed {
            let _ = fs::remove_file(&self.path); // the error that led here matters more
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unfinished_file_leaves_nothing_and_two_have_different_names() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("new").join("x.tokens");
        let writers = [(); 2].map(|()| TokenWriter::create(&path, 256).unwrap());
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 2);
        drop(writers);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 0);
    }

    #[test]
    fn the_end_token_is_compared_with_the_last_token_of_the_current_document() {
        let root = tempfile::tempdir().unwrap();
        let mut writer = TokenWriter::create(&root.path().join("x.tokens"), 256).unwrap();
        let mut end = |pieces: &[&[u32]]| {
            pieces.iter().for_each(|piece| writer.push(piece, true).unwrap());
            writer.end_document(Some(9)).unwrap();
            (writer.tokens, writer.ends.len())
        };
        assert_eq!(end(&[&[1, 9]]), (2, 1));
        assert_eq!(end(&[]), (2, 1), "the document is empty, although the one before it has tokens");
        assert_eq!(end(&[&[1]]), (4, 2));
        assert_eq!(end(&[&[1], &[9], &[]]), (6, 3));
        assert_eq!(end(&[&[9], &[1], &[]]), (9, 4));
        assert_eq!(end(&[&[9]]), (10, 5));
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error_with_its_path() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        let error = TokenWriter::create(&file.join("x.tokens"), 256).err().unwrap();
        assert!(matches!(error, TokenError::Write { path, .. } if path == file));
    }
}
