//! Lists the files of a source (a file or folder to tokenise), with the metadata that reveals a later change of a file.

use std::fs::{self, File, Metadata};
use std::path::{Path, PathBuf};

use stageline_checkpoint::open_at_once;

use crate::file_change::{Change, Stamp};
use crate::tokens::error::TokenError;
use crate::walk::{relative_name, walk};

/// The file or folder to tokenise, with the list of its files sorted by name.
pub(crate) struct Source {
    /// The absolute path of the file or folder to tokenise, with symbolic links resolved.
    pub(crate) root: PathBuf,
    pub(crate) files: Vec<SourceFile>,
    /// Files in the source folder that are not read, because the folder also has JSON-lines files.
    left_out: Vec<PathBuf>,
}

/// A file to tokenise: a single document, or a JSON-lines file with one document per line.
pub(crate) struct SourceFile {
    pub(crate) path: PathBuf,
    /// The path of a file to tokenise, relative to the source folder and with `/` between its components. It is empty
    /// if the source is a single file.
    pub(crate) name: String,
    pub(crate) stamp: Stamp,
}

impl Source {
    /// Lists the files to tokenise, sorted by name: the file at `path`, or the files in the folder at `path` and its
    /// subfolders. If some of these are JSON-lines files, the others are left out, because they usually describe the
    /// data, such as a `README.md`.
    pub(crate) fn list(path: &Path) -> Result<Self, TokenError> {
        let metadata = fs::metadata(path).map_err(TokenError::io(path))?;
        let root = fs::canonicalize(path).map_err(TokenError::io(path))?;
        let paths = match metadata.is_dir() {
            true => walk(path, None)?,
            false => vec![path.to_path_buf()],
        };
        let (lines, others): (Vec<_>, Vec<_>) = paths.into_iter().partition(|path| is_json_lines(path));
        if lines.is_empty()
            && metadata.is_dir()
            && let Some(json) = data_as_text(&others)
        {
            return Err(TokenError::JsonInFolder { path: json.clone() });
        }
        let (paths, mut left_out) = if lines.is_empty() { (others, lines) } else { (lines, others) };
        left_out.sort_unstable();
        let files = paths.into_iter().map(|file| {
            let metadata = fs::metadata(&file).map_err(|error| TokenError::io(&file)(error).or_dangling_link())?;
            if !metadata.is_file() {
                return Err(TokenError::NotAFile { path: file });
            }
            Ok(SourceFile { name: relative_name(path, &file), stamp: Stamp::new(&metadata), path: file })
        });
        let mut files: Vec<_> = files.collect::<Result<_, _>>()?;
        // If two names are equal because invalid Unicode in them was replaced, the files are ordered by their paths.
        files.sort_unstable_by(|a, b| (&a.name, &a.path).cmp(&(&b.name, &b.path)));
        Ok(Self { root, files, left_out })
    }
}

/// Detects a folder that contains a dataset and not plain text, such as JSON lines in a file named `.json`, with a
/// `README.md` and a `LICENSE`. Returns the first JSON file if all `files` are JSON, Markdown, or without an extension,
/// and `None` otherwise.
fn data_as_text(files: &[PathBuf]) -> Option<&PathBuf> {
    let has = |file: &&PathBuf, name: &str| file.extension().is_some_and(|other| other.eq_ignore_ascii_case(name));
    let is_data_set = files.iter().all(|file| has(&file, "json") || has(&file, "md") || file.extension().is_none());
    files.iter().filter(|_| is_data_set).find(|file| has(file, "json"))
}

impl SourceFile {
    /// Opens a file to tokenise. Returns an error if its length or modification time has changed since the files were
    /// listed.
    pub(crate) fn open(&self) -> Result<File, TokenError> {
        // If a socket has replaced the file, opening fails. The metadata at the path then reveals the change.
        let file = open_at_once(&self.path).map_err(|error| match self.check_unchanged() {
            Ok(()) => TokenError::io(&self.path)(error),
            Err(changed) => changed,
        })?;
        self.check(file.metadata().map_err(TokenError::io(&self.path)))?;
        Ok(file)
    }

