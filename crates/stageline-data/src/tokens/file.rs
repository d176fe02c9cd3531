//! Reads tokens from a memory-mapped token file: [`TokenFile`].

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

/// The number of tokens per read when a file is scanned for its largest token id.
const SCANNED: usize = 1 << 16;

/// The tokens of all documents of a source (the tokenised text files), in a memory-mapped file that
/// [`prepare`](crate::prepare) wrote.
///
/// Positions and lengths are in tokens. The operating system loads only those parts of the file that are read. Several
/// threads may read concurrently, without a lock.
///
/// The file must not be truncated while it is open; otherwise the operating system ends the process at the next read.
/// No function of this crate truncates a token file. A new version is a new file at the same path, and an open file
/// stays as it is.
pub struct TokenFile {
    path: PathBuf,
    map: Mmap,
    header: Header,
    layout: Layout,
    /// If true, no token of the file is masked out in the loss, so a model is trained to predict the tokens of prompts,
    /// too.
    trains_on_prompts: bool,
}

impl TokenFile {
    /// Opens a token file, and checks its header, its length, its document ends, its prompts, and the checksum of all
    /// of these. The tokens are not read, so the time to open the file does not grow with their number.
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
        // name and never changed after they are renamed. The type's documentation forbids users to truncate them.
        let map = unsafe { Mmap::map(&file) }.map_err(TokenError::io(path))?;
        match validate(&map) {
            Ok((header, layout)) => {
                Ok(Self { path: path.to_path_buf(), map, header, layout, trains_on_prompts: false })
            }
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

    /// Returns the vocabulary size of a token file's tokens, including a new end-of-document token. Every token id that
    /// [`TokenFile::read`] returns is below this size.
    pub fn vocabulary(&self) -> usize {
        self.header.vocabulary as usize
    }

    /// Returns the path of an open token file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the fingerprint of a token file's contents, a hash as 64 hexadecimal digits. A resumed run compares it
    /// to check that it trains on the same data.
    ///
    /// The fingerprint is a SHA-256 over all tokens, the document ends and the prompts, and another one if prompts are
    /// trained on ([`training_on_prompts`](Self::training_on_prompts)). It does not depend on the paths or the
    /// modification times of the text files.
    pub fn fingerprint(&self) -> String {
        let contents = hex(&self.header.contents);
        if self.trains_on_prompts { hex(&Sha256::digest(format!("all tokens of {contents}"))) } else { contents }
    }

    /// Makes all tokens of the file targets in the loss, so that a model is trained to predict prompts and user
    /// messages, too.
    #[must_use]
    pub fn training_on_prompts(self) -> Self {
        Self { trains_on_prompts: self.has_prompts(), ..self }
    }

    /// Fills `buffer` with the tokens of a token file, starting at position `start`, counted from 0.
    ///
    /// # Errors
    /// Returns [`TokenError::Damaged`] if a token is not in the vocabulary. The contents of `buffer` are then
    /// unspecified.
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

    /// Returns the position of the first token of the document that contains the token at `position`. Positions are
    /// counted in tokens from the start of the token file.
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

    /// Whether the token file has prompts: ranges of tokens that are input for the model, but masked out in the loss
    /// unless [`training_on_prompts`](Self::training_on_prompts) was called.
    pub fn has_prompts(&self) -> bool {
        self.header.prompts > 0
    }

    /// Whether the token at `position` in a token file is a target in the loss. The tokens of a prompt, and all tokens
    /// of a conversation outside its answers, are masked out, unless
    /// [`training_on_prompts`](Self::training_on_prompts) was called.
    ///
    /// # Panics
    /// Panics if `position` is not below [`TokenFile::len`].
    pub fn is_target(&self, position: u64) -> bool {
        assert!(position < self.len(), "position {position} is not in a file of {} tokens", self.len());
        self.has_target(position..position + 1)
    }

    /// Whether at least one token in the range `positions` of this token file is a target in the loss. If not, all
    /// tokens in the range are masked out.
    ///
    /// # Panics
    /// Panics if the range is empty or ends after the last token.
    pub fn has_target(&self, positions: Range<u64>) -> bool {
        assert!(!positions.is_empty() && positions.end <= self.len(), "{positions:?} is not in {} tokens", self.len());
        let prompts = self.prompts();
        let after = prompts.partition_point(|[start, _]| u64::from_le_bytes(*start) <= positions.start);
        // Adjacent prompts were merged when the file was written, so if all tokens are masked out, a single prompt
        // covers them.
        after.checked_sub(1).is_none_or(|last| u64::from_le_bytes(prompts[last][1]) < positions.end)
    }

    /// Whether the tokens in the range `positions` of this token file are plain text: none of them belongs to a prompt,
    /// or is outside the answers of a conversation. Such tokens are not plain text even if
    /// [`training_on_prompts`](Self::training_on_prompts) made them targets in the loss.
    ///
    /// # Panics
    /// Panics if the range is empty or ends after the last token.
    pub fn is_plain_text(&self, positions: Range<u64>) -> bool {
        assert!(!positions.is_empty() && positions.end <= self.len(), "{positions:?} is not in {} tokens", self.len());
        let prompts = self.stored_prompts();
        let before_end = prompts.partition_point(|[start, _]| u64::from_le_bytes(*start) < positions.end);
        before_end.checked_sub(1).is_none_or(|last| u64::from_le_bytes(prompts[last][1]) <= positions.start)
    }

    /// Returns the prompts in a token file, in ascending order. A prompt is a range of tokens that are masked out in
    /// the loss. It is stored as the position of its first token and the position after its last token, each as 8
    /// little-endian bytes.
    fn prompts(&self) -> &[[[u8; 8]; 2]] {
        if self.trains_on_prompts { &[] } else { self.stored_prompts() }
    }

    /// Returns the prompts in a token file as [`prompts`](Self::prompts) does, even if they are trained on
    /// ([`training_on_prompts`](Self::training_on_prompts)).
    fn stored_prompts(&self) -> &[[[u8; 8]; 2]] {
        self.map[self.layout.prompts as usize..self.layout.checksum as usize].as_chunks().0.as_chunks().0
    }

    /// Returns the end position of each document in a token file, in ascending order. An end position is the number of
    /// tokens in the file up to the document's end, as 8 little-endian bytes.
    pub(crate) fn ends(&self) -> &[[u8; 8]] {
        self.map[self.layout.ends as usize..self.layout.prompts as usize].as_chunks().0
    }

    /// Whether the hash in the token file's header matches the tokens, document ends and prompts in the file. Reads the
    /// whole file.
    pub(crate) fn is_intact(&self) -> bool {
        let contents = &self.map[HEADER..self.layout.checksum as usize];
        Sha256::digest(contents).as_slice() == self.header.contents
    }

    /// Returns the cache key in the token file's header: a hash of the source files, the encoding and the options that
    /// the file was made from.
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

/// Checks the bytes of a token file, except the tokens themselves. Returns the file's header, and the byte offsets of
/// the sections after the tokens. The error is a message that describes the first problem.
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
    // The file is as long as its layout says, so all parts are within the file and their offsets fit in `usize`.
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
