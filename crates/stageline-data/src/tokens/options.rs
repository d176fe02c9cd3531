//! The options of token files: [`TokenOptions`].

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use crate::tokens::encode::Encode;
use crate::tokens::error::TokenError;

/// The options of [`prepare`](crate::prepare): the folder of the token files, the token that ends each document, and
/// the JSON field with the text in a JSON-lines file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenOptions {
    /// The folder of the token files. `None`, the default, selects `stageline/tokens` in `$XDG_CACHE_HOME`, or else in
    /// `.cache` of the home folder.
    pub folder: Option<PathBuf>,
    /// The id of the end-of-document token, which is appended to each document unless it is already the document's last
    /// token. `None`, the default, appends nothing. A document may already end with this token because its text or the
    /// encoding's special tokens do. Empty documents do not get the token. Conversations do not get it either, because
    /// their chat template ends them.
    ///
    /// The id may be one of the encoding's tokens, or the first free id, which adds a token to the vocabulary. The
    /// first free id is the size of the encoding's vocabulary (256 for the byte-level encoding). A larger id is an
    /// error.
    pub end_of_document: Option<u32>,
    /// The name of the JSON field that contains the document's text in each line of a JSON-lines file. The default is
    /// `text`.
    pub text_field: String,
}

impl Default for TokenOptions {
    fn default() -> Self {
        Self { folder: None, end_of_document: None, text_field: "text".into() }
    }
}

impl TokenOptions {
    /// Returns the folder for token files: the one that these options set, or else the default. Returns an error if
    /// there is no default folder.
    pub(crate) fn folder(&self) -> Result<PathBuf, TokenError> {
        match &self.folder {
            Some(folder) => Ok(folder.clone()),
            None => default_folder(env::var_os("XDG_CACHE_HOME"), env::home_dir()).ok_or(TokenError::NoFolder),
        }
    }

    /// Returns the vocabulary size of the token file: the size of the encoding's vocabulary, plus one if the
    /// end-of-document token is new. Returns an error if the id of the end-of-document token is larger than the size of
    /// the encoding's vocabulary.
    pub(crate) fn vocabulary(&self, encoding: &dyn Encode) -> Result<usize, TokenError> {
        let vocabulary = encoding.vocabulary();
        let end = self.end_of_document.map_or(0, |end| end as usize);
        if end > vocabulary {
            let (name, allowed) = ("end_of_document", format!("at most {vocabulary}, the size of the vocabulary"));
            return Err(TokenError::OutOfRange { name, value: end.to_string(), allowed });
        }
        let vocabulary = if self.end_of_document.is_some() { vocabulary.max(end + 1) } else { vocabulary };
        if vocabulary == 0 || vocabulary as u64 > 1 << 32 {
            let (name, allowed) = ("the size of the vocabulary", "from 1 to 4294967296".into());
            return Err(TokenError::OutOfRange { name, value: vocabulary.to_string(), allowed });
        }
        Ok(vocabulary)
    }
}

/// Returns the default folder of token files: `stageline/tokens` in `cache` (the value of `XDG_CACHE_HOME`) or, without
/// `cache`, in the folder `.cache` of `home`. A path that is not absolute counts as unset. Returns `None` if both paths
/// are unset.
fn default_folder(cache: Option<OsString>, home: Option<PathBuf>) -> Option<PathBuf> {
    let cache = cache.map(PathBuf::from).filter(|cache| cache.is_absolute());
    let home = home.filter(|home| home.is_absolute());
    Some(cache.or_else(|| Some(home?.join(".cache")))?.join("stageline").join("tokens"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::bytes::Bytes;

    #[cfg(unix)]
    #[test]
    fn the_default_folder_is_in_the_folder_of_caches_or_in_the_home_folder() {
        let folder = |cache: Option<&str>, home: Option<&str>| {
            default_folder(cache.map(Into::into), home.map(Into::into)).map(|path| path.display().to_string())
        };
        assert_eq!(folder(Some("/caches"), Some("/home/a")).unwrap(), "/caches/stageline/tokens");
        for unset in [None, Some(""), Some("relative")] {
            assert_eq!(folder(unset, Some("/home/a")).unwrap(), "/home/a/.cache/stageline/tokens");
            assert_eq!(folder(unset, None), None);
            assert_eq!(folder(unset, Some("")), None);
        }
    }

    #[test]
    fn the_end_of_a_document_may_be_the_first_free_token() {
        let vocabulary = |end_of_document| TokenOptions { end_of_document, ..Default::default() }.vocabulary(&Bytes);
        assert_eq!(vocabulary(None).unwrap(), 256);
        assert_eq!(vocabulary(Some(0)).unwrap(), 256);
        assert_eq!(vocabulary(Some(256)).unwrap(), 257);
        assert_eq!(
            vocabulary(Some(257)).unwrap_err().to_string(),
            "end_of_document is 257; it must be at most 256, the size of the vocabulary"
        );
    }
}
