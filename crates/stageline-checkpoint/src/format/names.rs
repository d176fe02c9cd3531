//! The fixed file and folder names of a checkpoint, and the rule that assigns each tensor to a file by its name.

use crate::format::seal;

/// The name of the lock file in a folder of checkpoints, which allows only one writer at a time.
pub(crate) const LOCK: &str = ".lock";
/// The prefix of the name of a temporary folder, where a checkpoint is written before it gets its final name.
pub(crate) const WRITING: &str = ".writing-";
/// The prefix of the name that a checkpoint folder gets while its files are being removed.
pub(crate) const REMOVING: &str = ".removing-";
pub(crate) const MANIFEST: &str = "manifest.json";
/// The name of the index file in a checkpoint folder, which Hugging Face's tools read.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
pub(crate) const OPTIMIZER: &str = "optimizer";
/// The key that the safetensors format reserves for a file's metadata, so that no tensor may have it as its name.
pub(crate) const RESERVED: &str = "__metadata__";

/// Maximum length, in bytes, of a layer group's encoded name in a file name; a longer name is truncated and hashed. A
/// layer group is the set of tensors that share a file, such as those whose names begin with `blocks.3`.
const MOST_BYTES: usize = 150;
/// Length, in bytes, of the prefix that remains of an over-long layer group name in a file name. A hash of the group's
/// full name follows, so that names stay unique.
const KEPT_BYTES: usize = 100;

pub(crate) fn parameter_file(name: &str) -> String {
    format!("{}.safetensors", encoded(group(name)))
}

/// Returns the checkpoint file, in the subfolder `optimizer`, that stores the optimizer state tensor `name`
/// (`<parameter>/<field>`). All state of a parameter's layer group is in the same file.
pub(crate) fn optimizer_file(name: &str) -> String {
    let parameter = name.rsplit_once('/').map_or(name, |(parameter, _)| parameter);
    format!("{OPTIMIZER}/{}", parameter_file(parameter))
}

/// Returns a tensor's layer group, whose tensors share a file: `blocks.3` for `blocks.3.up.weight`, `embedding` for
/// `embedding.weight`.
fn group(name: &str) -> &str {
    let Some((first, rest)) = name.split_once('.') else { return name };
    let second = rest.split('.').next().unwrap_or_default();
    let numbered = !second.is_empty() && second.bytes().all(|byte| byte.is_ascii_digit());
    if numbered { &name[..first.len() + 1 + second.len()] } else { first }
}

/// Encodes a layer group's name, such as `blocks.3`, for use in a file name: unsafe bytes become `%XX`, and an
/// over-long name is truncated and gets a hash.
///
/// Two layer groups never get the same file name, because `%` appears only in escapes, and `~` only where a long name
/// was truncated.
fn encoded(group: &str) -> String {
    let mut name = String::new();
    for (position, byte) in group.bytes().enumerate() {
        let plain = byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-') || (byte == b'.' && position > 0);
        if plain { name.push(byte.into()) } else { name.push_str(&format!("%{byte:02X}")) }
    }
    if name.is_empty() {
        name.push('%');
    }
    if name.len() > MOST_BYTES {
        name.truncate(KEPT_BYTES);
        name.push('~');
        name.push_str(&seal::sha256(group.as_bytes())[..32]);
    }
    name
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_group_is_the_first_part_and_the_number_after_it() {
        assert_eq!(parameter_file("blocks.3.attention.weight"), "blocks.3.safetensors");
        assert_eq!(parameter_file("blocks.3"), "blocks.3.safetensors");
        assert_eq!(parameter_file("embedding.weight"), "embedding.safetensors");
        assert_eq!(parameter_file("bias"), "bias.safetensors");
        assert_eq!(parameter_file("a.3x.b"), "a.safetensors");
        assert_eq!(parameter_file("a..b"), "a.safetensors");
        assert_eq!(optimizer_file("blocks.3.up.weight/momentum.moment_1"), "optimizer/blocks.3.safetensors");
        assert_eq!(optimizer_file("bias/time"), "optimizer/bias.safetensors");
    }

    #[test]
    fn odd_characters_are_encoded() {
        assert_eq!(parameter_file("../etc/x"), "%.safetensors");
        assert_eq!(parameter_file("a/b c.w"), "a%2Fb%20c.safetensors");
        assert_eq!(parameter_file(".5.w"), "%2E5.safetensors");
        assert_eq!(parameter_file("50%~é"), "50%25%7E%C3%A9.safetensors");
        assert_eq!(parameter_file(""), "%.safetensors");
    }

    #[test]
    fn long_groups_are_shortened_to_different_names() {
        let files: BTreeSet<_> = ["x", "y"].iter().map(|end| parameter_file(&("é".repeat(300) + end))).collect();
        assert_eq!(files.len(), 2);
        assert!(files.iter().all(|file| file.len() < 180), "{files:?}");
        assert_eq!(parameter_file(&"a".repeat(150)), "a".repeat(150) + ".safetensors");
        assert_eq!(parameter_file(&"a".repeat(151)).len(), 100 + 1 + 32 + ".safetensors".len());
    }

    proptest! {
        #[test]
        fn groups_and_files_are_one_to_one(a in ".{0,3}", b in ".{0,3}") {
            prop_assert_eq!(group(&a) == group(&b), parameter_file(&a) == parameter_file(&b));
        }

        #[test]
        fn files_lie_in_the_folder(name in ".{0,200}") {
            let file = parameter_file(&name);
            prop_assert!(!file.starts_with('.') && !file.contains(['/', '\\', '\0']) && file.len() < 200);
        }
    }
}
