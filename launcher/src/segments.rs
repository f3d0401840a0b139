//! What a rank leaves of System V shared memory if it is killed at the wrong moment.
//!
//! UCX tries its memory hooks when it starts: it makes a private segment of one page, attaches it twice and marks it
//! for removal (`ucm_fire_mmap_events` in its `ucm/mmap/install.c`). A process that is killed within these
//! microseconds leaves the page for ever, as nobody else knows its number.

use std::fs;

use rustix::process::getuid;

/// Removes such segments of `pids`, processes of ours that have ended.
pub(crate) fn remove_left(pids: impl Fn(i32) -> bool) {
    // Not there without System V shared memory.
    let table = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    let uid = getuid().as_raw();
    let page = rustix::param::page_size() as u64;
    let segments = table.lines().filter_map(Segment::parse);
    for segment in segments.filter(|one| one.is_left(uid, page) && pids(one.creator)) {
        segment.remove();
    }
}

/// A line of `/proc/sysvipc/shm`.
struct Segment {
    key: i32,
    id: i32,
    /// Octal, as the table has them.
    permissions: u32,
    bytes: u64,
    creator: i32,
    attached: u64,
    owner: u32,
}

impl Segment {
    /// `key shmid perms size cpid lpid nattch uid …`; nothing for the heading.
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        Some(Self {
            key: fields.first()?.parse().ok()?,
            id: fields.get(1)?.parse().ok()?,
            permissions: u32::from_str_radix(fields.get(2)?, 8).ok()?,
            bytes: fields.get(3)?.parse().ok()?,
            creator: fields.get(4)?.parse().ok()?,
            attached: fields.get(6)?.parse().ok()?,
            owner: fields.get(7)?.parse().ok()?,
        })
    }

    fn is_left(&self, uid: u32, page: u64) -> bool {
        let private = self.key == libc::IPC_PRIVATE && self.permissions == 0o600;
        private && self.bytes == page && self.attached == 0 && self.owner == uid
    }

    #[expect(unsafe_code, reason = "System V shared memory has no safe wrapper")]
    fn remove(&self) {
        // SAFETY: IPC_RMID reads and writes no memory of ours. It may have gone by now.
        let _ = unsafe { libc::shmctl(self.id, libc::IPC_RMID, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids() -> Vec<i32> {
        let table = fs::read_to_string("/proc/sysvipc/shm").unwrap();
        table
            .lines()
            .filter_map(Segment::parse)
            .map(|one| one.id)
            .collect()
    }

    #[expect(unsafe_code, reason = "System V shared memory has no safe wrapper")]
    fn make(bytes: usize, mode: i32) -> i32 {
        // SAFETY: no memory of ours is involved.
        let id = unsafe { libc::shmget(libc::IPC_PRIVATE, bytes, libc::IPC_CREAT | mode) };
        assert!(id >= 0, "{}", std::io::Error::last_os_error());
        id
    }

    #[test]
    fn only_what_is_ours_and_of_one_page() {
        let page = rustix::param::page_size();
        let [left, larger, shared] = [make(page, 0o600), make(2 * page, 0o600), make(page, 0o644)];
        let us = i32::try_from(std::process::id()).unwrap();
        remove_left(|pid| pid != us);
        assert!(ids().contains(&left), "of another process");
        remove_left(|pid| pid == us);
        let after = ids();
        for id in [larger, shared] {
            let segment = Segment::parse(&format!("0 {id} 600 0 0 0 0 0")).unwrap();
            segment.remove();
            assert!(after.contains(&id));
        }
        assert!(!after.contains(&left));
    }
}
