//! Reads the tokens of a memory-mapped file: [`TokenFile`].

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use sha2::{Digest, Sha256};

use crate::hex::hex;
use crate::tokens::encode::check_known;
use crate::tokens::error::TokenError;
use crate::tokens::format::{HEADER, Header, Layout};
use crate::tokens::regular_file::open_file;
use crate::tokens::write::checksum;

/// The number of tokens that are read at once when the largest token of a file is searched for.
const SCANNED: usize = 1 << 16;

/// The tokens of all documents of a source (the tokenised text files), in a memory-mapped file that
/// [`prepare`](crate::prepare) wrote.
///
/// Positions and lengths are in tokens. The operating system loads only those parts of the file that are read. Threads
/// may read at the same time; reading takes no lock.
///
/// The file must not be shortened while it is open, or the operating system ends the process at the next read. No
/// function of this crate shortens a token file. A new version is a new file at the same path, and an open file stays
/// as it is.
pub struct TokenFile {
    path: PathBuf,
    map: Mmap,
    header: Header,
    layout: Layout,
}

impl TokenFile {
    /// Opens a token file, and checks its header, its length, the ends of its documents, its prompts, and the checksum
    /// of all of these. The tokens are not read, so the time to open the file does not grow with their number.
    ///
    /// A damaged token that is still below the size of the vocabulary is therefore not detected here.
    /// [`prepare`](crate::prepare) also compares the hash of the tokens.
    ///
    /// # Errors
    /// - An error of [`open_file`](crate::open_file) if the file cannot be opened, or [`TokenError::Io`] if it cannot
    ///   be mapped into memory.
    /// - [`TokenError::Damaged`] if one of these checks fails, for example because another release wrote the file.
    pub fn open(path: &Path) -> Result<Self, TokenError> {
        let file = open_file(path, u64::MAX)?;
        // SAFETY: the bytes behind the map must not change while it is borrowed. Token files are written under another
        // name and never changed after their renaming; the type's documentation forbids users to shorten them.
        let map = unsafe { Mmap::map(&file) }.map_err(TokenError::io(path))?;
        match validate(&map) {
            Ok((header, layout)) => Ok(Self { path: path.to_path_buf(), map, header, layout }),
            Err(damage) => Err(TokenError::Damaged { path: path.to_path_buf(), damage }),
        }
    }

    /// Returns the number of tokens in a token file, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a token file is never empty")]
    pub fn len(&self) -> u64 {
        self.header.tokens
    }

    /// Returns the number of documents in the token file, at least 1. No document is empty.
    pub fn documents(&self) -> u64 {
        self.header.documents
    }

    /// Returns the size of the vocabulary of a token file's tokens, with a new end-of-document token included. Every
    /// token that [`TokenFile::read`] returns is a number below this size.
    pub fn vocabulary(&self) -> usize {
        self.header.vocabulary as usize
    }

    /// Returns the path of an open token file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the fingerprint of a token file's tokens, a hash in 64 hexadecimal digits. A resumed run compares it to
    /// check that its training text is the same.
    ///
    /// The fingerprint is a SHA-256 over all tokens, the ends of the documents and the prompts. It does not depend on
    /// the paths or the modification times of the text files.
    pub fn fingerprint(&self) -> String {
        hex(&self.header.contents)
    }

