//! What the system tells of a process.
//!
//! A process, a process group or a session from outside our process namespace, as in a container that was entered
//! with `nsenter`, is number 0 to us. The safe wrappers of `getpgid`, `getsid` and `SO_PEERCRED` cannot hold that
//! number, so they are not used.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

/// From `/proc/PID/stat`.
pub(crate) struct Stat {
    /// `R`, `S`, `D`, `Z` …
    pub(crate) state: String,
    pub(crate) group: i32,
    pub(crate) session: i32,
    /// In user and system mode.
    pub(crate) ticks: u64,
}

impl Stat {
    /// Nothing if there is no such process or thread. `folder` is its folder under `/proc`.
    pub(crate) fn of(folder: impl AsRef<Path>) -> Option<Self> {
        let stat = fs::read_to_string(folder.as_ref().join("stat")).ok()?;
        Self::parse(&stat)
    }

    pub(crate) fn of_us() -> Option<Self> {
        Self::of("/proc/self")
    }

    /// `pid (name) state parent group session …`, where the name may hold anything.
    fn parse(stat: &str) -> Option<Self> {
        let (_, rest) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<i32>().ok();
        let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(Self {
            state: (*fields.first()?).to_owned(),
            group: number(2)?,
            session: number(3)?,
            ticks: ticks(11)? + ticks(12)?,
        })
    }
}

/// The process and the user at the other end of a local socket, as they were when it connected.
#[expect(
    unsafe_code,
    reason = "the safe wrapper cannot hold a process number of 0"
)]
pub(crate) fn peer(socket: impl AsFd) -> io::Result<(i32, u32)> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut size = libc::socklen_t::try_from(size_of_val(&peer)).unwrap_or(0);
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is borrowed; `peer` is writable for `size` bytes, and any bytes are a `ucred`.
    let code = unsafe {
        libc::getsockopt(
            socket,
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut size,
        )
    };
    if code != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((peer.pid, peer.uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_known() {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let (pid, uid) = peer(&ours).unwrap();
        assert_eq!(pid.unsigned_abs(), std::process::id());
        assert_eq!(uid, rustix::process::getuid().as_raw());
        assert!(peer(fs::File::open("/dev/null").unwrap()).is_err());
    }

    #[test]
    fn names_hold_anything() {
        let stat = "7 (a) S 1 (b) R 5 0 0 34816 7 4194304 1 2 3 4 50 6 0 0 20";
        let stat = Stat::parse(stat).unwrap();
        assert_eq!((stat.state.as_str(), stat.group, stat.session), ("R", 0, 0));
        assert_eq!(stat.ticks, 56);
        assert!(Stat::parse("7 (a) ").is_none());
        assert!(Stat::of("/proc/0").is_none());
    }

    #[test]
    fn we_are_there() {
        let us = Stat::of_us().unwrap();
        // This thread runs, but the process's first one may wait for it.
        assert!("RS".contains(&us.state), "{}", us.state);
    }
}
