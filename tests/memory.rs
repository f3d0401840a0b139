//! C23 and C25: little shared memory, and very many operations without waiting.

use pgas::testing::{Ranks, on_ranks};
use pgas::{ErrorKind, GlobalArray, World};
use std::time::Duration;

/// The bytes of a line such as `MemTotal: 24000000 kB` of a file in /proc.
fn bytes_of(file: &str, field: &str) -> u64 {
    let text = std::fs::read_to_string(file).unwrap();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        * 1024
}

/// Most memory this process has had resident.
fn peak_resident() -> u64 {
    bytes_of("/proc/self/status", "VmHWM:")
}

const FLOOD: usize = 1_000_000;

/// A million puts (or gets, or adds), one flush; the target is in a barrier, or first asleep.
fn flood(world: &World, target: Option<usize>, sleep: Duration) -> pgas::Result<()> {
    let size = world.size();
    let len = 1000 * size;
    let array = GlobalArray::<u64>::new(world, len)?;
    world.barrier()?;
    if world.rank() == 0 {
        let index_of = |k: usize| match target {
            Some(rank) => array.range_of(rank).start + k % 1000,
            None => (k * 7) % len,
        };
        for k in 0..FLOOD {
            array.put(index_of(k), k as u64)?;
        }
        array.flush()?;
        // The last put to each element is the one that stays.
        for k in FLOOD - 1000..FLOOD {
            assert_eq!(array.get(index_of(k))?, k as u64);
        }
    } else {
        std::thread::sleep(sleep);
    }
    world.barrier()?;
    let peak = peak_resident();
    assert!(peak < 300 << 20, "{} MiB resident", peak >> 20);
    Ok(())
}

#[test]
fn a_million_puts_to_one_rank() {
    on_ranks(2, |world| flood(world, Some(1), Duration::ZERO));
}

#[test]
fn a_million_puts_to_a_sleeper() {
    on_ranks(2, |world| flood(world, Some(1), Duration::from_secs(3)));
}

#[test]
fn a_million_puts_to_all() {
    on_ranks(2, |world| flood(world, None, Duration::ZERO));
}

#[test]
fn gets_and_adds_without_end() {
    on_ranks(2, |world| {
        let array = GlobalArray::<u64>::new(world, 100)?;
        let times = 20_000;
        let there = array.range_of(1).start;
        if world.rank() == 0 {
            for _ in 0..times {
                array.fetch_add(there, 1)?;
                array.get(there)?;
            }
        }
        world.barrier()?;
        assert_eq!(array.get(there)?, times);
        let peak = peak_resident();
        assert!(peak < 300 << 20, "{} MiB resident", peak >> 20);
        Ok(())
    });
}

/// More than the node has is one error on all ranks, which names wanted and free; then the job
/// goes on. Nothing is mapped before it is known to fit.
#[test]
fn more_than_there_is() {
    on_ranks(4, |world| {
        let total = bytes_of("/proc/meminfo", "MemTotal:");
        let len = usize::try_from(total / 8).unwrap() * 2;
        let error = GlobalArray::<u64>::new(world, len).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoRoom, "{error}");
        let text = error.to_string();
        assert!(text.contains("wanted") && text.contains("free"), "{text}");
        assert_eq!(GlobalArray::<u64>::new(world, 10)?.get(9)?, 0);
        Ok(())
    });
}

/// What `unshare` needs to be allowed the rest.
fn as_root() -> &'static [&'static str] {
    if rustix::process::geteuid().is_root() {
        &[]
    } else {
        &["--user", "--map-root-user"]
    }
}