    /// Fills `buffer` with the tokens of the file from position `start` on, counted from 0.
    ///
    /// # Errors
    /// Returns [`TokenError::Damaged`] if a token is not in the vocabulary. Do not use the contents of `buffer` then.
    ///
    /// # Panics
    /// Panics if `start + buffer.len()` is more than [`TokenFile::len`]. Offsets from a [`Sampler`](crate::Sampler) for
    /// this length never cause this.
    pub fn read(&self, start: u64, buffer: &mut [u32]) -> Result<(), TokenError> {
        let count = buffer.len();
        let fits = start.checked_add(count as u64).is_some_and(|end| end <= self.len());
        assert!(fits, "{count} tokens at position {start} are not in a file of {} tokens", self.len());
        let width = Header::width(self.header.vocabulary);
        let bytes = &self.map[HEADER + start as usize * width..][..count * width];
        if width == 2 {
            let tokens = bytes.as_chunks().0.iter().map(|&token| u32::from(u16::from_le_bytes(token)));
            buffer.iter_mut().zip(tokens).for_each(|(place, token)| *place = token);
        } else {
            let tokens = bytes.as_chunks().0.iter().map(|&token| u32::from_le_bytes(token));
            buffer.iter_mut().zip(tokens).for_each(|(place, token)| *place = token);
        }
        check_known(buffer, self.vocabulary()).map_err(|_| {
            let damage = format!("a token from position {start} on is not in its vocabulary of {}", self.vocabulary());
            TokenError::Damaged { path: self.path.clone(), damage }
        })
    }

    /// Returns the largest token id in a token file. Reads all tokens, so the time grows with their number.
    ///
    /// # Errors
    /// Returns [`TokenError::Damaged`] if a token is not in the vocabulary.
    pub fn largest_token(&self) -> Result<u32, TokenError> {
        let mut largest = 0;
        let mut buffer = vec![0; self.len().min(SCANNED as u64) as usize];
        for start in (0..self.len()).step_by(SCANNED) {
            let count = (self.len() - start).min(SCANNED as u64) as usize;
            self.read(start, &mut buffer[..count])?;
            largest = buffer[..count].iter().copied().fold(largest, u32::max);
        }
        Ok(largest)
    }

    /// Returns the position, in tokens from the start of a token file, of the first token of the document that contains
    /// the token at `position`.
    ///
    /// # Panics
    /// Panics if `position` is not below [`TokenFile::len`].
    pub fn document_start(&self, position: u64) -> u64 {
        assert!(position < self.len(), "position {position} is not in a file of {} tokens", self.len());
        let ends = self.ends();
        let before = ends.partition_point(|&end| u64::from_le_bytes(end) <= position);
        before.checked_sub(1).map_or(0, |last| u64::from_le_bytes(ends[last]))
    }

    /// Returns the range of token positions of the document with the given index, counted from 0.
    ///
    /// # Panics
    /// Panics if `index` is not below [`TokenFile::documents`].
    pub fn document(&self, index: u64) -> Range<u64> {
        let (ends, count) = (self.ends(), self.documents());
        assert!(index < count, "document {index} is not in a file of {count} documents");
        let end = |index: usize| u64::from_le_bytes(ends[index]);
        (index as usize).checked_sub(1).map_or(0, end)..end(index as usize)
    }

    /// Whether the token file has prompts: tokens that a model reads but is not trained to predict.
    pub fn has_prompts(&self) -> bool {
        self.header.prompts > 0
    }

    /// Whether a model is trained to predict the token at `position`. The tokens of a prompt, and all tokens of a
    /// conversation outside its answers, are only read.
    ///
    /// # Panics
    /// Panics if `position` is not below [`TokenFile::len`].
    pub fn is_target(&self, position: u64) -> bool {
        assert!(position < self.len(), "position {position} is not in a file of {} tokens", self.len());
        self.has_target(position..position + 1)
    }

    /// Whether a model is trained to predict any token of a range of positions.
    ///
    /// # Panics
    /// Panics if the range is empty or ends after the last token.
    pub fn has_target(&self, positions: Range<u64>) -> bool {
        assert!(!positions.is_empty() && positions.end <= self.len(), "{positions:?} is not in {} tokens", self.len());
        let prompts = self.prompts();
        let after = prompts.partition_point(|[start, _]| u64::from_le_bytes(*start) <= positions.start);
        // Adjacent prompts were merged when the file was written, so only one can cover the whole range.
        after.checked_sub(1).is_none_or(|last| u64::from_le_bytes(prompts[last][1]) < positions.end)
    }

