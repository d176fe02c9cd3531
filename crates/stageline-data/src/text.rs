//! A text of a corpus: file ranges joined to one stream of bytes, with its byte counts and entropy.
//!
//! Input: file ranges in order. Output: bytes from any offset, and counts over the whole text. The code here must not
//! choose files, or keep bytes in memory after a read.

use std::fmt;

use crate::error::CorpusError;
use crate::file_range::FileRange;

/// A training or validation text of a corpus: the bytes of its files, joined without separators.
///
/// Offsets and lengths are in bytes. A text keeps no bytes in memory and no file open. Each read opens the files that
/// it touches, and checks that their lengths and modification times have not changed since the corpus was opened.
/// Several threads may read concurrently, without a lock.
pub struct Text {
    ranges: Vec<FileRange>,
    /// Start offset, in bytes, of each file range in a corpus's joined text; used to find the files of a read.
    starts: Vec<u64>,
    len: u64,
}

impl Text {
    /// Creates a text from file ranges (parts of files), joined in the order of `ranges`.
    pub(crate) fn new(ranges: Vec<FileRange>) -> Self {
        let mut len = 0;
        let start = |range: &FileRange| {
            let start = len;
            len += range.len();
            start
        };
        let starts = ranges.iter().map(start).collect();
        Self { ranges, starts, len }
    }

    /// Returns the length in bytes of a corpus's training or validation text.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether a corpus's training or validation text is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of files that make up a corpus's training or validation text.
    pub fn files(&self) -> usize {
        self.ranges.len()
    }

