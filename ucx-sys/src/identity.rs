//! Which UCX the process has loaded, asked before UCX is used.

use crate::{ucp_get_version, ucs_status_string};
use std::ffi::{CStr, OsStr, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The oldest UCX (major, minor) that these declarations describe.
pub const MINIMUM_VERSION: (u32, u32) = (1, 12);

/// Major, minor and release number of the loaded library, which may be newer than the one linked to.
#[must_use]
pub fn version() -> (u32, u32, u32) {
    let (mut major, mut minor, mut release): (c_uint, c_uint, c_uint) = (0, 0, 0);
    // SAFETY: writes three integers to the three places given, and needs nothing to be set up before.
    unsafe { ucp_get_version(&raw mut major, &raw mut minor, &raw mut release) };
    (major, minor, release)
}

/// The files that `libucp` and `libucs` were loaded from, with symbolic links followed.
///
/// Linked statically, both are the program itself. A path is empty if the system cannot tell.
#[must_use]
pub fn library_paths() -> (PathBuf, PathBuf) {
    let of_ucp = ucp_get_version as *const c_void;
    let of_ucs = ucs_status_string as *const c_void;
    (file_of(of_ucp), file_of(of_ucs))
}

/// Refuses a UCX that would crash or misread our structures: a library older than [`MINIMUM_VERSION`], of
/// another major version, or a `libucp` and a `libucs` of different installations.
///
/// Call it before any other function of UCX.
///
/// # Errors
///
/// What is wrong and which files are meant, in one line.
pub fn check() -> Result<(), String> {
    let (ucp, ucs) = library_paths();
    judge(version(), &ucp, &ucs)
}

fn judge(version: (u32, u32, u32), ucp: &Path, ucs: &Path) -> Result<(), String> {
    let (major, minor, release) = version;
    let (wanted_major, wanted_minor) = MINIMUM_VERSION;
    if ucp.parent() != ucs.parent() {
        return Err(format!(
            "libucp and libucs come from different installations of UCX: {} and {} \
             (LD_LIBRARY_PATH or a run path names only one of them)",
            ucp.display(),
            ucs.display()
        ));
    }
    if major != wanted_major || minor < wanted_minor {
        return Err(format!(
            "UCX {major}.{minor}.{release} in {} cannot be used: \
             version {wanted_major}.{wanted_minor} or a later {wanted_major}.x is needed",
            ucp.display()
        ));
    }
    Ok(())
}

/// The file that holds the code or data at `address`.
fn file_of(address: *const c_void) -> PathBuf {
    // SAFETY: a Dl_info is four pointers and integers, of which zero is a value.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: takes any address and fills `info` if it lies in a loaded file.
    let found = unsafe { libc::dladdr(address, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return PathBuf::new();
    }
    // SAFETY: dladdr succeeded, so this is a C string that lives as long as the file stays loaded, which
    // is for the life of the process for a library that is linked to.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let path = Path::new(OsStr::from_bytes(name.to_bytes()));
    path.canonicalize().unwrap_or_else(|_| path.to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_library_is_refused_with_both_versions() {
        let path = Path::new("/opt/ucx/lib/libucp.so.0");
        let message = judge((1, 11, 2), path, path).unwrap_err();
        assert!(
            message.contains("1.11.2") && message.contains("1.12"),
            "{message}"
        );
        assert!(judge((2, 0, 0), path, path).is_err());
        assert!(judge((1, 12, 0), path, path).is_ok());
        assert!(judge((1, 99, 0), path, path).is_ok());
    }

    #[test]
    fn halves_of_two_installations_are_refused_with_both_files() {
        let ucp = Path::new("/opt/ucx/lib/libucp.so.0");
        let ucs = Path::new("/usr/lib/libucs.so.0");
        let message = judge((1, 13, 1), ucp, ucs).unwrap_err();
        assert!(message.contains("/opt/ucx/lib/libucp.so.0"), "{message}");
        assert!(message.contains("/usr/lib/libucs.so.0"), "{message}");
    }
}
