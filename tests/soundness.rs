//! What safe programs may do that would reach memory that is not theirs, or mix up what ranks say: it must be an error,
//! on all ranks.

use bytemuck::{Pod, Zeroable};
use pgas::testing::{Ranks, on_ranks};
use pgas::{Dist, Error, ErrorKind, GlobalArray, Op, World};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[track_caller]
fn is_mismatch<T: std::fmt::Debug>(result: pgas::Result<T>, words: &str) {
    let error: Error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    assert!(error.to_string().contains(words), "{error}");
}

/// Two types of one function, which rustc gives the same name.
#[test]
fn types_of_one_name_and_other_sizes() {
    on_ranks(2, |world| {
        for len in [100, 100_000] {
            if world.rank() == 0 {
                #[derive(Clone, Copy, Debug, Pod, Zeroable)]
                #[repr(C)]
                struct S([u64; 8]);
                is_mismatch(GlobalArray::<S>::new(world, len), "element type");
                is_mismatch(world.all_gather(S([1; 8])), "element type");
            } else {
                #[derive(Clone, Copy, Debug, Pod, Zeroable)]
                #[repr(C)]
                struct S(u8);
                is_mismatch(GlobalArray::<S>::new(world, len), "element type");
                is_mismatch(world.all_gather(S(1)), "element type");
            }
        }
        world.barrier()
    });
}

/// These were found by search: a part of their number is the same.
#[test]
fn layouts_that_look_alike() {
    on_ranks(2, |world| {
        let parts = match world.rank() {
            0 => vec![11_241, 388_759],
            _ => vec![176_229, 223_771],
        };
        let array = GlobalArray::<u64>::builder(world, 400_000).dist([Dist::Irregular(parts)]);
        is_mismatch(array.build(), "distribution");
        world.barrier()
    });
}

/// A message that was given up in the middle does not go on with the next one's bytes.
#[test]
fn a_message_after_one_that_was_given_up() {
    Ranks::new(2).env("PGAS_TIMEOUT", "1").run(|world: &World| {
        let large = 4 << 20;
        if world.rank() == 0 {
            let late = world.send(1, 7, &vec![1_u8; large]);
            if let Err(error) = &late {
                assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            }
            std::thread::sleep(Duration::from_millis(700));
            world.send(1, 8, &vec![2_u8; large])?;
        } else {
            std::thread::sleep(Duration::from_millis(1500));
            // Whole, or not at all.
            if let Ok((values, _)) = world.recv::<u8>(0, 7) {
                assert!(values.len() == large && values.iter().all(|&value| value == 1));
            }
            let (values, _) = world.recv::<u8>(0, 8)?;
            assert!(values.len() == large && values.iter().all(|&value| value == 2));
        }
        world.barrier()
    });
}

/// A rank whose time is up must not touch what others still combine.
#[test]
fn a_reduction_that_one_rank_gave_up() {
    Ranks::new(2).env("PGAS_TIMEOUT", "1").run(|world: &World| {
        let team = world.split(0, 0)?;
        let len = 20_000;
        let slowly = AtomicBool::new(true);
        let slow = |a: u64, b: u64| {
            if world.rank() == 0 && slowly.swap(false, Ordering::Relaxed) {
                std::thread::sleep(Duration::from_secs(3));
            }
            a + b
        };
        let mut values = vec![1_u64; len];
        let outcome = team.all_reduce_slice(&mut values, slow);
        if world.rank() == 1 {
            if world.node_ranks().len() == 2 {
                outcome.unwrap_err();
            }
            for _ in 0..24 {
                let again = team.all_reduce_slice(&mut vec![100_u64; len], Op::Sum);
                let error = again.unwrap_err();
                assert!(error.to_string().contains("after a failed"), "{error}");
                std::thread::sleep(Duration::from_millis(100));
            }
        } else if outcome.is_ok() {
            assert!(values.iter().all(|&value| value == 2));
        }
        Ok(())
    });
}

/// After a panic in an operator, which the program may catch, no collective of this rank is right.
#[test]
fn a_panic_in_an_operator() {
    Ranks::new(2).env("PGAS_TIMEOUT", "2").run(|world: &World| {
        for len in [1, 20_000] {
            let team = world.split(0, 0)?;
            let begin = Instant::now();
            let reduce = || {
                team.all_reduce_slice(&mut vec![1_u64; len], |a: u64, b: u64| {
                    assert!(world.rank() != 0, "on purpose");
                    a + b
                })
            };
            let outcome = catch_unwind(AssertUnwindSafe(reduce));
            if world.rank() == 0 {
                outcome.unwrap_err();
                let error = team.barrier().unwrap_err();
                assert!(error.to_string().contains("panicked"), "{error}");
                // The other one's time is up later.
                std::thread::sleep(Duration::from_millis(1500));
            } else {
                outcome.unwrap().unwrap_err();
            }
            assert!(begin.elapsed() < Duration::from_secs(10));
            world.barrier()?;
        }
        Ok(())
    });
}

#[test]
fn a_collective_within_a_collective() {
    on_ranks(2, |world| {
        let other = world.split(0, 0)?;
        for len in [1, 20_000] {
            let inner = AtomicBool::new(false);
            let mut values = vec![1_u64; len];
            world.all_reduce_slice(&mut values, |a: u64, b: u64| {
                if !inner.swap(true, Ordering::Relaxed) {
                    let error = world.barrier().unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
                }
                a + b
            })?;
            assert!(values.iter().all(|&value| value == 2));
            other.barrier()?;
        }
        Ok(())
    });
}
