//! Splits a long document into pieces, so that the whole document is never in memory.

use std::io::{self, Read};
use std::str;

/// The maximum length of a piece of a document, in bytes.
///
/// The regular expressions of tokenizers fail on a million consecutive spaces, and then leave the rest of the text
/// unsplit without an error. A text of this length is too short for such a failure.
pub(crate) const LONGEST: usize = 1 << 19;

/// Reads a document as consecutive pieces of limited length, which a tokenizer encodes one at a time.
///
/// Every piece but the last ends after a line feed if it contains one. Otherwise it ends before its last space that a
/// non-whitespace character follows, or else after a complete character. A line feed between two non-whitespace
/// characters is preferred. The common byte-level tokenizers split a text at such line feeds and before such spaces
/// anyway. The tokens next to a split point may still differ from the tokens of the unsplit document.
pub(crate) struct Pieces<R> {
    reader: R,
    most: usize,
    /// Bytes read from the document but not yet encoded, beginning with the current piece (which is encoded in one
    /// call).
    buffer: Vec<u8>,
    /// Length, in bytes, of the document's current piece in `buffer`; 0 before the first piece.
    length: usize,
    /// The byte offset of the current piece within the document to tokenise.
    start: u64,
}

impl<R: Read> Pieces<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self { reader, most: LONGEST, buffer: Vec::new(), length: 0, start: 0 }
    }

    /// Reads the next piece of a document to tokenise. Returns its byte offset in the document and its bytes, or `None`
    /// after the last piece.
    pub(crate) fn next(&mut self) -> io::Result<Option<(u64, &[u8])>> {
        self.buffer.drain(..self.length);
        self.start += self.length as u64;
        let room = self.most - self.buffer.len();
        self.length = 0; // if the read fails, there is no current piece
        (&mut self.reader).take(room as u64).read_to_end(&mut self.buffer)?;
        let is_last = self.buffer.len() < self.most;
        self.length = if is_last { self.buffer.len() } else { cut(&self.buffer) };
        Ok((self.length > 0).then(|| (self.start, &self.buffer[..self.length])))
    }
}

/// Chooses the split point after a document's next piece, and returns the length of the piece (a prefix of `bytes`):
/// after a line feed if possible, or else before a space, or else after a complete character.
fn cut(bytes: &[u8]) -> usize {
    let between_visible = |&[before, line_feed, after]: &[u8; 3]| {
        line_feed == b'\n' && !before.is_ascii_whitespace() && !after.is_ascii_whitespace()
    };
    if let Some(before) = bytes.array_windows().rposition(between_visible) {
        return before + 2;
    }
    if let Some(last) = bytes.iter().rposition(|&byte| byte == b'\n') {
        return last + 1;
    }
    let before_word = |&[blank, after]: &[u8; 2]| blank == b' ' && !after.is_ascii_whitespace();
    if let Some(blank) = bytes.array_windows().rposition(before_word).filter(|&blank| blank > 0) {
        return blank; // the space belongs to the token of the next word
    }
    match str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => error.valid_up_to(),
        _ => bytes.len(), // the bytes end with a complete character, or are not UTF-8 anyway
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(bytes: &[u8], most: usize) -> Vec<(u64, Vec<u8>)> {
        let mut pieces = Pieces { most, ..Pieces::new(bytes) };
        let mut all = Vec::new();
        while let Some((start, piece)) = pieces.next().unwrap() {
            all.push((start, piece.to_vec()));
        }
        all
    }

    fn texts(text: &str, most: usize) -> Vec<String> {
        pieces(text.as_bytes(), most).into_iter().map(|(_, piece)| String::from_utf8(piece).unwrap()).collect()
    }

    #[test]
    fn a_piece_ends_after_its_last_line_feed() {
        assert_eq!(texts("ab\ncd\nef\ngh", 8), ["ab\ncd\n", "ef\ngh"]);
        assert_eq!(texts("ab\ncd\nefgh", 6), ["ab\n", "cd\n", "efgh"]);
        assert_eq!(texts("abcdefg\nh", 8), ["abcdefg\n", "h"]);
        assert_eq!(texts("abcdefg\n", 8), ["abcdefg\n"]);
    }

    #[test]
    fn a_line_feed_between_visible_characters_is_preferred() {
        assert_eq!(texts("a\nb\n\nc\n d", 9), ["a\n", "b\n\nc\n d"]);
        assert_eq!(texts("a\n\nb\n cde", 8), ["a\n\nb\n", " cde"]);
    }

    #[test]
    fn a_long_line_is_cut_before_its_last_blank() {
        assert_eq!(texts("ab cd ef", 7), ["ab cd", " ef"]);
        assert_eq!(texts("ab  cd", 5), ["ab ", " cd"]);
        assert_eq!(texts("a bcd  efg", 7), ["a", " bcd ", " efg"]);
        assert_eq!(texts(" abcdefgh", 4), [" abc", "defg", "h"]);
        assert_eq!(texts("      a", 5), ["     ", " a"]);
    }

    #[test]
    fn a_long_line_is_cut_between_characters() {
        assert_eq!(texts("abcdé", 5), ["abcd", "é"]);
        assert_eq!(texts("ab字字字", 7), ["ab字", "字字"]);
        assert_eq!(texts("abcdefgh", 4), ["abcd", "efgh"]);
    }

    #[test]
    fn pieces_join_to_the_document_at_their_offsets() {
        let document: Vec<u8> = (0..10_000_u32).map(|i| (i * i % 251) as u8).collect();
        for most in [4, 5, 64, 9_999, 10_000, 10_001] {
            let mut joined = Vec::new();
            for (start, piece) in pieces(&document, most) {
                assert_eq!(start, joined.len() as u64);
                assert!(piece.len() <= most);
                joined.extend(piece);
            }
            assert_eq!(joined, document);
        }
        assert!(pieces(b"", 8).is_empty());
    }
}
