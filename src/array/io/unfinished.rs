//! What is not finished: files and folders under another name until all of them is written, and those
//! that nobody is going to finish.
//!
//! The name is that of the path with a number that no other write has, and `.part`. Rank 0 holds a lock
//! on it, which ends with its process, however that ends. So the next write to the same path can tell
//! what a killed job has left, and removes it. Where a file system has no locks nothing is removed.

use crate::world::Team;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Digits of a number.
const DIGITS: usize = 32;
/// Each that fails takes another job that looks at the folder just then.
const ATTEMPTS: usize = 100;

/// Its name, and the lock.
#[derive(Debug)]
pub(super) struct Unfinished {
    /// The number in the name, by which other ranks find it.
    pub(super) number: u128,
    pub(super) path: PathBuf,
    pub(super) file: File,
}

impl Unfinished {
    /// A new file for `path`, empty, after removing what killed jobs have left there.
    pub(super) fn file(team: &Team, path: &Path) -> io::Result<Self> {
        Self::new(team, path, |part| {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).open(part)
        })
    }

    /// The same, a folder.
    #[cfg(feature = "zarr")]
    pub(super) fn folder(team: &Team, path: &Path) -> io::Result<Self> {
        Self::new(team, path, |part| {
            fs::create_dir(part)?;
            File::open(part)
        })
    }

    fn new(team: &Team, path: &Path, make: impl Fn(&Path) -> io::Result<File>) -> io::Result<Self> {
        static WRITES: AtomicU64 = AtomicU64::new(0);
        remove_abandoned(path);
        for _ in 0..ATTEMPTS {
            // Two jobs may write to one path: the last one wins.
            let job = team.core().context().job() ^ u128::from(std::process::id()) << 64;
            let write = WRITES.fetch_add(1, Ordering::Relaxed);
            let number = job.wrapping_add(write.into());
            let part = name(path, number);
            let file = make(&part)?;
            // Another job may have taken it for abandoned, before it was locked.
            let taken = matches!(lock(&file), Err(Errno::WOULDBLOCK));
            if !taken && file.metadata()?.nlink() > 0 {
                return Ok(Self {
                    number,
                    path: part,
                    file,
                });
            }
        }
        Err(io::Error::other(
            "it is locked each time as soon as it is made",
        ))
    }
}

/// The name of `path` while it is not finished.
pub(super) fn name(path: &Path, number: u128) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{number:0DIGITS$x}.part"));
    path.with_file_name(name)
}

/// Whether `name` is one of [`name`] for a path of this name.
fn is_name(name: &OsStr, of: &OsStr) -> bool {
    let number = name.as_bytes().strip_prefix(of.as_bytes());
    let number = number.and_then(|rest| rest.strip_prefix(b"."));
    let number = number.and_then(|rest| rest.strip_suffix(b".part"));
    number.is_some_and(|digits| digits.len() == DIGITS && digits.iter().all(u8::is_ascii_hexdigit))
}

fn lock(file: &File) -> rustix::io::Result<()> {
    flock(file, FlockOperation::NonBlockingLockExclusive)
}

/// The folder that `path` is in.
pub(super) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Removes what is not finished of `path` and whose writer is gone. What cannot be removed stays.
fn remove_abandoned(path: &Path) {
    let Some(own) = path.file_name() else {
        return;
    };
    for entry in fs::read_dir(folder_of(path))
        .into_iter()
        .flatten()
        .flatten()
    {
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        if !is_name(&entry.file_name(), own) || !(kind.is_file() || kind.is_dir()) {
            continue;
        }
        let part = entry.path();
        // Some file systems lock only what is open for writing, which a folder never is.
        let opened = match kind.is_dir() {
            true => File::open(&part),
            false => OpenOptions::new().write(true).open(&part),
        };
        let Ok(file) = opened else {
            continue;
        };
        // Once it is locked nobody goes on with it; a name is not used again.
        if lock(&file).is_ok() {
            let _ = match kind.is_dir() {
                true => fs::remove_dir_all(&part),
                false => fs::remove_file(&part),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_same_path() {
        let path = Path::new("/tmp/a.npy");
        let other = name(path, 0xabc);
        let other = other.file_name().unwrap();
        assert!(is_name(other, OsStr::new("a.npy")));
        for (name, of) in [
            (other, "a.np"),
            (other, "a"),
            (other, ""),
            (OsStr::new("a.npy.part"), "a.npy"),
            (OsStr::new("a.npy"), "a.npy"),
            (
                OsStr::new("a.npy.0000000000000000000000000000000g.part"),
                "a.npy",
            ),
        ] {
            assert!(!is_name(name, OsStr::new(of)), "{name:?} {of}");
        }
    }

    /// One that is locked is somebody's.
    #[test]
    fn only_what_nobody_holds() {
        let folder = std::env::temp_dir().join(format!("pgas-parts-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("a");
        let (held, left, dir) = (name(&path, 1), name(&path, 2), name(&path, 3));
        let (file, _) = (File::create(&held).unwrap(), File::create(&left).unwrap());
        fs::create_dir_all(dir.join("inner")).unwrap();
        lock(&file).unwrap();
        remove_abandoned(&path);
        assert!(held.exists() && !left.exists() && !dir.exists());
        drop(file);
        // Another test may start a process just now, which has the file, too, until it begins.
        let begin = std::time::Instant::now();
        while held.exists() && begin.elapsed().as_secs() < 10 {
            remove_abandoned(&path);
        }
        assert!(!held.exists());
        fs::remove_dir_all(&folder).unwrap();
    }
}