    /// Checks that the length and modification time of a file to tokenise have not changed since the files were listed.
    pub(crate) fn check_unchanged(&self) -> Result<(), TokenError> {
        self.check(fs::metadata(&self.path).map_err(TokenError::io(&self.path)))
    }

    fn check(&self, metadata: Result<Metadata, TokenError>) -> Result<(), TokenError> {
        let change = match metadata {
            Ok(metadata) => self.stamp.change(&metadata),
            Err(TokenError::PathNotFound { .. }) => Some(Change::Gone),
            Err(other) => return Err(other),
        };
        let changed = |now| TokenError::Changed { path: self.path.clone(), had: self.stamp.length, now };
        change.map_or(Ok(()), |now| Err(changed(now)))
    }

    /// Whether each line of a file to tokenise is a document, because the file's extension is `jsonl` or `ndjson`.
    pub(crate) fn is_json_lines(&self) -> bool {
        is_json_lines(&self.path)
    }
}

/// Whether the extension of a file's name is `jsonl` or `ndjson`.
fn is_json_lines(path: &Path) -> bool {
    let extension = path.extension().unwrap_or_default();
    ["jsonl", "ndjson"].iter().any(|json| extension.eq_ignore_ascii_case(json))
}

/// Returns the files of a folder that [`prepare`](crate::prepare) leaves out, sorted by path. If a folder has
/// JSON-lines files, `prepare` reads only these. The list is empty for a folder without JSON-lines files and for a
/// single file.
///
/// # Errors
/// - [`TokenError::PathNotFound`], [`TokenError::NotAFile`] or [`TokenError::Io`] if the source cannot be read.
/// - [`TokenError::JsonInFolder`] if the source is a folder that contains only JSON files, Markdown files and files
///   without an extension. The JSON files are then a dataset and not text.
pub fn files_left_out(source: &Path) -> Result<Vec<PathBuf>, TokenError> {
    Source::list(source).map(|listed| listed.left_out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_its_files_in_the_order_of_their_names() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("b")).unwrap();
        for file in ["c.txt", "b/z.json", "a.md", "b.txt", ".hidden"] {
            fs::write(root.path().join(file), "x").unwrap();
        }
        let names = || {
            let source = Source::list(root.path()).unwrap();
            source.files.into_iter().map(|file| file.name).collect::<Vec<_>>()
        };
        assert_eq!(names(), ["a.md", "b.txt", "b/z.json", "c.txt"]);
        assert!(files_left_out(root.path()).unwrap().is_empty());
        for file in ["d.ndjson", "b/z.JSONL"] {
            fs::write(root.path().join(file), "x").unwrap();
        }
        assert_eq!(names(), ["b/z.JSONL", "d.ndjson"]);
        let left_out = ["a.md", "b/z.json", "b.txt", "c.txt"].map(|name| root.path().join(name));
        assert_eq!(files_left_out(root.path()).unwrap(), left_out);
        assert!(files_left_out(&root.path().join("a.md")).unwrap().is_empty());
    }

    #[test]
    fn a_file_that_changes_after_the_listing_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a.txt");
        fs::write(&path, "abc").unwrap();
        let source = Source::list(&path).unwrap();
        source.files[0].open().unwrap();
        fs::write(&path, "abcd").unwrap();
        let error = source.files[0].open().unwrap_err();
        assert!(matches!(error, TokenError::Changed { had: 3, now: Change::Length(4), .. }));
        fs::remove_file(&path).unwrap();
        let error = source.files[0].check_unchanged().unwrap_err();
        assert!(matches!(error, TokenError::Changed { now: Change::Gone, .. }));
        assert!(matches!(Source::list(&path), Err(TokenError::PathNotFound { .. })));
    }
}