    /// Fills `buffer` with the bytes of the text that start at `offset`. A read may span several files.
    ///
    /// # Errors
    /// - [`CorpusError::Changed`] if a file of this read has changed; [`Corpus::open`](crate::Corpus::open) lists the
    ///   changes that are detected. The contents of `buffer` are then unspecified.
    /// - [`CorpusError::Io`] if a file of this read cannot be read.
    ///
    /// # Panics
    /// Panics if `offset + buffer.len()` is more than [`Text::len`]. Offsets from a [`Sampler`](crate::Sampler) for
    /// this length never cause this.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), CorpusError> {
        let fits = offset.checked_add(buffer.len() as u64).is_some_and(|end| end <= self.len);
        assert!(fits, "{} bytes at offset {offset} are not in a text of {} bytes", buffer.len(), self.len);
        if buffer.is_empty() {
            return Ok(()); // without a file range, the subtraction below would underflow
        }
        // The first range starts at 0, so at least one start is at or before the offset.
        let mut index = self.starts.partition_point(|&start| start <= offset) - 1;
        let mut skip = offset - self.starts[index];
        let mut rest = buffer;
        while !rest.is_empty() {
            let range = &self.ranges[index];
            let here = (range.len() - skip).min(rest.len() as u64) as usize;
            let (now, later) = rest.split_at_mut(here);
            range.read(skip, now)?;
            (rest, index, skip) = (later, index + 1, 0);
        }
        Ok(())
    }

    /// Returns the number of occurrences of each byte value in the text, indexed by the byte value. Reads the whole
    /// text.
    ///
    /// # Errors
    /// Returns the same errors as [`Text::read`].
    pub fn byte_counts(&self) -> Result<[u64; 256], CorpusError> {
        let mut counts = [0; 256];
        for range in &self.ranges {
            range.read_chunks(|chunk| chunk.iter().for_each(|&byte| counts[usize::from(byte)] += 1))?;
        }
        Ok(counts)
    }

    /// Returns the unigram entropy of the text in bits per byte, from 0 to 8; 0 for an empty text. Reads the whole
    /// text.
    ///
    /// The entropy is -sum(p log2 p) over the relative frequencies p of the byte values ([`Text::byte_counts`]). The
    /// best model that ignores context has this loss, in bits per byte. A model with a lower loss has learned from
    /// context.
    ///
    /// # Errors
    /// Returns the same errors as [`Text::read`].
    pub fn unigram_entropy(&self) -> Result<f64, CorpusError> {
        let counts = self.byte_counts()?;
        let shares = counts.iter().filter(|&&count| count > 0).map(|&count| count as f64 / self.len as f64);
        // The fold starts at +0.0, because an empty `sum` of floats is -0.0.
        Ok(shares.fold(0.0, |bits, p| bits - p * p.log2()))
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Text").field("files", &self.files()).field("len", &self.len).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::file_change::Stamp;
    use crate::file_range::CHUNK;

    /// Writes each element of `pieces` (at least one) to a file of its own in a new temporary folder. Returns the
    /// folder, and the files joined to one text.
    fn text(pieces: &[&[u8]]) -> (tempfile::TempDir, Text) {
        let root = tempfile::tempdir().unwrap();
        let range = |(i, bytes): (usize, &&[u8])| {
            let path = root.path().join(i.to_string());
            fs::write(&path, bytes).unwrap();
            let stamp = Stamp::new(&fs::metadata(&path).unwrap());
            FileRange { path, bytes: 0..bytes.len() as u64, stamp }
        };
        let text = Text::new(pieces.iter().enumerate().map(range).collect());
        (root, text)
    }

    #[test]
    fn every_read_equals_the_concatenation() {
        let pieces: [&[u8]; 4] = [b"abc", b"d", b"efghij", b"kl"];
        let ((_root, text), whole) = (text(&pieces), pieces.concat());
        assert_eq!((text.len(), text.files()), (12, 4));
        for start in 0..=whole.len() {
            for end in start..=whole.len() {
                let mut buffer = vec![0; end - start];
                text.read(start as u64, &mut buffer).unwrap();
                assert_eq!(buffer, whole[start..end], "{start}..{end}");
            }
        }
    }

    #[test]
    fn an_empty_text_reads_nothing() {
        let text = Text::new(Vec::new());
        assert!(text.is_empty());
        assert_eq!(text.files(), 0);
        assert_eq!(text.unigram_entropy().unwrap(), 0.0);
        text.read(0, &mut []).unwrap();
    }

    #[test]
    #[should_panic(expected = "2 bytes at offset 3 are not in a text of 4 bytes")]
    fn a_read_past_the_end_panics() {
        let _ = text(&[b"ab", b"cd"]).1.read(3, &mut [0; 2]);
    }

    #[test]
    #[should_panic(expected = "are not in a text of 4 bytes")]
    fn an_offset_that_overflows_panics() {
        let _ = text(&[b"ab", b"cd"]).1.read(u64::MAX, &mut [0; 2]);
    }

    #[test]
    fn bytes_are_counted_over_all_pieces() {
        let long = vec![b'c'; CHUNK as usize * 2 + 1];
        let counts = text(&[b"aab", b"b\xff", &long]).1.byte_counts().unwrap();
        assert_eq!((counts[usize::from(b'a')], counts[usize::from(b'b')], counts[0xff]), (2, 2, 1));
        assert_eq!(counts[usize::from(b'c')], long.len() as u64);
        assert_eq!(counts.iter().sum::<u64>(), 5 + long.len() as u64);
    }

    #[test]
    fn entropy_equals_closed_forms() {
        let every_byte: Vec<u8> = (0..=255).collect();
        let cases: [(&[&[u8]], f64); 5] = [
            (&[b"abcd"], 2.0),
            (&[b"aaaa", b"aaa"], 0.0),
            (&[b"ab", b"cc"], 1.5),                    // byte frequencies 1/4, 1/4 and 1/2
            (&[b"aaab"], 2.0 - 0.75 * 3.0_f64.log2()), // byte frequencies 3/4 and 1/4
            (&[every_byte.as_slice(), every_byte.as_slice()], 8.0),
        ];
        for (pieces, bits) in cases {
            let entropy = text(pieces).1.unigram_entropy().unwrap();
            assert!((entropy - bits).abs() < 1e-12, "{entropy} and not {bits} for {pieces:?}");
        }
    }

    #[test]
    fn threads_can_share_a_text() {
        fn shared<T: Send + Sync>() {}
        shared::<Text>();
    }
}
