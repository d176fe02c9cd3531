//! Computes the cache key of a token file, a hash that lets [`prepare`](crate::prepare) find the token file of an
//! unchanged source (the text files to tokenise) again.

use std::time::{SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};

use crate::tokens::encode::{Encode, SpecialTokens};
use crate::tokens::format::{HASH, VERSION};
use crate::tokens::options::TokenOptions;
use crate::tokens::source::Source;

/// The version of the tokenisation rules (how documents are split, encoded and ended), which is part of the cache key
/// of a token file. Raise it when a code change gives the same text files different tokens, so that old token files are
/// not used again.
const RULES: u32 = 7;

/// Returns a token file's cache key, so that a later call for the same source finds the file. The key is a SHA-256 of
/// these inputs:
///
/// - the versions of the token file format and of the tokenisation rules;
/// - the encoding, and the options that affect the tokens;
/// - the path of the source (the text files to tokenise);
/// - each file's name, kind (JSON lines or not), length and modification time.
///
/// Each string is hashed after its length in bytes, and numbers are little-endian.
pub(crate) fn cache_key(source: &Source, encoding: &dyn Encode, options: &TokenOptions) -> [u8; HASH] {
    let mut hash = Sha256::new();
    let text = |hash: &mut Sha256, text: &[u8]| {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    };
    hash.update(VERSION.to_le_bytes());
    hash.update(RULES.to_le_bytes());
    text(&mut hash, encoding.fingerprint().as_bytes());
    hash.update((encoding.vocabulary() as u64).to_le_bytes());
    let SpecialTokens { before, after } = encoding.special_tokens();
    for tokens in [before, after] {
        text(&mut hash, &tokens.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<_>>());
    }
    hash.update(options.end_of_document.map_or(u64::MAX, u64::from).to_le_bytes());
    text(&mut hash, options.text_field.as_bytes());
    text(&mut hash, source.root.as_os_str().as_encoded_bytes());
    hash.update((source.files.len() as u64).to_le_bytes());
    for file in &source.files {
        text(&mut hash, file.name.as_bytes());
        // A single file has an empty name, so its extension is hashed here. Links with different extensions may lead to
        // the same file.
        if file.name.is_empty() && file.is_json_lines() {
            text(&mut hash, b"JSON lines");
        }
        hash.update(file.stamp.length.to_le_bytes());
        hash.update(nanoseconds(file.stamp.modified).to_le_bytes());
    }
    hash.finalize().into()
}

/// Returns a time as nanoseconds since the start of 1970 (UTC), negative for an earlier time. `None` gives the smallest
/// `i128`.
fn nanoseconds(time: Option<SystemTime>) -> i128 {
    let after = |time: SystemTime| match time.duration_since(UNIX_EPOCH) {
        Ok(after) => after.as_nanos() as i128,
        Err(before) => -(before.duration().as_nanos() as i128),
    };
    time.map_or(i128::MIN, after)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs::{self, File};
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::tokens::bytes::Bytes;

    fn key(path: &Path, options: &TokenOptions) -> [u8; HASH] {
        cache_key(&Source::list(path).unwrap(), &Bytes, options)
    }

    #[test]
    fn the_key_changes_with_the_files_and_the_options_but_not_with_the_folder_of_token_files() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a.txt");
        fs::write(&path, "abc").unwrap();
        let options = TokenOptions::default();
        let first = key(&path, &options);
        assert_eq!(key(&path, &TokenOptions { folder: Some("x".into()), ..options.clone() }), first);
        assert_eq!(key(&root.path().join(".").join("a.txt"), &options), first);

        let mut keys = vec![first, key(root.path(), &options)];
        keys.push(key(&path, &TokenOptions { end_of_document: Some(0), ..options.clone() }));
        keys.push(key(&path, &TokenOptions { text_field: "body".into(), ..options.clone() }));
        for time in [UNIX_EPOCH + Duration::from_nanos(100), UNIX_EPOCH - Duration::from_secs(1)] {
            File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
            keys.push(key(&path, &options));
        }
        fs::write(&path, "abcd").unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(UNIX_EPOCH - Duration::from_secs(1)).unwrap();
        keys.push(key(&path, &options));
        fs::write(root.path().join("b.txt"), "").unwrap();
        keys.push(key(root.path(), &options));
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len());
    }

    /// Tests links with different extensions to one file, as in the cache of the Hugging Face hub.
    #[cfg(unix)]
    #[test]
    fn a_file_has_one_key_as_text_and_another_as_json_lines() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("blob"), "{\"text\": \"a\"}\n").unwrap();
        let [plain, other_plain, lines, other_lines] = ["x.txt", "x.md", "x.jsonl", "x.NDJSON"].map(|name| {
            std::os::unix::fs::symlink("blob", root.path().join(name)).unwrap();
            key(&root.path().join(name), &TokenOptions::default())
        });
        assert_ne!(plain, lines);
        assert_eq!((plain, lines), (other_plain, other_lines));
    }
}
