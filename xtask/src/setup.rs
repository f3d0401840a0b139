//! Finds UCX, or installs it where that is one `apt-get` away.

use crate::process::{cargo, output_of, run};
use crate::{Result, root};
use std::env;
use std::process::{Command, Stdio};
use std::time::Duration;

pub(crate) fn setup() -> Result<()> {
    if !on_path("cc") {
        return Err(
            "there is no C compiler `cc`, which Rust needs for linking; install one:\n  \
             Debian, Ubuntu   apt-get install gcc libc6-dev\n  \
             Fedora, RHEL     dnf install gcc\n  \
             Arch             pacman -S gcc"
                .to_owned(),
        );
    }
    let Err(complaint) = ucx_sys_builds() else {
        return Ok(());
    };
    // The build script names the package for each distribution.
    if !complaint.contains("was not found") || !has_apt() {
        return Err(complaint);
    }
    eprintln!("xtask: UCX is not installed: installing Debian's libucx-dev and pkg-config");
    apt_install(&["libucx-dev", "pkg-config"])?;
    ucx_sys_builds()
}

/// Whether `ucx-sys` builds: its build script alone decides which UCX is found (`UCX_ROOT`,
/// pkg-config, the usual places) and whether it is new enough.
fn ucx_sys_builds() -> Result<()> {
    let output = cargo()
        .args(["build", "--package", "ucx-sys"])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

pub(crate) fn has_apt() -> bool {
    on_path("apt-get")
}

/// Installs Debian packages, with `sudo` where that is needed.
pub(crate) fn apt_install(packages: &[&str]) -> Result<()> {
    let limit = Duration::from_secs(10 * 60);
    let is_root = output_of(Command::new("id").arg("-u")).is_some_and(|id| id.trim() == "0");
    let apt = || {
        let mut command = if is_root {
            Command::new("env")
        } else {
            let mut sudo = Command::new("sudo");
            sudo.arg("env");
            sudo
        };
        command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get"]);
        command.current_dir(root());
        command
    };
    let by_hand = |why: String| {
        let packages = packages.join(" ");
        format!("{why}\ninstall these packages and try again: {packages}")
    };
    run(apt().arg("update"), limit).map_err(by_hand)?;
    run(
        apt()
            .args(["install", "--yes", "--no-install-recommends"])
            .args(packages),
        limit,
    )
    .map_err(by_hand)
}

fn on_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(program).is_file())
}
