//! Checks the numbers in a model's configuration against limits, so that a wrong file is an error before memory is
//! allocated.

/// The largest length, in bytes, of the configuration file (`config.json`) of a new model. A longer file is an error,
/// so that a wrong file does not fill the memory.
pub const LARGEST_CONFIG: u64 = 64 << 20;

/// The largest vocabulary, width or sequence length that the configuration of a model may have.
const LARGEST_SIZE: usize = 1 << 24;

/// The largest number of layers, of heads, and of elements of a head that the configuration of a model may have.
const LARGEST_COUNT: usize = 1 << 13;

/// Returns an error if a size in a model's configuration, such as its width, is 0 or larger than `LARGEST_SIZE`. Each
/// entry of `fields` is the name and the value of a field.
pub fn sizes(fields: &[(&str, usize)]) -> Result<(), String> {
    within(fields, LARGEST_SIZE)
}

/// Returns an error if a count in a model's configuration, such as its number of layers, is 0 or larger than
/// `LARGEST_COUNT`. Each entry of `fields` is the name and the value of a field.
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
