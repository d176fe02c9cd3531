//! Reads the event files that a training writes for TensorBoard: protocol buffers in TFRecords.

/// A scalar of an event file: the training step, the tag and the value.
pub type Scalar = (u64, String, f32);

/// Returns the scalars of an event file for TensorBoard, in the order of the file. Checksums are not examined.
pub fn scalars(mut file: &[u8]) -> Vec<Scalar> {
    let mut found = Vec::new();
    while !file.is_empty() {
        // A record is its length (8 bytes) with a checksum (4), and the event with a checksum (4).
        let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let event = fields(&file[12..12 + length]);
        let field = |number: u64| event.iter().find(|(field, _)| *field == number).map(|(_, bytes)| *bytes);
        let step = field(2).map_or(0, |bytes| varint(bytes).0);
        for (_, value) in fields(field(5).unwrap_or_default()) {
            let value = fields(value);
            let tag = String::from_utf8(value[0].1.to_vec()).unwrap();
            found.push((step, tag, f32::from_le_bytes(value[1].1.try_into().unwrap())));
        }
        file = &file[12 + length + 4..];
    }
    found
}

/// Splits a protocol buffer message into its fields: the number and the bytes of each field.
fn fields(mut message: &[u8]) -> Vec<(u64, &[u8])> {
    let mut found = Vec::new();
    while !message.is_empty() {
        let (key, length) = varint(message);
        message = &message[length..];
        let size = match key & 7 {
            0 => varint(message).1,
            1 => 8,
            2 => {
                let (size, length) = varint(message);
                message = &message[length..];
                size as usize
            }
            _ => 4,
        };
        found.push((key >> 3, &message[..size]));
        message = &message[size..];
    }
    found
}

/// Reads the integer of variable length at the start of `bytes`. Returns its value and its length in bytes.
fn varint(bytes: &[u8]) -> (u64, usize) {
    let length = bytes.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
    let value = bytes[..length].iter().rev().fold(0_u64, |value, byte| value << 7 | u64::from(byte & 0x7f));
    (value, length)
}
