//! Reads and writes a checkpoint manifest as JSON, so that floats keep every bit and a repeated key is an error.
//!
//! The JSON parser may read a float with a wrong last bit. Such a float is written as a string: see [`exact_float`] and
//! [`exact_values`]. [`unique_keys`] reads a map and rejects repeated keys.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::printable::Printable;

/// The key of the JSON object `{"$f64": "<float>"}`. This object replaces a float in a manifest's map `run` (the values
/// that the caller stores) if the parser would not read the float back exactly.
const MARK: &str = "$f64";

/// Whether a JSON parser reads `value` back bit for bit after it was written as a JSON number. If not, the manifest
/// stores the float as a string.
fn reads_back(value: f64) -> bool {
    let text = serde_json::to_string(&value);
    text.and_then(|text| serde_json::from_str::<f64>(&text)).is_ok_and(|read| read.to_bits() == value.to_bits())
}

/// Serializes and deserializes one float without loss, for `#[serde(with)]`.
pub(crate) mod exact_float {
    use super::*;

    /// Serializes a float as a JSON number, or as a JSON string if the parser would not read the number back exactly.
    pub(crate) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        if reads_back(*value) {
            serializer.serialize_f64(*value)
        } else {
            serializer.collect_str(&format_args!("{value:e}"))
        }
    }

    /// Deserializes a float from a JSON number, or from a JSON string that contains the number.
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        deserializer.deserialize_any(Float)
    }

    struct Float;

    impl Visitor<'_> for Float {
        type Value = f64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a number or a string of one")
        }

        fn visit_f64<E: Error>(self, value: f64) -> Result<f64, E> {
            Ok(value)
        }

        fn visit_u64<E: Error>(self, value: u64) -> Result<f64, E> {
            Ok(value as f64)
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<f64, E> {
            text.parse().map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
        }
    }
}

/// Serializes and deserializes a manifest's map `run` (the caller's values, such as configuration and fingerprints)
/// without loss, for `#[serde(with)]`. Floats that JSON would change are replaced as in [`encode`].
pub(crate) mod exact_values {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(run: &BTreeMap<String, Value>, serializer: S) -> Result<S::Ok, S::Error> {
        let encoded: BTreeMap<_, _> = run.iter().map(|(key, value)| (key, encode(value))).collect();
        encoded.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Value>, D::Error> {
        let run: BTreeMap<String, Value> = unique_keys(deserializer)?;
        Ok(run.into_iter().map(|(key, value)| (key, decode(value))).collect())
    }
}

/// Replaces each float in a JSON value by `{"$f64": "<float>"}` if the parser would not read the float back exactly. An
/// object that already has this form gets one more `$` in front of its key, so that [`decode`] can distinguish the two.
fn encode(value: &Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => match number.as_f64() {
            Some(float) if !reads_back(float) => json!({ MARK: format!("{float:e}") }),
            _ => value.clone(),
        },
        Value::Array(values) => values.iter().map(encode).collect(),
        Value::Object(fields) => {
            let mark = marked(fields).map(|key| format!("${key}"));
            let key = |key: &String| mark.clone().unwrap_or_else(|| key.clone());
            Value::Object(fields.iter().map(|(name, value)| (key(name), encode(value))).collect())
        }
        _ => value.clone(),
    }
}

/// Reverses [`encode`]: turns every `{"$f64": "<float>"}` in a JSON value back into a float, and removes the `$` that
/// [`encode`] added to a key.
fn decode(value: Value) -> Value {
    match value {
        Value::Array(values) => values.into_iter().map(decode).collect(),
        Value::Object(fields) => {
            let mark = marked(&fields).map(str::to_owned);
            match (mark.as_deref(), fields.get(MARK).and_then(Value::as_str)) {
                (Some(MARK), Some(text)) => text.parse::<f64>().map_or(Value::Null, Value::from),
                (mark, _) => {
                    let shorter = mark.filter(|&mark| mark != MARK).map(|mark| mark[1..].to_owned());
                    let key = |key: String| shorter.clone().unwrap_or(key);
                    Value::Object(fields.into_iter().map(|(name, value)| (key(name), decode(value))).collect())
                }
            }
        }
        other => other,
    }
}

/// Detects a JSON object that stands for a float (see [`encode`]), or that only looks like such an object. Returns its
/// only key, `$f64` with any number of further `$` in front, such as `$$f64`; `None` for any other object.
fn marked(fields: &Map<String, Value>) -> Option<&str> {
    let key = fields.keys().next().filter(|_| fields.len() == 1)?;
    (key.ends_with(MARK) && key.trim_start_matches('$') == &MARK[1..]).then_some(key)
}

/// Deserializes a JSON object as a map, for `#[serde(deserialize_with)]`. Returns an error if a key occurs twice.
pub(crate) fn unique_keys<'de, D, V>(deserializer: D) -> Result<BTreeMap<String, V>, D::Error>
where
    D: Deserializer<'de>,
    V: Deserialize<'de>,
{
    deserializer.deserialize_map(UniqueKeys(PhantomData))
}

struct UniqueKeys<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for UniqueKeys<V> {
    type Value = BTreeMap<String, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut map = BTreeMap::new();
        while let Some((key, value)) = entries.next_entry::<String, V>()? {
            if map.contains_key(&key) {
                return Err(A::Error::custom(format_args!("`{}` appears twice", Printable::new(key))));
            }
            map.insert(key, value);
        }
        Ok(map)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_float_that_reads_back_is_written_as_a_number() {
        assert_eq!(encode(&json!(0.1)), json!(0.1));
        assert_eq!(encode(&json!([65536.0, 3, "0.1"])), json!([65536.0, 3, "0.1"]));
    }

    #[test]
    fn objects_that_look_marked_are_read_back_unchanged() {
        for value in [json!({"$f64": "0.5"}), json!({"$$f64": 1}), json!({"$f64": {"$f64": "x"}}), json!({"f64": "1"})]
        {
            assert_eq!(decode(encode(&value)), value);
            assert!(!encode(&value).is_number());
        }
    }

    proptest! {
        #[test]
        fn every_float_is_read_back_bit_for_bit(bits: u64) {
            let float = f64::from_bits(bits);
            prop_assume!(float.is_finite());
            let text = encode(&json!({"a": [float]})).to_string();
            let read = decode(serde_json::from_str(&text).unwrap());
            prop_assert_eq!(read["a"][0].as_f64().unwrap().to_bits(), bits);
        }
    }
}
