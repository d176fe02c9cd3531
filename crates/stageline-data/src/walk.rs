//! Finds the files of a folder and its subfolders, for a corpus or for tokenisation.
//!
//! Input: a folder and file extensions. Output: the paths of files, in no particular order. The code here must not
//! follow symbolic links to folders or read the contents of files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The error of listing the files of a folder. `path` is the file or folder that cannot be read, and `source` is the
/// operating system's error.
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub(crate) path: PathBuf,
    pub(crate) source: io::Error,
}

impl Unreadable {
    /// Returns a closure for `map_err` that converts an operating system's error to an [`Unreadable`] for `path`.
    fn at(path: &Path) -> impl FnOnce(io::Error) -> Self {
        |source| Self { path: path.to_path_buf(), source }
    }
}

/// The file that marks a folder as a cache (bford.info/cachedir), such as the folder of cargo's build outputs.
const CACHE_TAG: &str = "CACHEDIR.TAG";

/// Returns the regular files in the folder `root` and its subfolders, in no particular order. Only files with one of
/// `extensions` are returned; `None` means all files.
///
/// The following entries are skipped:
///
/// - hidden entries, such as `.git`;
/// - caches and build outputs, which are folders with a `CACHEDIR.TAG`;
/// - symbolic links to folders, which may form a cycle.
///
/// A symbolic link to a file counts as the file, even if the file is missing, so that the caller notices. `root` itself
/// is always read.
///
/// # Errors
/// Returns the first file or folder that cannot be read, with the operating system's error.
pub(crate) fn walk(root: &Path, extensions: Option<&[String]>) -> Result<Vec<PathBuf>, Unreadable> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(Unreadable::at(&folder))? {
            let entry = entry.map_err(Unreadable::at(&folder))?;
            let path = entry.path();
            let name = entry.file_name();
            if name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let kind = entry.file_type().map_err(Unreadable::at(&path))?;
            if kind.is_dir() {
                folders.extend((!path.join(CACHE_TAG).exists()).then_some(path));
            } else if is_file(&path, kind) && has_extension(&path, extensions) {
                files.push(path);
            }
        }
    }
    Ok(files)
}

/// Whether an entry of a folder, which has the type `kind`, is a regular file or a symbolic link to one. A link whose
/// target cannot be found counts, so that reading it is an error, and no file of the data is missing unnoticed.
fn is_file(path: &Path, kind: fs::FileType) -> bool {
    if kind.is_symlink() { fs::metadata(path).map_or(true, |target| target.is_file()) } else { kind.is_file() }
}

/// Whether the file name in `path` has one of `extensions`, which may begin with a dot. `None` allows every file name.
fn has_extension(path: &Path, extensions: Option<&[String]>) -> bool {
    let Some(extensions) = extensions else { return true };
    let Some(extension) = path.extension() else { return false };
    extensions.iter().any(|listed| extension == listed.strip_prefix('.').unwrap_or(listed))
}

/// Returns `path` relative to `root`, with `/` between its components on every system.
///
/// Bytes that are not Unicode are replaced by U+FFFD. This does no harm, because the name is only hashed and sorted.
pub(crate) fn relative_name(root: &Path, path: &Path) -> String {
    let relative = path.strip_prefix(root).unwrap_or(path);
    let parts: Vec<_> = relative.iter().map(|part| part.to_string_lossy()).collect();
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a temporary folder for a test, with a file of one byte at each of the relative paths `files`.
    fn folder(files: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        root
    }

    fn names(root: &Path, extensions: Option<&[&str]>) -> Vec<String> {
        let extensions: Option<Vec<String>> = extensions.map(|some| some.iter().map(ToString::to_string).collect());
        let files = walk(root, extensions.as_deref()).unwrap();
        let mut names: Vec<String> = files.iter().map(|path| relative_name(root, path)).collect();
        names.sort();
        names
    }

    #[test]
    fn finds_files_at_any_depth_and_skips_hidden_entries_and_build_outputs() {
        let root = folder(&[
            "a.rs",
            "x/b.rs",
            "no_extension",
            ".hidden.rs",
            ".git/d.rs",
            "target/CACHEDIR.TAG",
            "target/e.rs",
            "x/target/f.rs",
        ]);
        assert_eq!(names(root.path(), None), ["a.rs", "no_extension", "x/b.rs", "x/target/f.rs"]);
        assert_eq!(names(&root.path().join("target"), None), ["CACHEDIR.TAG", "e.rs"]);
    }

    #[test]
    fn extensions_are_whole_and_may_have_a_dot() {
        let root = folder(&["a.rs", "b.rss", "c.md", "rs", "d.RS"]);
        assert_eq!(names(root.path(), Some(&["rs"])), ["a.rs"]);
        assert_eq!(names(root.path(), Some(&[".rs", "md"])), ["a.rs", "c.md"]);
        assert!(names(root.path(), Some(&[])).is_empty());
    }

    #[cfg(unix)]
    #[test]
    fn symbolic_links_are_followed_to_files_and_not_to_folders() {
        use std::os::unix::fs::symlink;
        let root = folder(&["x/a.rs"]);
        symlink(root.path(), root.path().join("x/cycle")).unwrap();
        symlink(root.path().join("x/a.rs"), root.path().join("b.rs")).unwrap();
        assert_eq!(names(root.path(), None), ["b.rs", "x/a.rs"]);
    }

    #[cfg(unix)]
    #[test]
    fn a_link_to_a_missing_file_is_not_left_out() {
        let root = folder(&["a.rs"]);
        std::os::unix::fs::symlink("nowhere", root.path().join("gone.rs")).unwrap();
        assert_eq!(names(root.path(), None), ["a.rs", "gone.rs"]);
        assert_eq!(names(root.path(), Some(&["md"])), Vec::<String>::new());
    }

    #[test]
    fn a_folder_that_cannot_be_listed_is_an_error_with_its_path() {
        let root = folder(&["a.rs"]);
        let not_a_folder = root.path().join("a.rs");
        let error = walk(&not_a_folder, None).unwrap_err();
        assert_eq!(error.path, not_a_folder);
    }
}
