//! Limits to the numbers of a configuration, so that a wrong file is an error before memory is allocated.

/// The largest vocabulary, width or sequence of a model.
const LARGEST_SIZE: usize = 1 << 24;

/// The largest number of layers or heads of a model, and of elements of a head.
const LARGEST_COUNT: usize = 1 << 13;

/// Checks that sizes, each with the name of its field, are from 1 to the largest that a model has.
pub fn sizes(fields: &[(&str, usize)]) -> Result<(), String> {
    within(fields, LARGEST_SIZE)
}

/// Checks that numbers of layers or heads, each with the name of its field, are from 1 to the largest that a model has.
pub fn counts(fields: &[(&str, usize)]) -> Result<(), String> {
    within(fields, LARGEST_COUNT)
}

fn within(fields: &[(&str, usize)], largest: usize) -> Result<(), String> {
    match fields.iter().find(|(_, value)| !(1..=largest).contains(value)) {
        Some((name, value)) => Err(format!("{name} {value}: give 1 to {largest}")),
        None => Ok(()),
    }
}

/// Checks that the field `name` has a number above 0.
pub fn positive(name: &str, value: f64) -> Result<(), String> {
    if value > 0.0 && value.is_finite() { Ok(()) } else { Err(format!("{name} {value}: give a number above 0")) }
}

/// Checks that the field `name` has a standard deviation: a number that is at least 0.
pub fn deviation(name: &str, value: f64) -> Result<(), String> {
    if value >= 0.0 && value.is_finite() {
        Ok(())
    } else {
        Err(format!("{name} {value}: give a number that is 0 or more"))
    }
}
