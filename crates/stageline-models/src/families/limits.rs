//! Checks sizes in a model's configuration, so that an invalid file is rejected before memory is allocated.

/// Maximum size, in bytes, of a new model's `config.json`, so that a wrong file opened by mistake does not exhaust the
/// host memory.
pub const LARGEST_CONFIG: u64 = 64 << 20;

/// Maximum vocabulary size, width and sequence length in a model's configuration.
const LARGEST_SIZE: usize = 1 << 24;

/// Maximum number of layers, number of heads, and head size in a model's configuration.
const LARGEST_COUNT: usize = 1 << 13;

/// Returns an error if a size in a model's configuration, such as its width, is 0 or larger than `LARGEST_SIZE`.
/// `fields` lists the names and values of the fields.
pub fn sizes(fields: &[(&str, usize)]) -> Result<(), String> {
    within(fields, LARGEST_SIZE)
}

/// Returns an error if a count in a model's configuration, such as its number of layers, is 0 or larger than
/// `LARGEST_COUNT`. `fields` lists the names and values of the fields.
pub fn counts(fields: &[(&str, usize)]) -> Result<(), String> {
    within(fields, LARGEST_COUNT)
}

fn within(fields: &[(&str, usize)], largest: usize) -> Result<(), String> {
    match fields.iter().find(|(_, value)| !(1..=largest).contains(value)) {
        Some((name, value)) => Err(format!("{name} {value}: give 1 to {largest}")),
        None => Ok(()),
    }
}

/// Returns an error if `value`, the field `name` of a model's configuration, is not a finite number above 0.
pub fn positive(name: &str, value: f64) -> Result<(), String> {
    if value > 0.0 && value.is_finite() { Ok(()) } else { Err(format!("{name} {value}: give a number above 0")) }
}

/// Returns an error if `value`, the field `name` of a model's configuration, is not a finite number of 0 or more.
pub fn deviation(name: &str, value: f64) -> Result<(), String> {
    if value >= 0.0 && value.is_finite() {
        Ok(())
    } else {
        Err(format!("{name} {value}: give a number that is 0 or more"))
    }
}
