//! One side of a corpus, as one stream of bytes over memory maps.

use std::fmt;

use memmap2::Mmap;

/// Memory-mapped pieces of files that read as one stream of bytes, joined with nothing in between.
///
/// Offsets and lengths are in bytes. Reading is thread-safe and takes no lock.
#[derive(Default)]
pub struct Text {
    /// None of them empty.
    pieces: Vec<Mmap>,
    /// Where each piece starts in the stream.
    starts: Vec<u64>,
    len: u64,
}

impl Text {
    /// The text of `pieces` in this order; empty ones are left out.
    pub(crate) fn new(pieces: impl IntoIterator<Item = Mmap>) -> Self {
        let mut text = Self::default();
        for piece in pieces.into_iter().filter(|piece| !piece.is_empty()) {
            text.starts.push(text.len);
            text.len += piece.len() as u64;
            text.pieces.push(piece);
        }
        text
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
        self.pieces.len()
    }

    /// Fills `buffer` with the bytes from `offset` on, across the borders between files.
    ///
    /// # Panics
    /// If `offset + buffer.len()` is more than [`Text::len`]; offsets from a [`Sampler`](crate::Sampler) made for this
    /// length never are.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) {
        let fits = offset.checked_add(buffer.len() as u64).is_some_and(|end| end <= self.len);
        assert!(fits, "{} bytes at offset {offset} are not in a text of {} bytes", buffer.len(), self.len);
        if buffer.is_empty() {
            return; // the text may have no piece at all
        }
        // The first piece starts at 0, so at least one start is at or before the offset.
        let mut index = self.starts.partition_point(|&start| start <= offset) - 1;
        let mut skip = (offset - self.starts[index]) as usize;
        let mut rest = buffer;
        while !rest.is_empty() {
            let from = &self.pieces[index][skip..];
            let (now, later) = rest.split_at_mut(from.len().min(rest.len()));
            now.copy_from_slice(&from[..now.len()]);
            (rest, index, skip) = (later, index + 1, 0);
        }
    }

    /// How often each byte value occurs, indexed by the value; reads the whole text.
    pub fn byte_counts(&self) -> [u64; 256] {
        let mut counts = [0; 256];
        for &byte in self.pieces.iter().flat_map(|piece| piece.iter()) {
            counts[usize::from(byte)] += 1;
        }
        counts
    }

    /// The entropy of [`Text::byte_counts`] in bits per byte, 0 to 8; 0 for an empty text. Reads the whole text.
    ///
    /// This is -sum(p log2 p) over the byte values: the loss of the best model that ignores context, so a model that
    /// does better has learned from context.
    pub fn unigram_entropy(&self) -> f64 {
        let counts = self.byte_counts();
        let shares = counts.iter().filter(|&&count| count > 0).map(|&count| count as f64 / self.len as f64);
        // From +0.0, because an empty sum of floats is -0.0.
        shares.fold(0.0, |bits, p| bits - p * p.log2())
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Text").field("files", &self.files()).field("len", &self.len).finish()
    }
}

#[cfg(test)]
mod tests {
    use memmap2::MmapMut;

    use super::*;

    fn text(pieces: &[&[u8]]) -> Text {
        Text::new(pieces.iter().map(|bytes| {
            let mut map = MmapMut::map_anon(bytes.len()).unwrap();
            map.copy_from_slice(bytes);
            map.make_read_only().unwrap()
        }))
    }

    #[test]
    fn every_read_equals_the_concatenation() {
        let pieces: [&[u8]; 5] = [b"abc", b"", b"d", b"efghij", b"kl"];
        let (text, whole) = (text(&pieces), pieces.concat());
        assert_eq!((text.len(), text.files()), (12, 4));
        for start in 0..=whole.len() {
            for end in start..=whole.len() {
                let mut buffer = vec![0; end - start];
                text.read(start as u64, &mut buffer);
                assert_eq!(buffer, whole[start..end], "{start}..{end}");
            }
        }
    }

    #[test]
    fn an_empty_text_reads_nothing() {
        let text = text(&[b""]);
        assert!(text.is_empty());
        assert_eq!(text.files(), 0);
        assert_eq!(text.unigram_entropy(), 0.0);
        text.read(0, &mut []);
    }

    #[test]
    #[should_panic(expected = "2 bytes at offset 3 are not in a text of 4 bytes")]
    fn a_read_past_the_end_panics() {
        text(&[b"ab", b"cd"]).read(3, &mut [0; 2]);
    }

    #[test]
    #[should_panic(expected = "are not in a text of 4 bytes")]
    fn an_offset_that_overflows_panics() {
        text(&[b"ab", b"cd"]).read(u64::MAX, &mut [0; 2]);
    }

    #[test]
    fn bytes_are_counted_over_all_pieces() {
        let counts = text(&[b"aab", b"b\xff"]).byte_counts();
        assert_eq!((counts[usize::from(b'a')], counts[usize::from(b'b')], counts[0xff]), (2, 2, 1));
        assert_eq!(counts.iter().sum::<u64>(), 5);
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
            let entropy = text(pieces).unigram_entropy();
            assert!((entropy - bits).abs() < 1e-12, "{entropy} and not {bits} for {pieces:?}");
        }
    }

    #[test]
    fn threads_can_share_a_text() {
        fn shared<T: Send + Sync>() {}
        shared::<Text>();
    }
}
