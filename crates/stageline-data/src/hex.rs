//! Writes bytes, such as hashes, as hexadecimal text: [`hex`].

/// Returns bytes as hexadecimal text: two lowercase digits for each byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
