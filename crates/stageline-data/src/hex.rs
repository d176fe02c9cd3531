//! Converts bytes, such as hashes, to hexadecimal strings: [`hex`].

/// Returns bytes as a hexadecimal string, with two lowercase digits for each byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
