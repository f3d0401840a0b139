//! C19: one rank ends badly while the others wait in every way there is. The job ends at once,
//! with that rank's code, name and words, and nothing is left.

#![expect(unsafe_code, reason = "a segmentation fault")]

use pgas::testing::Ranks;
use pgas::{Error, ErrorKind, GlobalArray, Op, World};
use std::time::{Duration, Instant};

/// Rank 1 does `deed`; the other three wait, each in its own way, which `turn` rotates.
fn job(turn: usize, deed: fn(&World)) -> (i32, String) {
    let started = Instant::now();
    let outcome = Ranks::new(4).outcome(move |world| {
        let array = GlobalArray::<u64>::new(world, 400)?;
        world.barrier()?;
        if world.rank() == 1 {
            deed(world);
            std::thread::sleep(Duration::from_secs(60));
        }
        match (world.rank() + turn) % 5 {
            0 => world.barrier()?,
            1 => loop {
                array.get(100)?;
                world.flush()?; // notices failures where gets need no help
            },
            2 => drop(world.all_reduce(1, Op::Sum)?),
            3 => {
                let until = Instant::now() + Duration::from_secs(60);
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
            }
            _ => std::thread::sleep(Duration::from_secs(60)),
        }
        Ok(())
    });
    let taken = started.elapsed();
    assert!(taken < Duration::from_secs(8), "{taken:?}: {outcome}");
    assert_nothing_stays();
    let text = String::from_utf8_lossy(&outcome.stderr).into_owned();
    (outcome.code, format!("{outcome}\n{text}"))
}

/// UCX's files in /dev/shm live for the moment between being opened and unlinked. Other tests
/// make some meanwhile: what is there now must be gone soon.
fn assert_nothing_stays() {
    let files = || {
        let entries = std::fs::read_dir("/dev/shm").into_iter().flatten();
        entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.contains("ucx") || name.contains("pgas"))
            .collect::<Vec<_>>()
    };
    let mut suspects = files();
    let until = Instant::now() + Duration::from_secs(3);
    while !suspects.is_empty() {
        assert!(Instant::now() < until, "left in /dev/shm: {suspects:?}");
        std::thread::sleep(Duration::from_millis(20));
        let now = files();
        suspects.retain(|name| now.contains(name));
    }
}

/// One test for each turn: every way to wait.
macro_rules! every_turn {
    ($module:ident, $check:expr) => {
        mod $module {
            use super::*;
            #[test]
            fn turn_0() {
                $check(0)
            }
            #[test]
            fn turn_1() {
                $check(1)
            }
            #[test]
            fn turn_2() {
                $check(2)
            }
            #[test]
            fn turn_3() {
                $check(3)
            }
            #[test]
            fn turn_4() {
                $check(4)
            }
        }
    };
}

every_turn!(panic, |turn| {
    let (code, text) = job(turn, |_| panic!("out of cheese"));
    assert_eq!(code, 101, "{text}");
    assert!(
        text.contains("rank 1") && text.contains("out of cheese"),
        "{text}"
    );
});

every_turn!(killed, |turn| {
    let (code, text) = job(turn, |_| raise(rustix::process::Signal::KILL));
    assert_eq!(code, 128 + 9, "{text}");
    assert!(
        text.contains("rank 1") && text.contains("SIGKILL"),
        "{text}"
    );
});

#[test]
fn panic_in_a_thread_that_main_joins() {
    let (code, text) = job(0, |_| {
        std::thread::spawn(|| panic!("out of cheese"))
            .join()
            .unwrap();
    });
    assert_eq!(code, 101, "{text}");
    assert!(
        text.contains("rank 1") && text.contains("out of cheese"),
        "{text}"
    );
}

#[test]
fn exit_with_a_code() {
    let (code, text) = job(0, |_| std::process::exit(3));
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("rank 1"), "{text}");
}

#[test]
fn exit_0_without_leaving() {
    let (code, text) = job(1, |_| std::process::exit(0));
    assert_ne!(code, 0, "{text}");
    assert!(
        text.contains("rank 1") && text.contains("without leaving"),
        "{text}"
    );
}

fn raise(signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::getpid(), signal).unwrap();
}

#[test]
fn segmentation_fault() {
    let (code, text) = job(2, |_| {
        let nowhere = std::ptr::without_provenance_mut::<u64>(8);
        // SAFETY: there is none; that is the test. The processor faults.
        unsafe { nowhere.write_volatile(1) };
    });
    assert_eq!(code, 128 + 11, "{text}");
    assert!(
        text.contains("rank 1") && text.contains("SIGSEGV"),
        "{text}"
    );
}

