//! Whether there is room for memory, asked before it is mapped: a mapping that is larger than
//! what is free does not fail, it kills the process at first touch, or the machine.

use std::fmt::Write as _;
use std::fs;

/// Part of the free memory that is left to others, in percent.
const RESERVE: u64 = 3;

/// What this machine has to give, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Memory: the machine's, or what its control group may still take.
    memory: u64,
    /// In /dev/shm; None if it does not exist or cannot be written.
    shm: Option<u64>,
    /// Largest System V segment, and all of them together.
    sysv: (u64, u64),
    /// What this process may still map (RLIMIT_AS).
    address_space: u64,
}

/// Where UCX puts a segment, as far as the user's `UCX_TLS` leaves it open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pools {
    sysv: bool,
    posix: bool,
}

impl Room {
    pub(super) fn on_this_machine() -> Self {
        Self {
            memory: available_memory().min(control_group_room()),
            shm: shm_room(),
            sysv: sysv_limits(),
            address_space: address_space_room(),
        }
    }

    /// Whether a machine whose ranks need `machine` bytes in all, the largest of them `largest`,
    /// and this one `mine`, has room; `shared` if they share memory.
    ///
    /// # Errors
    /// A line that names what is wanted and what is free.
    pub(super) fn check(
        &self,
        machine: u64,
        largest: u64,
        mine: u64,
        transports: Option<&str>,
        shared: bool,
    ) -> Result<(), String> {
        let free = self.memory - self.memory / 100 * RESERVE;
        if machine > free {
            return Err(format!(
                "{} wanted on this machine, {} of memory free",
                size(machine),
                size(free)
            ));
        }
        // Peers' shards are mapped too.
        let mapped = if shared { machine } else { mine };
        if mapped > self.address_space {
            return Err(format!(
                "{} wanted by this rank and those it maps, {} left of its address space (ulimit -v)",
                size(mapped),
                size(self.address_space)
            ));
        }
        if !shared {
            return Ok(());
        }
        let pools = Pools::of(transports);
        if pools.sysv && largest <= self.sysv.0 && machine <= self.sysv.1 {
            return Ok(());
        }
        let mut text = String::new();
        if pools.posix {
            match self.shm {
                Some(shm) if machine <= shm => return Ok(()),
                Some(shm) => {
                    let _ = write!(text, "{} free in /dev/shm", size(shm));
                }
                None => text.push_str("/dev/shm is missing or read-only"),
            }
        }
        if pools.sysv {
            if !text.is_empty() {
                text.push_str(", ");
            }
            let _ = write!(
                text,
                "System V segments limited to {} each and {} in all (kernel.shmmax, shmall)",
                size(self.sysv.0),
                size(self.sysv.1)
            );
        }
        if text.is_empty() {
            // Only transports without shared memory: plain memory serves.
            return Ok(());
        }
        Err(format!(
            "{} of shared memory wanted on this machine, {text}",
            size(machine)
        ))
    }
}

/// For messages: what is free in /dev/shm.
pub(super) fn shm_text() -> String {
    match shm_room() {
        Some(free) => format!("{} free in /dev/shm", size(free)),
        None => "/dev/shm is missing or read-only".into(),
    }
}

/// Bytes of /dev/shm that the workers of `ranks` ranks take through POSIX shared memory.
///
/// Measured: 4.2 MiB each for receive buffers. UCX 1.22 crashes when it cannot have several times
/// that while it starts (2 or 3 ranks need 26 MiB, 4 ranks 30).
pub(super) fn shm_for_workers(ranks: usize) -> u64 {
    const MIB: u64 = 1 << 20;
    let starting = if ranks > 1 { 20 * MIB } else { 0 };
    5 * MIB * ranks as u64 + starting
}

/// Whether `UCX_TLS`, as given, allows POSIX shared memory.
pub(super) fn allows_posix(transports: Option<&str>) -> bool {
    Pools::of(transports).posix
}

impl Pools {
    fn of(transports: Option<&str>) -> Self {
        let shared = |name| allows(transports, &[name, "all", "shm", "sm", "mm"]);
        Self {
            sysv: shared("sysv"),
            posix: shared("posix"),
        }
    }
}

/// Whether `UCX_TLS`, as given, allows copies from process to process by the kernel.
pub(super) fn allows_cma(transports: Option<&str>) -> bool {
    allows(transports, &["cma", "all", "shm", "sm"])
}

/// Whether such a list names one of `names`, or, if it says what is not wanted, none.
fn allows(transports: Option<&str>, names: &[&str]) -> bool {
    let Some(list) = transports else {
        return true;
    };
    let (list, negated) = match list.strip_prefix('^') {
        Some(rest) => (rest, true),
        None => (list, false),
    };
    let named = list.split(',').any(|item| {
        let item = item.trim().trim_start_matches('\\');
        names.contains(&item)
    });
    named != negated
}

/// `bytes` for people.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes >= 1 << 60 {
        return "unlimited".into();
    }
    if bytes < 1024 {
        return format!("{bytes} bytes");
    }
    #[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn available_memory() -> u64 {
    let field = |text: &str| -> Option<u64> {
        let line = text
            .lines()
            .find(|line| line.starts_with("MemAvailable:"))?;
        let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
        Some(kib * 1024)
    };
    fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| field(&text))
        .unwrap_or(u64::MAX)
}

