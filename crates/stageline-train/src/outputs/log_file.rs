//! Opens the file of a run's log, which replaces no other file and is never shared by two runs ([`open`]).

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Read, Seek, SeekFrom};
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::paths::{is_pipe_or_device, unwritable};

/// The first bytes of a log, whose first line describes the run.
const BEGINNING: &[u8] = br#"{"stageline":"#;

/// Opens the log at `path`, or creates it, and locks it until it is closed. A run that resumes (`resumes`) appends to
/// an existing log, from which an incomplete last line is removed first; any other run replaces it. If `path` is a
/// pipe, a device or a path such as `/dev/stdout`, lines are only added, and nothing is locked.
///
/// # Errors
/// Returns an error if the file is not a log, if another run writes to it, or if it cannot be written.
pub fn open(path: &Path, resumes: bool) -> Result<BufWriter<File>> {
    if is_pipe_or_device(path) || is_of_system(path) {
        let file = OpenOptions::new().append(true).open(path).with_context(|| unwritable(path))?;
        return Ok(BufWriter::new(file));
    }
    let opened = OpenOptions::new().read(true).append(true).create(true).open(path);
    let mut file = opened.with_context(|| unwritable(path))?;
    ensure!(!is_in_use(&file), "{}: another run writes its log to this file; give another path", path.display());
    let is_log = begins_as_log(&mut file).with_context(|| unwritable(path))?;
    ensure!(is_log, "{}: this file is not the log of a training; give another path, or move it away", path.display());
    let kept = if resumes { length_of_lines(&mut file) } else { Ok(0) };
    // Windows does not truncate a file that is opened for appending, so the file is opened again for this.
    let truncate = |length| OpenOptions::new().write(true).open(path)?.set_len(length);
    kept.and_then(truncate).with_context(|| unwritable(path))?;
    Ok(BufWriter::new(file))
}

/// Whether a path is one that the system gives to a stream of the process, such as `/dev/stdout`, which may be a file
/// that has other lines too.
pub fn is_of_system(path: &Path) -> bool {
    ["/dev/stdout", "/dev/stderr", "/dev/fd", "/proc"].iter().any(|system| path.starts_with(system))
}

/// Locks a log for this run. Returns whether another run has locked it. Nothing is locked on network file systems
/// without locks. Nothing is locked on Windows either, where a lock would keep this run from reading its own log.
fn is_in_use(file: &File) -> bool {
    cfg!(not(windows)) && matches!(file.try_lock(), Err(TryLockError::WouldBlock))
}

/// Whether a file is empty or begins like a log. A file that ends within a log's first bytes also counts.
fn begins_as_log(file: &mut File) -> io::Result<bool> {
    let mut first = Vec::new();
    file.take(BEGINNING.len() as u64).read_to_end(&mut first)?;
    Ok(BEGINNING.starts_with(&first))
}

/// Returns the length, in bytes, of a file up to and including its last line feed, which is searched backwards from the
/// end.
fn length_of_lines(file: &mut File) -> io::Result<u64> {
    let mut block = vec![0; 1 << 16];
    let mut end = file.metadata()?.len();
    while end > 0 {
        let start = end.saturating_sub(block.len() as u64);
        let block = &mut block[..(end - start) as usize];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(block)?;
        if let Some(last) = block.iter().rposition(|&byte| byte == b'\n') {
            return Ok(start + last as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_resumed_run_removes_an_incomplete_last_line_however_long_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let long = format!("{{\"stageline\":{}", "x".repeat(200_000));
        let run = "{\"stageline\":1}\n";
        for (text, kept) in [
            ("", ""),
            ("{\"stage", ""),
            (&long, ""),
            (run, run),
            (&format!("{run}{{\"step\":"), run),
            (&format!("{run}{long}"), run),
        ] {
            fs::write(&path, text).unwrap();
            drop(open(&path, true).unwrap());
            assert_eq!(fs::read_to_string(&path).unwrap(), kept);
            fs::write(&path, text).unwrap();
            drop(open(&path, false).unwrap());
            assert_eq!(fs::read_to_string(&path).unwrap(), "");
        }
    }

    #[test]
    fn no_other_file_becomes_a_log() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes");
        for text in ["important notes", "{\"text\": \"a sample\"}\n", "\n"] {
            fs::write(&path, text).unwrap();
            for resumes in [false, true] {
                let error = open(&path, resumes).unwrap_err().to_string();
                assert!(error.contains("this file is not the log of a training; give another path"), "{error}");
                assert_eq!(fs::read_to_string(&path).unwrap(), text);
            }
        }
    }

    /// Tests a log on the standard output, which is redirected to a file that has other lines.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_stream_of_the_process_may_have_other_lines() {
        use std::io::Write;
        use std::os::fd::AsRawFd;

        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "a line\n").unwrap();
        let path = format!("/proc/self/fd/{}", file.as_file().as_raw_fd());
        let mut log = open(Path::new(&path), false).unwrap();
        log.write_all(b"the log\n").unwrap();
        drop(log);
        assert_eq!(fs::read_to_string(file.path()).unwrap(), "a line\nthe log\n");
    }

    #[cfg(not(windows))]
    #[test]
    fn two_runs_do_not_share_a_log() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let first = open(&path, false).unwrap();
        let error = open(&path, true).unwrap_err().to_string();
        assert!(error.contains("another run writes its log to this file; give another path"), "{error}");
        drop(first);
        open(&path, true).unwrap();
    }
}
