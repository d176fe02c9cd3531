//! Writes event files for TensorBoard: `tensorflow.Event` messages as TFRecords, a record format with a length and
//! checksums.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Writer of a TensorBoard event file, for a run's scalar measurements, such as loss and step time, step by step.
#[derive(Debug)]
pub struct TensorBoard<W> {
    file: W,
}

impl TensorBoard<BufWriter<File>> {
    /// Creates an event file in a folder, under a name that TensorBoard recognises and no other file has. Creates the
    /// folder if it does not exist. `wall_time` is in seconds since 1970.
    ///
    /// # Errors
    /// Returns [`io::Error`] if the folder or the event file cannot be written.
    pub fn in_folder(folder: &Path, wall_time: f64) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        // Two runs may begin in the same second and have the same process id, for example in two containers.
        let start = format!("events.out.tfevents.{wall_time:.0}.stageline.{}", std::process::id());
        let mut number = 0;
        let file = loop {
            match File::create_new(folder.join(format!("{start}.{number}"))) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                created => break created?,
            }
        };
        Self::new(BufWriter::new(file), wall_time)
    }
}

impl<W: Write> TensorBoard<W> {
    /// Begins an event file for TensorBoard by writing the file's version record. `wall_time` is in seconds since 1970.
    /// TensorBoard only finds files with `tfevents` in their names.
    ///
    /// # Errors
    /// Returns [`io::Error`] if the event file cannot be written.
    pub fn new(file: W, wall_time: f64) -> io::Result<Self> {
        let mut board = Self { file };
        let mut event = Message::default();
        event.double(1, wall_time);
        event.bytes(3, b"brain.Event:2");
        board.record(&event.0)?;
        Ok(board)
    }

    /// Writes measurements of the training step with the number `step` to the event file, and flushes the file. Each
    /// entry of `figures` is a TensorBoard tag and its value. `wall_time` is in seconds since 1970.
    ///
    /// # Errors
    /// Returns [`io::Error`] if the event file cannot be written.
    pub fn scalars(&mut self, wall_time: f64, step: usize, figures: &[(&str, f64)]) -> io::Result<()> {
        let mut summary = Message::default();
        for (tag, figure) in figures {
            let mut value = Message::default();
            value.bytes(1, tag.as_bytes());
            value.float(2, *figure as f32);
            summary.bytes(1, &value.0);
        }
        let mut event = Message::default();
        event.double(1, wall_time);
        event.integer(2, step as u64);
        event.bytes(5, &summary.0);
        self.record(&event.0)?;
        self.file.flush()
    }

    fn record(&mut self, data: &[u8]) -> io::Result<()> {
        let length = (data.len() as u64).to_le_bytes();
        self.file.write_all(&length)?;
        self.file.write_all(&masked(&length).to_le_bytes())?;
        self.file.write_all(data)?;
        self.file.write_all(&masked(data).to_le_bytes())
    }
}

/// Returns the masked checksum that a TFRecord file stores for each record's length and for its data: the CRC-32C of
/// `data`, rotated by 15 bits, plus a constant.
fn masked(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// A protocol buffer message for an event file: its encoded bytes, which methods append fields to.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn key(&mut self, field: u64, kind: u64) {
        self.varint(field << 3 | kind);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn integer(&mut self, field: u64, value: u64) {
        self.key(field, 0);
        self.varint(value);
    }

    fn double(&mut self, field: u64, value: f64) {
        self.key(field, 1);
        self.0.extend(value.to_le_bytes());
    }

    fn float(&mut self, field: u64, value: f32) {
        self.key(field, 5);
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, value: &[u8]) {
        self.key(field, 2);
        self.varint(value.len() as u64);
        self.0.extend(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_record_is_that_of_tensorflow() {
        let mut file = Vec::new();
        TensorBoard::new(&mut file, 0.0).unwrap();
        let data = b"\x09\0\0\0\0\0\0\0\0\x1a\x0dbrain.Event:2";
        assert_eq!(file[..8], (data.len() as u64).to_le_bytes());
        assert_eq!(&file[12..12 + data.len()], data);
        assert_eq!(file.len(), 12 + data.len() + 4);
    }

    #[test]
    fn two_runs_of_the_same_second_have_files_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("events");
        let mut runs = [0, 1].map(|_| TensorBoard::in_folder(&folder, 7.0).unwrap());
        runs.iter_mut().enumerate().for_each(|(step, run)| run.scalars(8.0, step, &[("loss", 1.0)]).unwrap());
        let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        let name = |run| format!("events.out.tfevents.7.stageline.{}.{run}", std::process::id());
        assert_eq!(names, [0, 1].map(|run| folder.join(name(run))));
        assert!(names.iter().all(|path| fs::metadata(path).unwrap().len() > 40));
    }

    /// Tests the masked checksum of 32 zeros against their CRC-32C in RFC 3720, B.4.
    #[test]
    fn checksums_are_masked_crc32c() {
        let crc = 0x8a91_36aa_u32;
        assert_eq!(masked(&[0; 32]), crc.rotate_right(15).wrapping_add(0xa282_ead8));
    }

    #[test]
    fn scalars_are_in_the_wire_format() {
        let mut file = Vec::new();
        let mut board = TensorBoard::new(&mut file, 0.0).unwrap();
        board.scalars(1.0, 300, &[("loss", 2.0)]).unwrap();
        let data = file[file.len() - 27 - 4..file.len() - 4].to_vec();
        let expected = b"\x09\0\0\0\0\0\0\xf0\x3f\x10\xac\x02\x2a\x0d\x0a\x0b\x0a\x04loss\x15\0\0\0\x40";
        assert_eq!(data, expected);
    }
}
