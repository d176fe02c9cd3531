//! The secret key of an iroh server ([`LockedKey`]).

use std::fs::{File, TryLockError};
use std::path::PathBuf;

use burn::remote::IrohIdentity;

use super::error::ServeError;

/// The secret key of an iroh server, and its file, which stays locked until the value is dropped. The public part of
/// the key is the server's id. Programs would take two servers with one id for a single server.
pub(super) struct LockedKey {
    pub(super) identity: IrohIdentity,
    /// The locked file of the key.
    _file: File,
}

impl LockedKey {
    /// Reads a server's secret key from a file, and locks the file. If there is no such file, creates it with a random
    /// key.
    ///
    /// # Errors
    /// Returns [`ServeError::Identity`] if the file cannot be read or written, and [`ServeError::KeyInUse`] if another
    /// server has locked it.
    pub(super) fn load_or_create(path: PathBuf) -> Result<Self, ServeError> {
        // A lock on NFS needs a file that is open for writing. A key file without write permission is opened for
        // reading.
        let open = || File::options().read(true).write(true).open(&path).or_else(|_| File::open(&path));
        let opened = IrohIdentity::load_or_create(&path).and_then(|identity| Ok((identity, open()?)));
        let (identity, file) = opened.map_err(|cause| ServeError::Identity { path: path.clone(), cause })?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(ServeError::KeyInUse { path }),
            Err(TryLockError::Error(error)) => {
                tracing::warn!(%error, "the key file {} cannot be locked; no other server may use it", path.display());
            }
        }
        Ok(Self { identity, _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_belongs_to_one_server_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server.key");
        let bytes = |key: &LockedKey| key.identity.to_bytes();
        let first = LockedKey::load_or_create(path.clone()).unwrap();
        let second = LockedKey::load_or_create(path.clone()).map(|_| ()).unwrap_err();
        assert!(matches!(&second, ServeError::KeyInUse { path: used } if *used == path), "{second}");
        let kept = bytes(&first);
        drop(first);
        assert!(bytes(&LockedKey::load_or_create(path).unwrap()) == kept);
    }
}
