//! A newer UCX than the system's, to run the same binaries on: the libraries of a Python wheel.

use crate::{Result, wheel};
use std::path::PathBuf;

/// Such a UCX, unpacked under `target/ucx-1.22/`.
pub(crate) struct Wheel {
    pub(crate) libraries: PathBuf,
    pub(crate) headers: PathBuf,
}

/// What `pgas` must say it runs on.
pub(crate) const VERSION: &str = "1.22.0";

/// Downloads and unpacks it, the first time.
pub(crate) fn wheel() -> Result<Wheel> {
    let unpacked = wheel::unpacked("ucx-1.22")?;
    Ok(Wheel {
        libraries: unpacked.join("libucx/lib"),
        headers: unpacked.join("libucx/include"),
    })
}
