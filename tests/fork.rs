//! C18: child processes of a rank disturb nothing.

#![expect(unsafe_code, reason = "fork")]

use pgas::testing::{Ranks, on_ranks};
use pgas::{ErrorKind, GlobalArray, World};
use std::process::Command;
use std::time::{Duration, Instant};

/// Rank 1 puts to rank 0 all the while; rank 0 does `what`, then checks.
fn while_rank_1_puts(
    world: &World,
    what: impl FnOnce(&World, &GlobalArray<u64>),
) -> pgas::Result<()> {
    let array = GlobalArray::<u64>::new(world, 4)?;
    let stop = GlobalArray::<u64>::new(world, 2)?;
    world.barrier()?;
    if world.rank() == 0 {
        let before = array.get(0)?;
        what(world, &array);
        let until = Instant::now() + Duration::from_secs(10);
        while array.get(0)? < before + 100 {
            assert!(Instant::now() < until, "puts stopped arriving");
            std::thread::yield_now();
        }
        stop.put(1, 1)?;
        stop.flush()?;
    } else {
        let mut round = 0;
        while stop.get(1)? == 0 {
            round += 1;
            array.put(0, round)?;
            array.flush()?;
            assert_eq!(array.get(0)?, round);
        }
    }
    world.barrier()
}

/// Forks; the child runs `child`, which must end it. Returns the child's raw status.
fn fork(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child only runs `child` and exits; its other threads are gone, as after any fork.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let code = child();
        // SAFETY: always allowed.
        unsafe { libc::_exit(code) }
    }
    let mut status = 0;
    // SAFETY: a child of this process.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status
}

#[test]
fn commands() {
    on_ranks(2, |world| {
        while_rank_1_puts(world, |_, _| {
            for _ in 0..100 {
                assert!(Command::new("true").status().unwrap().success());
            }
        })
    });
}

#[test]
fn a_child_that_sleeps_and_leaves_without_exit_handlers() {
    on_ranks(2, |world| {
        while_rank_1_puts(world, |_, _| {
            let status = fork(|| {
                std::thread::sleep(Duration::from_millis(200));
                0
            });
            assert_eq!(status, 0);
        })
    });
}

#[test]
fn a_child_that_exits_with_exit_handlers() {
    on_ranks(2, |world| {
        while_rank_1_puts(world, |_, _| {
            let status = fork(|| std::process::exit(0));
            assert_eq!(status, 0);
        })
    });
}

/// In a child the library refuses; that harms neither.
#[test]
fn a_child_that_communicates() {
    on_ranks(2, |world| {
        while_rank_1_puts(world, |world, array| {
            let status = fork(|| {
                let refused = [
                    world.barrier().map(drop),
                    world.flush(),
                    world.all_gather(1).map(drop),
                    GlobalArray::<u64>::new(world, 3).map(drop),
                ];
                let forked = refused.iter().all(
                    |result| matches!(result, Err(error) if error.kind() == ErrorKind::Forked),
                );
                // Its own mapped memory it may still read: it is the parent's too.
                let readable = array.get(0).is_ok();
                i32::from(!(forked && readable))
            });
            assert_eq!(status, 0);
        })
    });
}

#[test]
fn a_child_that_drops_everything() {
    on_ranks(2, |world| {
        while_rank_1_puts(world, |world, array| {
            let status = fork(|| {
                // SAFETY: copies that only this child has; the originals are the parent's.
                let array = unsafe { std::ptr::read(array) };
                drop(array);
                // SAFETY: as above.
                let world = unsafe { std::ptr::read(world) };
                drop(world);
                0
            });
            assert_eq!(status, 0);
        })
    });
}

/// A program started by a rank inherits its environment, but not its place in the job.
#[test]
fn a_started_program_is_not_the_rank() {
    on_ranks(2, |world| {
        if std::env::var_os("PGAS_TEST_GRANDCHILD").is_some() {
            std::process::exit(3);
        }
        while_rank_1_puts(world, |_, _| {
            let output = Command::new(std::env::current_exe().unwrap())
                .args([
                    "a_started_program_is_not_the_rank",
                    "--exact",
                    "--nocapture",
                    "--test-threads=1",
                ])
                .env("PGAS_TEST_GRANDCHILD", "1")
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{text}");
            assert!(text.contains("already"), "{text}");
        })
    });
}

/// The job ends when its ranks do, not when something in the background does.
#[test]
fn a_grandchild_does_not_keep_the_job() {
    let started = Instant::now();
    Ranks::new(2).run(|world| {
        if world.rank() == 0 {
            let sleeper = Command::new("sleep").arg("30").spawn().unwrap();
            drop(sleeper); // goes on
        }
        world.barrier()
    });
    assert!(started.elapsed() < Duration::from_secs(10));
}
