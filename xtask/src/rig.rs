//! What the rig of `tests/rigs/netns` needs: several hosts on this machine.

use crate::Result;
use crate::process::output_of;
use crate::setup::{apt_install, has_apt};
use std::process::Command;

/// A program, and Debian's package of it.
const TOOLS: [(&str, &str); 6] = [
    ("ip", "iproute2"),
    ("ssh", "openssh-client"),
    ("/usr/sbin/sshd", "openssh-server"),
    ("nsenter", "util-linux"),
    ("ps", "procps"),
    ("hostname", "hostname"),
];

/// Installs what is missing.
pub(crate) fn install() -> Result<()> {
    let missing = || {
        let there = |tool: &str| {
            let mut find = Command::new("sh");
            find.args(["-c", "command -v \"$0\"", tool]);
            output_of(&mut find).is_some()
        };
        let tools = TOOLS.iter().filter(|(tool, _)| !there(tool));
        tools.map(|(_, package)| *package).collect::<Vec<_>>()
    };
    let packages = missing();
    if packages.is_empty() {
        return Ok(());
    }
    if has_apt() {
        eprintln!(
            "xtask: installing {} for tests on several hosts",
            packages.join(" ")
        );
        apt_install(&packages)?;
    }
    match &missing()[..] {
        [] => Ok(()),
        packages => Err(format!(
            "these programs are missing: {}",
            packages.join(", ")
        )),
    }
}