#[test]
fn abort_of_the_process() {
    let (code, text) = job(3, |_| std::process::abort());
    assert_eq!(code, 128 + 6, "{text}");
    assert!(
        text.contains("rank 1") && text.contains("SIGABRT"),
        "{text}"
    );
}

#[test]
fn abort_of_the_job() {
    let (code, text) = job(4, |world| world.abort(7, "the input makes no sense"));
    assert_eq!(code, 7, "{text}");
    assert!(
        text.contains("rank 1") && text.contains("the input makes no sense"),
        "{text}"
    );
}

#[test]
fn stack_overflow() {
    fn deeper(depth: usize) -> usize {
        let frame = [depth; 1000];
        std::hint::black_box(&frame);
        if depth == usize::MAX {
            0
        } else {
            deeper(depth + 1) + frame[depth % 1000]
        }
    }
    let (code, text) = job(0, |_| {
        std::hint::black_box(deeper(0));
    });
    // Rust's own handler says so and aborts.
    assert!(code == 128 + 6 || code == 128 + 11, "{code}: {text}");
    assert!(
        text.contains("rank 1") && text.contains("overflowed its stack"),
        "{text}"
    );
}

#[test]
fn an_error_out_of_the_body() {
    let outcome = Ranks::new(3).outcome(|world| {
        if world.rank() == 2 {
            let array = GlobalArray::<u8>::new(world, 1)?;
            array.get(77)?;
        }
        world.barrier()
    });
    // The others make no array: whichever error is first, it is named.
    assert_eq!(outcome.code, 1);
    assert!(outcome.to_string().contains("rank"), "{outcome}");
}

fn dies_before_it_joins(ending: i32) -> i32 {
    let started = Instant::now();
    let outcome = Ranks::new(3).processes(|| {
        if std::env::var("PGAS_RANK").as_deref() == Ok("1") {
            std::thread::sleep(Duration::from_millis(200));
            std::process::exit(ending);
        }
        World::run(|world| world.barrier())
    });
    assert!(outcome.to_string().contains("rank 1"), "{outcome}");
    assert!(started.elapsed() < Duration::from_secs(5));
    outcome.code
}

#[test]
fn a_rank_that_exits_0_before_it_joins() {
    assert_eq!(dies_before_it_joins(0), 1);
}

#[test]
fn a_rank_that_exits_5_before_it_joins() {
    assert_eq!(dies_before_it_joins(5), 5);
}

/// A rank that has joined but is killed before UCX is up.
#[test]
fn a_rank_that_dies_while_joining() {
    let started = Instant::now();
    let outcome = Ranks::new(3).processes(|| {
        if std::env::var("PGAS_RANK").as_deref() == Ok("1") {
            let control = ucxrun::client::Control::from_env().unwrap();
            std::thread::sleep(Duration::from_millis(300));
            drop(control);
            raise(rustix::process::Signal::KILL);
        }
        World::run(|world| world.barrier())
    });
    assert!(outcome.to_string().contains("rank 1"), "{outcome}");
    assert!(!outcome.success());
    assert!(started.elapsed() < Duration::from_secs(5));
}

/// What the survivors see, if they look before they are ended.
#[test]
fn survivors_get_an_error_that_names_the_dead() {
    let outcome = Ranks::new(2).outcome(|world| {
        world.barrier()?;
        if world.rank() == 1 {
            raise(rustix::process::Signal::KILL);
        }
        let error: Error = world.barrier().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PeerFailed, "{error}");
        assert_eq!(error.peer(), Some(1));
        eprintln!("survivor: {error}");
        Err(error)
    });
    assert_eq!(outcome.code, 137);
}

/// Two ranks in one process, or a second world after the first, are refused.
#[test]
fn one_world_a_process() {
    Ranks::new(2).run(|world| {
        let error = World::from_env().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Bootstrap, "{error}");
        world.barrier()
    });
}

#[test]
fn a_garbled_time_limit_is_named() {
    let outcome = Ranks::new(1)
        .env("PGAS_TIMEOUT", "soon")
        .processes(|| World::from_env().map(drop));
    let text = String::from_utf8_lossy(&outcome.stderr).into_owned();
    assert!(!outcome.success());
    assert!(
        text.contains("PGAS_TIMEOUT") && text.contains("soon"),
        "{text}"
    );
}
