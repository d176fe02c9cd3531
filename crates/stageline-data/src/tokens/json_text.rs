//! Takes the text of a document from a line of a JSON-lines file, without reading the values of the other fields.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::shown;

/// The largest number of fields of a JSON object that an error message names.
const FIELDS: usize = 8;

/// Reads a line that should be a JSON object with a text in the field `field`. The values of the other fields only have
/// to be JSON, so numbers out of range and deep nesting in them do no harm.
///
/// The result is the text, or the fault of the line in words.
pub(crate) struct Line<'a> {
    pub(crate) field: &'a str,
}

impl<'de> DeserializeSeed<'de> for Line<'_> {
    type Value = Result<String, String>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        Ok(match json.deserialize_any(Kind { field: Some(self.field) })? {
            Found::Object(text) => text,
            Found::Text(_) => Err("is a string and not an object".into()),
            Found::Other(kind) => Err(format!("is {kind} and not an object")),
        })
    }
}

/// A JSON value: a string with its text, an object with the text in its wanted field, or another kind in words.
enum Found {
    Text(String),
    Object(Result<String, String>),
    Other(&'static str),
}

/// Reads a JSON value. In an object, reads the field `field`, if one is wanted, and skips all other values.
struct Kind<'a> {
    field: Option<&'a str>,
}

impl<'de> DeserializeSeed<'de> for Kind<'_> {
    type Value = Found;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Found, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Kind<'_> {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_str<E>(self, text: &str) -> Result<Found, E> {
        Ok(Found::Text(text.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Found, E> {
        Ok(Found::Other("null"))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Found, E> {
        Ok(Found::Other("a boolean"))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Found, E> {
        Ok(Found::Other("a number"))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Found, E> {
        Ok(Found::Other("a number"))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Found, E> {
        Ok(Found::Other("a number"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Found, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Found::Other("an array"))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Found, A::Error> {
        let mut text = None;
        let mut others = Vec::new();
        while let Some(name) = object.next_key::<String>()? {
            if self.field == Some(name.as_str()) {
                text = Some(object.next_value_seed(Kind { field: None })?); // the last of equal names counts
                continue;
            }
            object.next_value::<IgnoredAny>()?;
            if others.len() < FIELDS {
                others.push(name);
            }
        }
        Ok(self.field.map_or(Found::Other("an object"), |field| Found::Object(wanted(text, field, &others))))
    }
}

/// Returns the text in the field `field` of an object, or the fault in words. `found` is the value of the field, and
/// `others` has the names of other fields.
fn wanted(found: Option<Found>, field: &str, others: &[String]) -> Result<String, String> {
    let field = shown::text(field);
    match found {
        Some(Found::Text(text)) => Ok(text),
        Some(Found::Other(kind)) => Err(format!("has {kind} in the field `{field}` and not a string")),
        Some(Found::Object(_)) => Err(format!("has an object in the field `{field}` and not a string")),
        None if others.is_empty() => Err(format!("has no field `{field}` and no other field")),
        None => Err(format!("has no field `{field}`, but has the fields {}", shown::text(&others.join(", ")))),
    }
}
