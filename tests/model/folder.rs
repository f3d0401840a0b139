//! Folders for tests of files.

use pgas::testing::Ranks;
use std::path::{Path, PathBuf};
use std::process::Command;

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

/// Runs a test again in a process of its own, which this variable tells from others, started by
/// `program` and its arguments, if any.
#[track_caller]
pub(crate) fn run_again(test: &str, variable: &str, folder: &Folder, program: &[&str]) {
    let own = std::env::current_exe().unwrap().display().to_string();
    let arguments = [&own, test, "--exact", "--nocapture", "--test-threads=1"];
    let words: Vec<&str> = program.iter().copied().chain(arguments).collect();
    let output = Command::new(words[0])
        .args(&words[1..])
        .env(variable, "1")
        .env(FOLDER, &folder.0)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

/// A disk of this process and its ranks alone, in a mount namespace: see `unshare`.
#[track_caller]
pub(crate) fn run_on_a_disk(test: &str, variable: &str, folder: &Folder, mount: &str) {
    let disk = folder.file("disk");
    std::fs::create_dir_all(&disk).unwrap();
    let as_root: &[&str] = match rustix::process::geteuid().is_root() {
        true => &[],
        false => &["--user", "--map-root-user"],
    };
    let disk = disk.display().to_string();
    let script = format!("{mount} && exec \"$@\"");
    let shell = ["--mount", "--", "sh", "-c", &script, &disk];
    let program = [&["unshare"], as_root, &shell].concat();
    run_again(test, variable, folder, &program);
}
