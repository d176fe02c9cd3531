//! One side of a corpus, as one stream of bytes over extents.

use std::fmt;

use crate::error::CorpusError;
use crate::extent::Extent;

/// How many bytes a pass over the whole text reads at once.
const CHUNK: u64 = 1 << 18;

/// Pieces of files that read as one stream of bytes, joined with nothing in between.
///
/// Offsets and lengths are in bytes. Nothing is kept in memory and no file open: each read opens the files it touches,
/// and compares their lengths and modification times with those at the time when the corpus was opened. Reading is
/// thread-safe and takes no lock.
pub struct Text {
    extents: Vec<Extent>,
    /// Where each extent starts in the stream.
    starts: Vec<u64>,
    len: u64,
}

impl Text {
    /// The text of `extents` in this order.
    pub(crate) fn new(extents: Vec<Extent>) -> Self {
        let mut len = 0;
        let start = |extent: &Extent| {
            let start = len;
            len += extent.len();
            start
        };
        let starts = extents.iter().map(start).collect();
        Self { extents, starts, len }
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is no byte to read.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many files the text is made of.
    pub fn files(&self) -> usize {
        self.extents.len()
    }

    /// Fills `buffer` with the bytes from `offset` on, across the borders between files.
    ///
    /// # Errors
    /// - [`CorpusError::Changed`]: a file that it touches is no longer what it was;
    ///   [`Corpus::open`](crate::Corpus::open) says what is noticed. What `buffer` then holds is not to be used.
    /// - [`CorpusError::Io`]: a file that it touches cannot be read.
    ///
    /// # Panics
    /// If `offset + buffer.len()` is more than [`Text::len`]; offsets from a [`Sampler`](crate::Sampler) made for this
    /// length never are.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), CorpusError> {
        let fits = offset.checked_add(buffer.len() as u64).is_some_and(|end| end <= self.len);
        assert!(fits, "{} bytes at offset {offset} are not in a text of {} bytes", buffer.len(), self.len);
        if buffer.is_empty() {
            return Ok(()); // the text may have no extent at all
        }
        // The first extent starts at 0, so at least one start is at or before the offset.
        let mut index = self.starts.partition_point(|&start| start <= offset) - 1;
        let mut skip = offset - self.starts[index];
        let mut rest = buffer;
        while !rest.is_empty() {
            let extent = &self.extents[index];
            let here = (extent.len() - skip).min(rest.len() as u64) as usize;
            let (now, later) = rest.split_at_mut(here);
            extent.read(skip, now)?;
            (rest, index, skip) = (later, index + 1, 0);
        }
        Ok(())
    }

    /// How often each byte value occurs, indexed by the value; reads the whole text.
    ///
    /// # Errors
    /// As [`Text::read`].
    pub fn byte_counts(&self) -> Result<[u64; 256], CorpusError> {
        let mut counts = [0; 256];
        let mut buffer = vec![0; CHUNK.min(self.len) as usize];
        for extent in &self.extents {
            for skip in (0..extent.len()).step_by(CHUNK as usize) {
                let chunk = &mut buffer[..CHUNK.min(extent.len() - skip) as usize];
                extent.read(skip, chunk)?;
                for &byte in &*chunk {
                    counts[usize::from(byte)] += 1;
                }
            }
        }
        Ok(counts)
    }

    /// The entropy of [`Text::byte_counts`] in bits per byte, 0 to 8; 0 for an empty text. Reads the whole text.
    ///
    /// This is -sum(p log2 p) over the byte values: the loss of the best model that ignores context, so a model that
    /// does better has learned from context.
    ///
    /// # Errors
    /// As [`Text::read`].
    pub fn unigram_entropy(&self) -> Result<f64, CorpusError> {
        let counts = self.byte_counts()?;
        let shares = counts.iter().filter(|&&count| count > 0).map(|&count| count as f64 / self.len as f64);
        // From +0.0, because an empty sum of floats is -0.0.
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
    use crate::change::Stamp;

    /// A text of files with these contents, which are not empty; the folder holds them.
    fn text(pieces: &[&[u8]]) -> (tempfile::TempDir, Text) {
        let root = tempfile::tempdir().unwrap();
        let extent = |(i, bytes): (usize, &&[u8])| {
            let path = root.path().join(i.to_string());
            fs::write(&path, bytes).unwrap();
            let stamp = Stamp::of(&fs::metadata(&path).unwrap());
            Extent { path, bytes: 0..bytes.len() as u64, stamp }
        };
        let text = Text::new(pieces.iter().enumerate().map(extent).collect());
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
            (&[b"ab", b"cc"], 1.5),                    // 1/4, 1/4, 1/2
            (&[b"aaab"], 2.0 - 0.75 * 3.0_f64.log2()), // 3/4, 1/4
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
