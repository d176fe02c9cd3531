//! The hash at the end of a manifest.

use crate::damage::Damage;
use crate::hash;

/// What stands before the hash and what after it.
const BEFORE: &str = ",\n  \"sha256\": \"";
const AFTER: &str = "\"\n}\n";

/// Adds the seal to the text of an object, which ends with `\n}`.
pub(crate) fn seal(object: &str) -> String {
    let body = object.strip_suffix("\n}").unwrap_or(object);
    format!("{body}{BEFORE}{}{AFTER}", hash::of(body.as_bytes()))
}

/// The object without its seal, if that is right.
pub(crate) fn open(text: &str) -> Result<String, Damage> {
    let cut = (|| {
        let rest = text.strip_suffix(AFTER)?;
        let (rest, found) = rest.split_at_checked(rest.len().checked_sub(hash::HEX)?)?;
        Some((rest.strip_suffix(BEFORE)?, found))
    })();
    let (body, found) = cut.ok_or(Damage::NoSeal)?;
    let expected = hash::of(body.as_bytes());
    if found != expected {
        return Err(Damage::Hash { found: expected, expected: found.to_owned() });
    }
    Ok(format!("{body}\n}}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_is_the_last_field_and_opens() {
        let object = "{\n  \"a\": 1\n}";
        let sealed = seal(object);
        assert!(sealed.starts_with("{\n  \"a\": 1,\n  \"sha256\": \""), "{sealed}");
        assert_eq!(open(&sealed).unwrap(), object);
        let value: serde_json::Value = serde_json::from_str(&sealed).unwrap();
        assert_eq!(value["sha256"], hash::of(b"{\n  \"a\": 1"));
    }

    #[test]
    fn any_other_text_does_not_open() {
        let sealed = seal("{\n  \"a\": 1\n}");
        for length in 0..sealed.len() {
            assert!(open(&sealed[..length]).is_err(), "{length}");
        }
        for text in
            [sealed.clone() + "\n", sealed.replace('1', "2"), sealed.replace("  \"sha", " \"sha"), "é".repeat(60)]
        {
            assert!(open(&text).is_err(), "{text}");
        }
    }
}
