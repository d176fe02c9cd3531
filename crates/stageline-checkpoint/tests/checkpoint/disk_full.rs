//! Tests the save of a checkpoint on a full disk, which the test imitates by a limit on the size of a file.

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::{env, io};

use stageline_checkpoint::CheckpointError;

use crate::toy;

const DIR: &str = "STAGELINE_TEST_FULL_DIR";

/// Saves a checkpoint that does not fit on the disk. This test does nothing by itself: the test of a full disk starts
/// it in a process that may write files of a few KiB.
#[test]
#[ignore = "is started by another test"]
fn child_with_a_limit() {
    let Ok(dir) = env::var(DIR) else { return };
    let dir = Path::new(&dir);
    let mut store = toy::store(dir, 1);
    store.save(&toy::checkpoint(1)).unwrap();
    let mut large = toy::checkpoint(2);
    large.optimizer.insert("head.w/momentum.moment_1".to_owned(), toy::f32s(&[100_000], 0.0));
    let error = store.save(&large).unwrap_err();
    let message = error.to_string();
    assert!(
        message.starts_with("cannot write ") && message.contains("optimizer/head.safetensors; free space"),
        "{message}"
    );
    let CheckpointError::Write { source, .. } = &error else { panic!("{error}") };
    assert!(matches!(source.kind(), io::ErrorKind::FileTooLarge | io::ErrorKind::StorageFull), "{source}");
    assert!(error.source().is_some());
    assert_eq!(toy::names(dir), [".lock", "000001-step-1"]);
    assert_eq!(toy::read(dir).unwrap(), toy::checkpoint(1));
    store.save(&toy::checkpoint(3)).unwrap();
    assert_eq!(toy::read(dir).unwrap(), toy::checkpoint(3));
    assert_eq!(toy::names(dir), [".lock", "000002-step-3"]);
}

#[test]
fn a_full_disk_is_an_error_and_earlier_checkpoints_stay() {
    let dir = tempfile::tempdir().unwrap();
    let script =
        r#"trap '' XFSZ; ulimit -f 16 && exec "$0" --exact disk_full::child_with_a_limit --ignored --nocapture"#;
    let child = Command::new("sh").args(["-c", script]).arg(env::current_exe().unwrap()).env(DIR, dir.path()).output();
    let child = child.unwrap();
    let output = String::from_utf8_lossy(&child.stdout) + String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && output.contains("1 passed"), "{output}");
    assert_eq!(toy::read(dir.path()).unwrap(), toy::checkpoint(3));
}
