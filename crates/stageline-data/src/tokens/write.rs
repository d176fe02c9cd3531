//! Writes a token file under a temporary name and renames it, so that the file is complete or absent. Appends the
//! end-of-document token to documents that do not end with it.

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
/// Tokens are written to the file as they arrive. The end position of each document (8 bytes) and the positions of each
/// prompt (16 bytes) stay in memory until the file is finished.
pub(crate) struct TokenWriter {
    temporary: Temporary,
    file: BufWriter<File>,
    vocabulary: u64,
    tokens: u64,
    /// The last token that was written to the current document; `None` while the document has no tokens.
    last: Option<u32>,
    ends: Vec<u64>,
    /// Prompts (ranges of tokens that are masked out in the loss): the positions, from the start of the file, of the
    /// first token and after the last token.
    prompts: Vec<[u64; 2]>,
    contents: Sha256,
}

impl TokenWriter {
    /// Creates the temporary file that [`finish`](Self::finish) renames to the token file `path`. Creates the folder of
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
        // The header's values are known only at the end, so space for the header is reserved here.
        let written = writer.file.write_all(&[0; HEADER]);
        written.map_err(TokenError::write(&writer.temporary.path))?;
        Ok(writer)
    }

    /// Appends tokens to the current document of the token file. `is_target` tells whether they are targets in the
    /// loss, or masked out. The tokens must be in the vocabulary, which is not checked.
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

    /// Ends the current document of the token file. If `end` is given and is not the document's last token, it is
    /// appended first. A document without tokens is left out of the file and gets no end token.
    pub(crate) fn end_document(&mut self, end: Option<u32>) -> Result<(), TokenError> {
        let Some(last) = self.last else { return Ok(()) };
        if let Some(end) = end.filter(|&end| end != last) {
            self.push(&[end], true)?;
        }
        self.last = None;
        self.ends.push(self.tokens);
        Ok(())
    }

    /// Returns the number of tokens that were written to the token file so far.
    pub(crate) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Completes the token file and renames it to `path`. The header stores `key`, the cache key (a hash of the source,
    /// the encoding and the options).
    pub(crate) fn finish(mut self, key: [u8; HASH], path: &Path) -> Result<(), TokenError> {
        self.complete(key).map_err(TokenError::write(&self.temporary.path))?;
        fs::rename(&self.temporary.path, path).map_err(TokenError::write(path))?;
        self.temporary.is_renamed = true;
        Ok(())
    }

    /// Writes the document ends, the prompts, the checksum and the header of the token file, and syncs the file to
    /// disk. `key` is the cache key that is stored in the header.
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

/// Returns the checksum at the end of a token file: the SHA-256 of the file's header and of `numbers`, which are the
/// document ends and the prompts.
pub(crate) fn checksum(header: &[u8], numbers: &[u8]) -> [u8; HASH] {
    Sha256::new().chain_update(header).chain_update(numbers).finalize().into()
}

/// The temporary file of an unfinished token file. Deletes the file on drop, unless it was renamed to its final name.
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
            let _ = fs::remove_file(&self.path); // an error here matters less than the one that stopped the writing
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
