//! The format of a token file: its header, and the offsets of its parts.
//!
//! All numbers are little-endian. The parts follow each other without gaps:
//!
//! | part | bytes |
//! | --- | --- |
//! | [`MAGIC`] | 8 |
//! | [`VERSION`] | 4 |
//! | width of a token in bytes: 2 if the vocabulary has at most 65,536 tokens, else 4 | 4 |
//! | size of the vocabulary | 8 |
//! | number of tokens | 8 |
//! | number of documents | 8 |
//! | number of prompts | 8 |
//! | cache key, see `cache_key` | 32 |
//! | SHA-256 of the tokens, the document ends and the prompts | 32 |
//! | tokens | width each |
//! | document ends: the number of tokens before the end of each document | 8 each |
//! | prompts, which are masked out in the loss: the positions of the first token and after the last token | 16 each |
//! | SHA-256 of the header (everything before the tokens), the document ends and the prompts | 32 |

/// The magic number of token files: the first eight bytes of every token file.
pub(crate) const MAGIC: [u8; 8] = *b"stagetok";

/// The version of the token file format. It must be raised if the format changes.
pub(crate) const VERSION: u32 = 2;

/// The length of a token file's header in bytes.
pub(crate) const HEADER: usize = 112;

/// The length in bytes of each SHA-256 hash in a token file.
pub(crate) const HASH: usize = 32;

/// The header of a token file: the vocabulary size, the numbers of tokens, documents and prompts, and two hashes. `key`
/// identifies the encoding, the options and the source files. `contents` is the hash of the tokens, the document ends
/// and the prompts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The vocabulary size of a token file: from 1 to 2^32. Every token id in the file is below it.
    pub(crate) vocabulary: u64,
    pub(crate) tokens: u64,
    pub(crate) documents: u64,
    /// The number of prompts in a token file: ranges of tokens that are input for the model, but masked out in the
    /// loss.
    pub(crate) prompts: u64,
    pub(crate) key: [u8; HASH],
    /// The SHA-256 of a token file's bytes between its header and its checksum.
    pub(crate) contents: [u8; HASH],
}

/// The byte offsets of the sections after the tokens in a token file: `ends` (the end position of each document),
/// `prompts` and `checksum`. `length` is the length of the file in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) ends: u64,
    pub(crate) prompts: u64,
    pub(crate) checksum: u64,
    pub(crate) length: u64,
}

impl Header {
    /// Returns the number of bytes per token in a token file: 2 if the vocabulary has at most 65,536 tokens, else 4.
    pub(crate) fn width(vocabulary: u64) -> usize {
        if vocabulary <= 1 << 16 { 2 } else { 4 }
    }

    pub(crate) fn to_bytes(&self) -> [u8; HEADER] {
        let mut bytes = Vec::with_capacity(HEADER);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((Self::width(self.vocabulary) as u32).to_le_bytes());
        for number in [self.vocabulary, self.tokens, self.documents, self.prompts] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.key);
        bytes.extend(self.contents);
        bytes.try_into().expect("the fields have the length of a header")
    }

    /// Parses the header of a token file. The error is a message that describes the first problem with the header.
    pub(crate) fn parse(file: &[u8]) -> Result<Self, String> {
        let Some(bytes) = file.get(..HEADER) else {
            return Err(format!("it has {} bytes, and a header has {HEADER}", file.len()));
        };
        if bytes[..8] != MAGIC {
            return Err("it does not begin as a token file".into());
        }
        let small = |at| u32::from_le_bytes(array(bytes, at));
        let large = |at| u64::from_le_bytes(array(bytes, at));
        if small(8) != VERSION {
            return Err(format!("its format has version {}, and this release reads version {VERSION}", small(8)));
        }
        let (vocabulary, tokens, documents, prompts) = (large(16), large(24), large(32), large(40));
        if !(1..=1 << 32).contains(&vocabulary) {
            return Err(format!("its vocabulary has {vocabulary} tokens"));
        }
        if small(12) as usize != Self::width(vocabulary) {
            return Err(format!("its tokens have {} bytes, for a vocabulary of {vocabulary}", small(12)));
        }
        if documents == 0 || documents > tokens {
            return Err(format!("it has {documents} documents and {tokens} tokens"));
        }
        if prompts > tokens {
            return Err(format!("it has {prompts} prompts and {tokens} tokens"));
        }
        Ok(Self { vocabulary, tokens, documents, prompts, key: array(bytes, 48), contents: array(bytes, 80) })
    }

    /// Computes where the parts of a token file begin: the byte offsets of its document ends, prompts and checksum, and
    /// the file's length. Returns `None` if one of them does not fit into 64 bits.
    pub(crate) fn layout(&self) -> Option<Layout> {
        let tokens = self.tokens.checked_mul(Self::width(self.vocabulary) as u64)?;
        let ends = tokens.checked_add(HEADER as u64)?;
        let prompts = ends.checked_add(self.documents.checked_mul(8)?)?;
        let checksum = prompts.checked_add(self.prompts.checked_mul(16)?)?;
        Some(Layout { ends, prompts, checksum, length: checksum.checked_add(HASH as u64)? })
    }
}

/// Copies `N` bytes of the slice `bytes`, starting at the offset `at`, into an array. Panics if the slice is too short.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the slice has this length")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header { vocabulary: 65_536, tokens: 10, documents: 3, prompts: 2, key: [7; HASH], contents: [9; HASH] }
    }

    #[test]
    fn a_header_survives_a_round_trip() {
        for vocabulary in [1, 65_536, 65_537, 1 << 32] {
            let header = Header { vocabulary, ..header() };
            assert_eq!(Header::parse(&header.to_bytes()).unwrap(), header);
        }
    }

    #[test]
    fn tokens_are_as_narrow_as_the_vocabulary_allows() {
        let length = |vocabulary| Header { vocabulary, ..header() }.layout().unwrap().length;
        assert_eq!(length(65_536), 112 + 2 * 10 + 8 * 3 + 16 * 2 + 32);
        assert_eq!(length(65_537), 112 + 4 * 10 + 8 * 3 + 16 * 2 + 32);
    }

    #[test]
    fn numbers_that_no_file_can_have_are_refused() {
        let layout = |tokens, documents| Header { tokens, documents, ..header() }.layout();
        assert_eq!(layout(u64::MAX / 2 + 1, 1), None);
        assert_eq!(layout(u64::MAX / 2, 1), None);
        assert_eq!(layout(u64::MAX / 2 - 100, u64::MAX / 8), None);
        let fault = |header: Header| Header::parse(&header.to_bytes()).unwrap_err();
        assert_eq!(fault(Header { documents: 11, ..header() }), "it has 11 documents and 10 tokens");
        assert_eq!(fault(Header { prompts: 11, ..header() }), "it has 11 prompts and 10 tokens");
        assert_eq!(fault(Header { tokens: 0, documents: 0, ..header() }), "it has 0 documents and 0 tokens");
        assert_eq!(fault(Header { vocabulary: 0, ..header() }), "its vocabulary has 0 tokens");
    }
}
