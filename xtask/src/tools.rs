//! What tests need beside UCX: the rig of `tests/rigs/netns`, several hosts on this machine; and numpy, to
//! read what arrays write.

use crate::Result;
use crate::process::output_of;
use crate::setup::{apt_install, has_apt};
use std::process::Command;

/// How to see whether something is there, and Debian's package of it.
const TOOLS: [(&str, &str); 7] = [
    ("command -v ip", "iproute2"),
    ("command -v ssh", "openssh-client"),
    ("command -v /usr/sbin/sshd", "openssh-server"),
    ("command -v nsenter", "util-linux"),
    ("command -v ps", "procps"),
    ("command -v hostname", "hostname"),
    ("/usr/bin/python3 -c 'import numpy'", "python3-numpy"),
];

/// Installs what is missing.
pub(crate) fn install() -> Result<()> {
    let missing = || {
        let there = |tool: &str| {
            let mut find = Command::new("sh");
            find.args(["-c", tool]);
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
        eprintln!("xtask: installing {} for tests", packages.join(" "));
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
