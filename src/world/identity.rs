//! Where this process runs, so that ranks can tell who may share memory with whom.

use super::races::Checks;
use super::room::{shm_for_workers, shm_room};
use crate::cores::Cores;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt as _;

/// What a rank tells the others before UCX starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    /// This library's version: all ranks must be of one.
    pub(super) version: String,
    /// The UCX library's version, likewise.
    pub(super) ucx: (u32, u32, u32),
    /// Host name, for messages.
    pub(super) host: String,
    /// The running kernel: one machine, whatever its containers call themselves.
    boot: String,
    /// What it says is to be looked for; must be the same on all.
    pub(super) checks: Checks,
    /// `UCX_TLS` as the user set it.
    pub(super) transports: Option<String>,
    user: u64,
    pid: u64,
    ipc: u64,
    /// Device number of /dev/shm: containers may have their own.
    shm: u64,
    /// Bytes free in it, before UCX starts.
    shm_room: Option<u64>,
    /// Where it may run.
    pub(super) cores: Cores,
}

/// What a set of processes on one machine cannot use between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Barriers {
    /// POSIX shared memory: opened through /proc, needs one user and process namespace, and room
    /// in /dev/shm.
    pub(super) posix: bool,
    /// System V shared memory: needs one IPC namespace.
    pub(super) sysv: bool,
}

impl Identity {
    pub(super) fn of_this_process() -> Self {
        let namespace = |name: &str| {
            std::fs::metadata(format!("/proc/self/ns/{name}")).map_or(0, |meta| meta.ino())
        };
        Self {
            version: env!("CARGO_PKG_VERSION").into(),
            ucx: crate::ucx::version(),
            host: hostname::get().map_or_else(
                |_| "unknown host".into(),
                |name| name.to_string_lossy().into_owned(),
            ),
            boot: std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
                .map(|id| id.trim().into())
                .unwrap_or_default(),
            checks: Checks::default(),
            transports: std::env::var("UCX_TLS").ok(),
            user: namespace("user"),
            pid: namespace("pid"),
            ipc: namespace("ipc"),
            shm: std::fs::metadata("/dev/shm").map_or(0, |meta| meta.dev()),
            shm_room: shm_room(),
            cores: Cores::of_this_process(),
        }
    }

    /// A number that is equal for ranks on the same machine.
    pub(super) fn machine(&self) -> u64 {
        use std::hash::{DefaultHasher, Hash as _, Hasher as _};
        let mut hasher = DefaultHasher::new();
        if self.boot.is_empty() {
            self.host.hash(&mut hasher);
        } else {
            self.boot.hash(&mut hasher);
        }
        hasher.finish()
    }
}

/// What stands between ranks that run on one machine, over all machines of the job: decided
/// alike on all ranks.
pub(super) fn barriers(identities: &[Identity]) -> Barriers {
    let mut found = Barriers::default();
    // The first rank of each machine serves for comparison.
    let mut machines: HashMap<u64, (&Identity, usize)> = HashMap::new();
    for one in identities {
        let (first, ranks) = machines.entry(one.machine()).or_insert((one, 0));
        *ranks += 1;
        found.posix |= (one.user, one.pid, one.shm) != (first.user, first.pid, first.shm);
        found.sysv |= one.ipc != first.ipc;
    }
    for one in identities {
        let ranks = machines[&one.machine()].1;
        found.posix |= one.shm_room.unwrap_or(0) < shm_for_workers(ranks);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_between_ranks_are_found() {
        let mut here = Identity::of_this_process();
        here.shm_room = Some(1 << 30);
        assert_eq!(barriers(&[here.clone(), here.clone()]), Barriers::default());
        let mut contained = here.clone();
        contained.user += 1;
        let found = barriers(&[here.clone(), here.clone(), contained.clone()]);
        assert!(found.posix && !found.sysv);
        contained.boot = "another machine".into();
        assert_eq!(barriers(&[here.clone(), contained]), Barriers::default());
        here.shm_room = Some(1 << 20);
        assert!(barriers(&[here]).posix, "too little room");
    }
}
