//! Folders for tests of files.

use pgas::testing::Ranks;
use std::path::{Path, PathBuf};

/// A folder of its own for a test, the same for all its ranks, removed by the process that made it.
pub(crate) struct Folder(pub(crate) PathBuf, pub(crate) bool);

/// Tells the ranks where the test's own process made it.
pub(crate) const FOLDER: &str = "FILES_TEST_FOLDER";

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        if let Some(path) = std::env::var_os(FOLDER) {
            return Self(path.into(), false);
        }
        let path = std::env::temp_dir().join(format!("pgas-files-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path, true)
    }

    pub(crate) fn ranks(&self, ranks: usize) -> Ranks {
        Ranks::new(ranks).env(FOLDER, &self.0)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.1 {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }
}

/// Nothing that was not finished is beside this file.
pub(crate) fn only_file(path: &Path) {
    let folder = std::fs::read_dir(path.parent().unwrap()).unwrap();
    let names: Vec<_> = folder.map(|entry| entry.unwrap().file_name()).collect();
    assert!(
        names
            .iter()
            .all(|name| !name.to_string_lossy().contains(".part")),
        "{names:?}"
    );
}
