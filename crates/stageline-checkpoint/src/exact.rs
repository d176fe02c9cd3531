//! Floats through JSON, bit for bit. The parser of JSON may be off by one in the last bit; a float that it does not
//! read back is written as a string.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::unique;

/// The key that marks a float in the values of a run.
const MARK: &str = "$f64";

/// Whether the parser of JSON gives `value` back.
fn reads_back(value: f64) -> bool {
    let text = serde_json::to_string(&value);
    text.and_then(|text| serde_json::from_str::<f64>(&text)).is_ok_and(|read| read.to_bits() == value.to_bits())
}

/// Writes a float, as a string if need be.
pub(crate) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if reads_back(*value) {
        serializer.serialize_f64(*value)
    } else {
        serializer.collect_str(&format_args!("{value:e}"))
    }
}

/// Reads a float, or a string of one.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    deserializer.deserialize_any(Float)
}

struct Float;

impl Visitor<'_> for Float {
    type Value = f64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, or a string of one")
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<f64, E> {
        Ok(value)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<f64, E> {
        Ok(value as f64)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<f64, E> {
        text.parse().map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

/// The values of a run: see [`encode`].
pub(crate) mod run {
    use super::{BTreeMap, Deserializer, Serialize, Serializer, Value, decode, encode, unique};

    pub(crate) fn serialize<S: Serializer>(run: &BTreeMap<String, Value>, serializer: S) -> Result<S::Ok, S::Error> {
        let encoded: BTreeMap<_, _> = run.iter().map(|(key, value)| (key, encode(value))).collect();
        encoded.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Value>, D::Error> {
        let run: BTreeMap<String, Value> = unique::deserialize(deserializer)?;
        Ok(run.into_iter().map(|(key, value)| (key, decode(value))).collect())
    }
}

/// Floats that are not read back become `{"$f64": "<float>"}`. An object that looks like this gets one more `$`.
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

/// What [`encode`] was given.
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

/// The only key of an object, if it is [`MARK`] with any number of `$` before it.
fn marked(fields: &Map<String, Value>) -> Option<&str> {
    let key = fields.keys().next().filter(|_| fields.len() == 1)?;
    (key.ends_with(MARK) && key.trim_start_matches('$') == &MARK[1..]).then_some(key)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_float_that_reads_back_is_a_number() {
        assert_eq!(encode(&json!(0.1)), json!(0.1));
        assert_eq!(encode(&json!([65536.0, 3, "0.1"])), json!([65536.0, 3, "0.1"]));
    }

    #[test]
    fn objects_that_look_marked_stay_what_they_are() {
        for value in [json!({"$f64": "0.5"}), json!({"$$f64": 1}), json!({"$f64": {"$f64": "x"}}), json!({"f64": "1"})]
        {
            assert_eq!(decode(encode(&value)), value);
            assert!(!encode(&value).is_number());
        }
    }

    proptest! {
        #[test]
        fn every_float_survives(bits: u64) {
            let float = f64::from_bits(bits);
            prop_assume!(float.is_finite());
            let text = encode(&json!({"a": [float]})).to_string();
            let read = decode(serde_json::from_str(&text).unwrap());
            prop_assert_eq!(read["a"][0].as_f64().unwrap().to_bits(), bits);
        }
    }
}