    /// Whether a model is trained to predict all tokens of a range of positions.
    ///
    /// # Panics
    /// Panics if the range is empty or ends after the last token.
    pub fn has_only_targets(&self, positions: Range<u64>) -> bool {
        assert!(!positions.is_empty() && positions.end <= self.len(), "{positions:?} is not in {} tokens", self.len());
        let prompts = self.prompts();
        let before_end = prompts.partition_point(|[start, _]| u64::from_le_bytes(*start) < positions.end);
        before_end.checked_sub(1).is_none_or(|last| u64::from_le_bytes(prompts[last][1]) <= positions.start)
    }

    /// Returns the prompts in a token file, the runs of tokens that are not trained on, in ascending order. A prompt is
    /// the position of its first token and the position after its last token, each as 8 little-endian bytes.
    fn prompts(&self) -> &[[[u8; 8]; 2]] {
        self.map[self.layout.prompts as usize..self.layout.checksum as usize].as_chunks().0.as_chunks().0
    }

    /// Returns the end position of each document in a token file, in ascending order. The position is the number of
    /// tokens in the file up to the end of the document, as 8 little-endian bytes.
    pub(crate) fn ends(&self) -> &[[u8; 8]] {
        self.map[self.layout.ends as usize..self.layout.prompts as usize].as_chunks().0
    }

    /// Whether the tokens, the ends of the documents and the prompts have the hash that the token file's header lists.
    /// Reads the whole file.
    pub(crate) fn is_intact(&self) -> bool {
        let contents = &self.map[HEADER..self.layout.checksum as usize];
        Sha256::digest(contents).as_slice() == self.header.contents
    }

    /// Returns the key in the token file's header: a hash of the source, the encoding and the options of its
    /// tokenisation.
    pub(crate) fn key(&self) -> [u8; 32] {
        self.header.key
    }
}

impl fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("TokenFile");
        debug.field("path", &self.path).field("len", &self.len()).field("documents", &self.documents()).finish()
    }
}

/// Checks the bytes of a token file, except the tokens themselves. Returns the file's header, and the offsets of its
/// parts. The error is the first fault, in words.
fn validate(file: &[u8]) -> Result<(Header, Layout), String> {
    let header = Header::parse(file)?;
    let length = file.len() as u64;
    let layout = header.layout().filter(|layout| layout.length == length).ok_or_else(|| {
        let Header { tokens, documents, prompts, .. } = header;
        format!(
            "it has {length} bytes, which is not the length of {tokens} tokens in {documents} documents with {prompts} \
             prompts"
        )
    })?;
    // The length of the file is that of the layout, so the parts are in the file and their offsets fit in `usize`.
    let (numbers, expected) = file[layout.ends as usize..].split_at((layout.checksum - layout.ends) as usize);
    if checksum(&file[..HEADER], numbers) != expected {
        return Err("its checksum does not match".into());
    }
    let (ends, prompts) = numbers.split_at((layout.prompts - layout.ends) as usize);
    let mut last = 0;
    for (document, &end) in ends.as_chunks().0.iter().enumerate() {
        let end = u64::from_le_bytes(end);
        if end <= last {
            return Err(format!("its document {document} ends at {end}, and begins at {last}"));
        }
        last = end;
    }
    if last != header.tokens {
        return Err(format!("its last document ends at {last}, and it has {} tokens", header.tokens));
    }
    let mut last = None;
    for (prompt, range) in prompts.as_chunks().0.as_chunks().0.iter().enumerate() {
        let [start, end] = range.map(u64::from_le_bytes);
        if start >= end || end > header.tokens || last.is_some_and(|last| start <= last) {
            return Err(format!(
                "its prompt {prompt} begins at {start} and ends at {end}, of {} tokens",
                header.tokens
            ));
        }
        last = Some(end);
    }
    Ok((header, layout))
}
