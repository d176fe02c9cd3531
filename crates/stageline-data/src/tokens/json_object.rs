//! The fields of a JSON object in order, with their values as JSON: [`Fields`].

use std::fmt;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// Maximum number of fields in a JSON object; more are an error. Each field's name is compared with all names before
/// it, so the limit bounds the parsing time.
const MOST: usize = 256;

/// The fields of a JSON object in order. If a name occurs twice, only its last value is kept.
pub(crate) struct Fields<'a>(pub(crate) Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Fields<'de>, A::Error> {
                let mut fields: Vec<(String, &'de RawValue)> = Vec::new();
                while let Some((name, value)) = object.next_entry::<String, &'de RawValue>()? {
                    match fields.iter().position(|(other, _)| *other == name) {
                        Some(at) => fields[at].1 = value,
                        None if fields.len() == MOST => {
                            return Err(Error::custom(format!("an object has more than {MOST} fields")));
                        }
                        None => fields.push((name, value)),
                    }
                }
                Ok(Fields(fields))
            }
        }
        from.deserialize_map(Reader)
    }
}

/// Returns the type of a JSON value in words, such as "a string".
pub(crate) fn kind(value: &RawValue) -> &'static str {
    match value.get().as_bytes()[0] {
        b'"' => "a string",
        b'{' => "an object",
        b'[' => "an array",
        b't' | b'f' => "a boolean",
        b'n' => "null",
        _ => "a number",
    }
}
