//! Writes the files of a checkpoint into a temporary folder: the tensor files and the index first, the manifest last.

use std::fs;
use std::path::Path;

use crate::disk::sync_folder;
use crate::error::CheckpointError;
use crate::format::manifest::{FileEntry, MOST_BYTES, Manifest, ManifestError, VERSION};
use crate::format::names::{INDEX, MANIFEST, OPTIMIZER};
use crate::format::shard::Shard;
use crate::format::{index, validate};
use crate::write::output::Output;
use crate::write::plan::Plan;
use crate::write::write_point::WritePoint;

/// Writes all files of the validated checkpoint `plan` into the new temporary folder `folder`, and syncs the files and
/// the folder to disk. Calls `at` with each fault-injection point ([`WritePoint`]), so that tests can simulate a crash.
pub(crate) fn write(plan: &Plan, folder: &Path, at: &mut dyn FnMut(WritePoint)) -> Result<(), CheckpointError> {
    at(WritePoint::CreateTemporary);
    fs::create_dir(folder).map_err(CheckpointError::write("create the folder", folder))?;
    let optimizer = folder.join(OPTIMIZER);
    let has_optimizer = !plan.optimizer.is_empty();
    if has_optimizer {
        at(WritePoint::CreateSubfolder);
        fs::create_dir(&optimizer).map_err(CheckpointError::write("create the folder", &optimizer))?;
    }
    let mut files = Vec::with_capacity(plan.files.len() + 1);
    for (file, (name, tensors)) in plan.files.iter().enumerate() {
        let shard = Shard::new(tensors).map_err(|reason| CheckpointError::Header { file: name.clone(), reason })?;
        at(WritePoint::WriteFile { file });
        let mut output = Output::create(folder.join(name))?;
        output.write(&shard.header)?;
        output.flush()?;
        at(WritePoint::WriteTensors { file });
        for tensor in shard.tensors {
            output.write(&tensor.bytes)?;
        }
        output.flush()?;
        at(WritePoint::SyncFile { file });
        files.push(output.sync(name)?);
    }
    files.push(write_index(plan, folder, files.len(), at)?);
    if has_optimizer {
        at(WritePoint::SyncSubfolder);
        sync_folder(&optimizer).map_err(CheckpointError::write("sync", &optimizer))?;
    }
    write_manifest(plan, folder, files, at)?;
    at(WritePoint::SyncTemporary);
    sync_folder(folder).map_err(CheckpointError::write("sync", folder))
}

fn write_index(
    plan: &Plan,
    folder: &Path,
    file: usize,
    at: &mut dyn FnMut(WritePoint),
) -> Result<FileEntry, CheckpointError> {
    let invalid = |reason: String| CheckpointError::Header { file: INDEX.to_owned(), reason };
    let text = index::to_text(&plan.parameters).map_err(|error| invalid(error.to_string()))?;
    if text.len() as u64 > MOST_BYTES {
        return Err(invalid(format!("it has {} bytes; the limit is {MOST_BYTES}", text.len())));
    }
    at(WritePoint::WriteFile { file });
    let mut output = Output::create(folder.join(INDEX))?;
    output.write(text.as_bytes())?;
    output.flush()?;
    at(WritePoint::SyncFile { file });
    output.sync(INDEX)
}

fn write_manifest(
    plan: &Plan,
    folder: &Path,
    files: Vec<FileEntry>,
    at: &mut dyn FnMut(WritePoint),
) -> Result<(), CheckpointError> {
    let text = manifest_text(plan, files)?;
    at(WritePoint::WriteManifest);
    let mut output = Output::create(folder.join(MANIFEST))?;
    output.write(text.as_bytes())?;
    output.flush()?;
    at(WritePoint::SyncManifest);
    output.sync(MANIFEST).map(drop)
}

/// Returns the text of a checkpoint's manifest file, after checking that a reader would get the same manifest back.
fn manifest_text(plan: &Plan, files: Vec<FileEntry>) -> Result<String, CheckpointError> {
    let manifest = Manifest {
        version: VERSION,
        stageline: env!("CARGO_PKG_VERSION").to_owned(),
        progress: plan.checkpoint.progress,
        run: plan.checkpoint.run.clone(),
        files,
        parameters: plan.parameters.clone(),
        optimizer: plan.optimizer.clone(),
        frozen: plan.checkpoint.frozen.clone(),
    };
    let invalid = |bytes, reason| CheckpointError::Manifest { bytes, reason };
    let text = manifest.to_text().map_err(|error| invalid(0, error.to_string()))?;
    let reason = match validate::parse(text.as_bytes()) {
        _ if text.len() as u64 > MOST_BYTES => format!("the limit is {MOST_BYTES} bytes"),
        Ok(read) if read == manifest => return Ok(text),
        Ok(_) => "a value would change".to_owned(),
        Err(ManifestError::Newer(version)) => format!("its format is {version}"),
        Err(ManifestError::Damaged(damage)) => format!("it {damage}"),
    };
    Err(invalid(text.len(), reason))
}
