//! What tests need beside UCX: the rig of `tests/rigs/netns`, several hosts on this machine; numpy, to read what arrays
//! write; the launchers of `tests/engines.rs`.

use crate::Result;
use crate::process::output_of;
use crate::setup::{apt_install, has_apt};
use std::process::Command;

/// How to see whether something is there, and Debian's package of it.
const TOOLS: [(&str, &str); 15] = [
    ("command -v ip", "iproute2"),
    ("command -v ssh", "openssh-client"),
    ("command -v /usr/sbin/sshd", "openssh-server"),
    ("command -v nsenter", "util-linux"),
    ("command -v ps", "procps"),
    ("command -v hostname", "hostname"),
    ("/usr/bin/python3 -c 'import numpy'", "python3-numpy"),
    ("command -v mpiexec.hydra", "mpich"),
    ("command -v mpirun.openmpi", "openmpi-bin"),
    ("command -v /usr/sbin/munged", "munge"),
    ("command -v /usr/sbin/slurmctld", "slurmctld"),
    ("command -v /usr/sbin/slurmd", "slurmd"),
    ("command -v srun", "slurm-client"),
    (
        "ls /usr/lib/*/slurm-wlm/mpi_pmix.so",
        "slurm-wlm-basic-plugins",
    ),
    // The structures that we declare are compared with its headers.
    ("ls /usr/lib/*/pmix2/include/pmix.h", "libpmix-dev"),
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