/// Runs the ranks in a mount namespace of their own, whose /dev/shm is as given; the test's
/// process enters it, so it is a process of its own (`run_alone`).
fn with_shm(mount: &str, tls: &str, len: usize) -> String {
    // A private /dev/shm needs a mount namespace: the ranks start through a shell in one.
    let script = format!(
        "mount -t tmpfs -o {mount} tmpfs /dev/shm && exec \"$0\" small_shm_worker --exact --nocapture \
         --include-ignored --test-threads=1"
    );
    let output = std::process::Command::new("unshare")
        .args(as_root())
        .args(["--mount", "--", "sh", "-c", &script])
        .arg(std::env::current_exe().unwrap())
        .env("UCX_TLS", tls)
        .env("SMALL_SHM_LEN", len.to_string())
        .output()
        .expect("unshare (util-linux)");
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{mount} {tls} {len}:\n{text}");
    text
}

/// What runs inside: either everything works as always, or one error on all ranks names the cause.
#[test]
#[ignore = "started by the small_shm tests"]
fn small_shm_worker() {
    let len: usize = std::env::var("SMALL_SHM_LEN").unwrap().parse().unwrap();
    let outcome = Ranks::new(2).outcome(|world| {
        match GlobalArray::<u64>::new(world, len) {
            Ok(mut array) => {
                array.local()?.fill(3);
                for index in (0..len).step_by(511) {
                    assert_eq!(array.get(index)?, 3);
                }
                // One-sided as ever, also while the owner is busy.
                if world.rank() == 1 {
                    std::thread::sleep(Duration::from_secs(1));
                } else {
                    let started = std::time::Instant::now();
                    array.fetch_add(len - 1, 1)?;
                    assert!(started.elapsed() < Duration::from_millis(300));
                }
                world.barrier()?;
                println!("works");
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoRoom, "{error}");
                println!("refused: {error}");
            }
        }
        world.barrier()
    });
    println!("{}", String::from_utf8_lossy(&outcome.stdout));
    println!("{}", String::from_utf8_lossy(&outcome.stderr));
    if !outcome.success() {
        // Too small to start at all: said so, with the place and what is free there.
        let text = outcome.to_string();
        let named = text.contains("free in /dev/shm") || text.contains("read-only");
        assert!(named, "{text}");
        println!("refused: {text}");
    }
}

const MIB: usize = 1 << 20;

#[test]
fn small_shm_with_default_transports() {
    for size in ["1m", "5m", "16m", "64m"] {
        for bytes in [MIB, 8 * MIB, 128 * MIB] {
            let text = with_shm(&format!("size={size}"), "all", bytes / 8);
            assert!(
                text.contains("works") || text.contains("refused:"),
                "{size}: {text}"
            );
        }
    }
}

#[test]
fn small_shm_with_posix_only() {
    for (size, bytes, works) in [
        ("64m", MIB, true),
        ("64m", 8 * MIB, true),
        ("64m", 128 * MIB, false),
        ("16m", 128 * MIB, false),
        ("1m", MIB, false),
    ] {
        let text = with_shm(&format!("size={size}"), "posix,self", bytes / 8);
        assert_eq!(text.contains("works"), works, "{size}: {bytes}: {text}");
        assert!(works || text.contains("/dev/shm"), "{text}");
    }
}

#[test]
fn read_only_shm() {
    let text = with_shm("ro", "posix,self", MIB / 8);
    assert!(
        text.contains("refused:") && text.contains("/dev/shm"),
        "{text}"
    );
    with_shm("ro", "tcp,self", MIB / 8);
}

/// `ulimit -v`: an error on all ranks, not a crash.
#[test]
fn little_address_space() {
    let outcome = Ranks::new(2).outcome(|world| {
        use rustix::process::{Resource, Rlimit, setrlimit};
        let limit = Some(2 << 30);
        setrlimit(
            Resource::As,
            Rlimit {
                current: limit,
                maximum: limit,
            },
        )
        .unwrap();
        let error = GlobalArray::<u64>::new(world, 1 << 29).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoRoom, "{error}");
        assert!(error.to_string().contains("ulimit -v"), "{error}");
        GlobalArray::<u64>::new(world, 1000)?.close()
    });
    assert!(
        outcome.success(),
        "{outcome}\n{}",
        String::from_utf8_lossy(&outcome.stderr)
    );
}