/// What the control groups around this process still allow (version 2, then version 1).
fn control_group_room() -> u64 {
    let mut room = u64::MAX;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let (root, limit, usage, cache) = if controllers.is_empty() {
            (
                "/sys/fs/cgroup",
                "memory.max",
                "memory.current",
                "inactive_file ",
            )
        } else if controllers.split(',').any(|name| name == "memory") {
            (
                "/sys/fs/cgroup/memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file ",
            )
        } else {
            continue;
        };
        // Limits of all groups on the way up hold.
        let mut path = path.trim_end_matches('/').to_string();
        loop {
            if let (Some(limit), Some(usage)) = (
                number(&format!("{root}{path}/{limit}")),
                number(&format!("{root}{path}/{usage}")),
            ) {
                // Files in memory are given up when something needs it.
                let stat = fs::read_to_string(format!("{root}{path}/memory.stat"));
                let cached = stat.ok().and_then(|stat| {
                    let line = stat.lines().find_map(|line| line.strip_prefix(cache))?;
                    line.trim().parse::<u64>().ok()
                });
                let used = usage.saturating_sub(cached.unwrap_or(0));
                room = room.min(limit.saturating_sub(used));
            }
            match path.rfind('/') {
                Some(slash) => path.truncate(slash),
                None => break,
            }
        }
    }
    room
}

/// Bytes free in /dev/shm; None if it does not exist or cannot be written.
pub(super) fn shm_room() -> Option<u64> {
    let stat = rustix::fs::statvfs("/dev/shm").ok()?;
    let read_only = stat.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY);
    (!read_only).then(|| stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Files that a rank opens to start, beside what is open when UCX starts. Measured: 24 over tcp
/// between four ranks, for two workers and their first connections, and 15 in shared memory. UCX 1.13
/// ends the process where it gets fewer.
const FILES: u64 = 24;
/// And for each rank that it speaks to over tcp: connections of two workers, to and fro, over two
/// networks.
const FILES_A_RANK: u64 = 8;

/// Raises this process's soft limit on open files to what UCX may need in a job of `ranks` ranks, as
/// far as the hard limit allows. UCX's peers cannot tell why one that has no more does not answer.
///
/// # Errors
/// A line that names the limit, if this process may not open as many files as a rank needs to start.
pub(super) fn provide_files(ranks: usize) -> Result<(), String> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let open = fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64);
    let least = open + FILES;
    let most = least + FILES_A_RANK * ranks as u64;
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|soft| soft < most) {
        limit.current = Some(limit.maximum.map_or(most, |hard| hard.min(most)));
        // If that is refused, the limit is what it was.
        let _ = setrlimit(Resource::Nofile, limit);
    }
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < least => Err(format!(
            "this process needs {least} open files or more, and its limit (ulimit -Hn) is {limit}"
        )),
        _ => Ok(()),
    }
}

fn sysv_limits() -> (u64, u64) {
    let page = rustix::param::page_size() as u64;
    (
        number("/proc/sys/kernel/shmmax").unwrap_or(0),
        number("/proc/sys/kernel/shmall")
            .unwrap_or(0)
            .saturating_mul(page),
    )
}

fn address_space_room() -> u64 {
    let Some(limit) = rustix::process::getrlimit(rustix::process::Resource::As).current else {
        return u64::MAX;
    };
    let pages = fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0);
    limit.saturating_sub(pages.saturating_mul(rustix::param::page_size() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn room(shm: Option<u64>, shmmax: u64) -> Room {
        Room {
            memory: 1000 * MIB,
            shm,
            sysv: (shmmax, u64::MAX),
            address_space: u64::MAX,
        }
    }

    #[test]
    fn too_little_memory_names_wanted_and_free() {
        let text = room(None, u64::MAX)
            .check(2000 * MIB, MIB, MIB, None, true)
            .unwrap_err();
        assert!(
            text.contains("2.0 GiB") && text.contains("970.0 MiB"),
            "{text}"
        );
    }

    #[test]
    fn a_small_dev_shm_matters_only_where_it_is_used() {
        let small = room(Some(64 * MIB), u64::MAX);
        let want = |transports| small.check(128 * MIB, 64 * MIB, 64 * MIB, transports, true);
        assert!(want(None).is_ok(), "System V has room");
        let text = want(Some("posix,self")).unwrap_err();
        assert!(
            text.contains("/dev/shm") && text.contains("64.0 MiB"),
            "{text}"
        );
        assert!(want(Some("tcp,self")).is_ok());
        assert!(want(Some("^posix")).is_ok());
        assert!(want(Some("^sysv")).is_err());
        assert!(room(None, 1024).check(MIB, MIB, MIB, None, true).is_err());
    }

    #[test]
    fn sizes_for_people() {
        assert_eq!(size(12), "12 bytes");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(3 << 30), "3.0 GiB");
        assert_eq!(size(u64::MAX), "unlimited");
    }

    #[test]
    fn this_machine_has_some_room() {
        let room = Room::on_this_machine();
        assert!(room.memory > MIB && room.address_space > MIB);
    }
}
