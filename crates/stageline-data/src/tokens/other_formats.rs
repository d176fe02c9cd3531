//! Recognises data in unsupported formats, and says how to convert it: lines of datasets in other formats ([`fault`]),
//! and binary files ([`check_is_text`]).

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use serde_json::value::RawValue;

use crate::tokens::error::TokenError;
use crate::tokens::json_object::{Fields as Object, kind};

/// Field names that identify lines of other dataset formats, such as Alpaca and ShareGPT.
pub(crate) const FIELDS: [&str; 3] = ["instruction", "output", CONVERSATIONS];
const CONVERSATIONS: &str = "conversations";

/// The shell command that converts JSON lines in Alpaca's format to the `messages` of this crate's format.
const FROM_ALPACA: &str = concat!(
    r#"jq -c '{messages: [{role: "user", content: ([.instruction, .input // ""] | map(select(. != "")) "#,
    r#"| join("\n\n"))}, {role: "assistant", content: .output}]}' OLD.jsonl > NEW.jsonl"#
);

/// The shell command that converts JSON lines in ShareGPT's format to the `messages` of this crate's format.
const FROM_SHAREGPT: &str = concat!(
    r#"jq -c '.messages = [.conversations[] | {role: ({human: "user", gpt: "assistant"}[.from] // .from), "#,
    r#"content: .value}] | del(.conversations)' OLD.jsonl > NEW.jsonl"#
);

/// The shell command that renames the field `conversations` in JSON lines to `messages`.
const RENAME: &str = "jq -c '.messages = .conversations | del(.conversations)' OLD.jsonl > NEW.jsonl";

/// Recognises a line of a dataset in another format (Alpaca, ShareGPT, or messages in the field `conversations`).
/// Returns the part of the error message that names the format and gives a command to convert the file. Returns `None`
/// for any other line. `value` maps the name of one of [`FIELDS`] to the field's value in the line; `None` if the line
/// lacks the field.
pub(crate) fn fault<'a>(value: &impl Fn(&str) -> Option<&'a RawValue>) -> Option<String> {
    if value("instruction").is_some() && value("output").is_some() {
        return Some(format!(
            "has the fields `instruction` and `output` of Alpaca, which are not read; convert them to `messages`: \
             {FROM_ALPACA}"
        ));
    }
    let messages: Vec<&RawValue> = serde_json::from_str(value(CONVERSATIONS)?.get()).ok()?;
    let first = messages.into_iter().find(|message| kind(message) == "an object")?;
    let Object(fields) = serde_json::from_str(first.get()).ok()?;
    let has = |name: &str| fields.iter().any(|(other, _)| other == name);
    if has("from") && has("value") {
        let fault = "has `conversations` of ShareGPT, with `from` and `value`, which are not read";
        return Some(format!("{fault}; convert them to `messages` with `role` and `content`: {FROM_SHAREGPT}"));
    }
    has("role").then(|| format!("has messages in the field `conversations`; rename it to `messages`: {RENAME}"))
}

/// A binary file format that cannot be tokenised as text.
struct Format {
    name: &'static str,
    /// Magic number: the first bytes of every file in this binary format.
    magic: &'static [u8],
    proof: Proof,
    /// Instruction for converting a file of this format to text, for the error message.
    remedy: &'static str,
}

/// The further evidence, besides the magic number at its start, that a file has a binary format.
enum Proof {
    /// The magic number at the start of the file suffices, because no text begins with these bytes.
    None,
    /// The file must also end with its magic number, because a text may begin with the same bytes.
    End,
    /// The file name must also have this extension, because other binary formats have the same magic number.
    Extension(&'static str),
}

const OF_PARQUET: &str = "write it as text by Python's \
                          datasets.load_dataset(\"parquet\", data_files=FILE)[\"train\"].to_json(\"NEW.jsonl\")";
const OF_ARROW: &str = "write it as text by Python's \
                        datasets.load_dataset(\"arrow\", data_files=FILE)[\"train\"].to_json(\"NEW.jsonl\")";

const FORMATS: [Format; 7] = [
    Format { name: "a Parquet file", magic: b"PAR1", proof: Proof::End, remedy: OF_PARQUET },
    Format { name: "an Arrow file", magic: b"ARROW1", proof: Proof::End, remedy: OF_ARROW },
    Format { name: "an Arrow file", magic: &[0xff; 4], proof: Proof::Extension("arrow"), remedy: OF_ARROW },
    Format { name: "a gzip file", magic: &[0x1f, 0x8b], proof: Proof::None, remedy: "decompress it by gunzip" },
    Format {
        name: "a Zstandard file",
        magic: b"\x28\xb5\x2f\xfd",
        proof: Proof::None,
        remedy: "decompress it by zstd -d",
    },
    Format { name: "an xz file", magic: b"\xfd7zXZ\0", proof: Proof::None, remedy: "decompress it by unxz" },
    Format { name: "a ZIP archive", magic: b"PK\x03\x04", proof: Proof::None, remedy: "extract its files by unzip" },
];

/// The number of bytes at the start and at the end of a file that are read to recognise its format.
const ENDS: usize = 6;

/// Returns an error if the open file at `path` is in one of the known binary formats.
pub(crate) fn check_is_text(path: &Path, file: &mut File) -> Result<(), TokenError> {
    let [start, end] = ends(file).map_err(TokenError::io(path))?;
    let has_format = |format: &&Format| {
        let is_shown = match format.proof {
            Proof::None => true,
            Proof::End => end.ends_with(format.magic),
            Proof::Extension(wanted) => path.extension().is_some_and(|found| found.eq_ignore_ascii_case(wanted)),
        };
        is_shown && start.starts_with(format.magic)
    };
    match FORMATS.iter().find(has_format) {
        Some(Format { name, remedy, .. }) => {
            Err(TokenError::NotText { path: path.to_path_buf(), format: name, remedy })
        }
        None => Ok(()),
    }
}

/// Returns the first and the last [`ENDS`] bytes of a file, in this order. For a shorter file, both are the whole file.
/// `file` must be at its start; it is left at its end.
fn ends(file: &mut File) -> io::Result<[Vec<u8>; 2]> {
    let mut ends = [Vec::new(), Vec::new()];
    file.take(ENDS as u64).read_to_end(&mut ends[0])?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(ENDS as u64)))?;
    file.take(ENDS as u64).read_to_end(&mut ends[1])?;
    Ok(ends)
}
