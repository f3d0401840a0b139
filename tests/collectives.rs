//! Collectives: results, zero lengths, NaN, and calls that do not go together.

#![expect(clippy::cast_possible_truncation, reason = "test numbers are small")]

use pgas::testing::{Ranks, on_ranks};
use pgas::{ErrorKind, GlobalArray, Op, World};
use std::time::{Duration, Instant};

fn results(world: &World) -> pgas::Result<()> {
    let (rank, size) = (world.rank(), world.size());
    for root in 0..size {
        assert_eq!(world.broadcast(root, rank * 10)?, root * 10);
        for len in [0, 1, 3, 1000, 100_000] {
            let mut values: Vec<u32> = (0..len).map(|k| k * (rank as u32 + 1)).collect();
            world.broadcast_slice(root, &mut values)?;
            assert!(
                values
                    .iter()
                    .zip(0..)
                    .all(|(&v, k)| v == k * (root as u32 + 1))
            );
        }
    }
    assert_eq!(world.all_gather(rank)?, (0..size).collect::<Vec<_>>());
    for len in [0, 1, 7, 100_000] {
        let gathered = world.all_gather_slice(&vec![rank as u8; len])?;
        let right: Vec<u8> = (0..size).flat_map(|rank| vec![rank as u8; len]).collect();
        assert_eq!(gathered, right);
    }
    let names = world.all_gather_obj(&format!("rank {rank} {}", "x".repeat(rank * 1000)))?;
    assert!(
        names
            .iter()
            .enumerate()
            .all(|(rank, name)| name.len() > rank * 1000)
    );

    let total: usize = (0..size).sum();
    assert_eq!(world.all_reduce(rank, Op::Sum)?, total);
    assert_eq!(world.all_reduce(rank, Op::Max)?, size - 1);
    assert_eq!(world.all_reduce(rank as i8 - 3, Op::Min)?, -3);
    for len in [0, 1, 100_000] {
        let mut values: Vec<i64> = (0..len).map(|k| k + rank as i64).collect();
        world.all_reduce_slice(&mut values, Op::Sum)?;
        let right = (0..len).map(|k| k * size as i64 + total as i64);
        assert!(values.into_iter().eq(right));
    }
    assert_eq!(
        world.broadcast(size, 1).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    Ok(())
}

#[test]
fn results_on_1_rank() {
    on_ranks(1, results);
}
#[test]
fn results_on_2_ranks() {
    on_ranks(2, results);
}
#[test]
fn results_on_3_ranks() {
    on_ranks(3, results);
}
#[test]
fn results_on_5_ranks() {
    on_ranks(5, results);
}
#[test]
fn results_on_8_ranks() {
    on_ranks(8, results);
}

/// C03: nothing to transfer is not nothing to do.
#[test]
fn zero_lengths() {
    let zero = |world: &World| {
        let array = GlobalArray::<u64>::new(world, 1)?; // ranks 1 and 2 own nothing
        assert_eq!(array.get_range(0..0)?, []);
        assert_eq!(array.get_range(1..1)?, []);
        array.put_range(1, &[])?;
        assert_eq!(
            array.get_range(1..2).unwrap_err().kind(),
            ErrorKind::OutOfBounds
        );
        assert_eq!(array.get(0)?, 0);
        world.broadcast_slice::<u64>(1, &mut [])?;
        assert_eq!(world.all_gather_slice::<f32>(&[])?, []);
        world.all_reduce_slice::<f64>(&mut [], Op::Max)?;
        // The empty collectives met: a barrier right after is matched with a barrier.
        world.barrier()?;
        array.close()
    };
    Ranks::new(3).run(zero);
    Ranks::new(3).env("UCX_LOG_LEVEL", "trace").run(zero);
}

/// The same bits on all ranks, whichever rank holds the NaN.
#[test]
fn nan_wins_wherever_it_is() {
    on_ranks(4, |world| {
        let mine = world.rank() as f64 + 1.0;
        for holder in 0..world.size() {
            let value = if world.rank() == holder {
                f64::NAN
            } else {
                mine
            };
            for op in [Op::Min, Op::Max, Op::Sum] {
                let result = world.all_reduce(value, op)?;
                assert_eq!(result.to_bits(), f64::NAN.to_bits());
                let mut many = vec![mine as f32; 1000];
                many[999] = value as f32;
                world.all_reduce_slice(&mut many, op)?;
                assert!(many[999].is_nan() && !many[0].is_nan());
            }
        }
        let infinite = if world.rank() == 2 {
            f64::NEG_INFINITY
        } else {
            mine
        };
        assert_eq!(world.all_reduce(infinite, Op::Min)?, f64::NEG_INFINITY);
        let zero = if world.rank() == 1 { -0.0 } else { 0.0_f64 };
        assert!(world.all_reduce(zero, Op::Min)?.is_sign_negative());
        assert!(world.all_reduce(zero, Op::Max)?.is_sign_positive());
        // Floats in a fixed order: the same bits everywhere, and again.
        let sum = world.all_reduce(0.1 * mine, Op::Sum)?;
        let all = world.all_gather(sum.to_bits())?;
        assert!(all.iter().all(|&bits| bits == all[0]));
        assert_eq!(
            world.all_reduce(0.1 * mine, Op::Sum)?.to_bits(),
            sum.to_bits()
        );
        Ok(())
    });
}

/// C29's kind, as far as these collectives go: a mismatch is an error on every rank, no rank
/// gets a result, and the ranks can go on.
#[test]
fn calls_that_do_not_go_together() {
    on_ranks(3, |world| {
        let mismatch = |error: pgas::Error, words: [&str; 2]| {
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
            let text = error.to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        };
        let zeroth = world.rank() == 0;
        // Different operations.
        let error = if zeroth {
            world.broadcast(0, 1.0).unwrap_err()
        } else {
            world.all_reduce(1.0, Op::Sum).unwrap_err()
        };
        mismatch(error, ["broadcast", "all_reduce"]);
        // Different counts.
        let mut values = vec![1.0; if zeroth { 2 } else { 4 }];
        let error = world.all_reduce_slice(&mut values, Op::Sum).unwrap_err();
        mismatch(error, ["2 elements", "4 elements"]);
        // Different operators, roots and types.
        let op = if zeroth { Op::Sum } else { Op::Max };
        mismatch(world.all_reduce(1, op).unwrap_err(), ["rank 0", "operator"]);
        let root = usize::from(zeroth);
        mismatch(
            world.broadcast(root, 1).unwrap_err(),
            ["from rank 1", "from rank 0"],
        );
        let error = if zeroth {
            world.all_gather(1_u32).unwrap_err()
        } else {
            world.all_gather(1_f32).unwrap_err()
        };
        mismatch(error, ["all_gather", "element type"]);
        // Arrays of different lengths and types.
        let error = GlobalArray::<u64>::new(world, if zeroth { 100 } else { 101 }).unwrap_err();
        mismatch(error, ["100 elements", "101 elements"]);
        // A rank that skips a barrier and goes on.
        let error = if world.rank() == 1 {
            world.all_reduce(1, Op::Sum).unwrap_err()
        } else {
            world.barrier().unwrap_err()
        };
        mismatch(error, ["barrier", "all_reduce"]);
        // And everybody can go on.
        assert_eq!(world.all_reduce(1, Op::Sum)?, 3);
        Ok(())
    });
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let started = Instant::now();
    let outcome = Ranks::new(3).env("PGAS_TIMEOUT", "1").outcome(|world| {
        if world.rank() == 1 {
            std::thread::sleep(Duration::from_secs(20));
        }
        let error = world.barrier().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        assert!(error.to_string().contains("rank 1"), "{error}");
        let again = world.barrier().unwrap_err();
        assert!(again.to_string().contains("after a failed"), "{again}");
        Err(error)
    });
    assert!(!outcome.success());
    let text = outcome.to_string();
    assert!(
        text.contains("barrier: rank 1 did not come within 1s"),
        "{text}"
    );
    assert!(started.elapsed() < Duration::from_secs(10));
}

/// Ranks that wait use no processor time to speak of.
#[test]
fn waiting_is_idle() {
    on_ranks(4, |world| {
        world.barrier()?;
        if world.rank() == 0 {
            std::thread::sleep(Duration::from_secs(2));
        }
        let before = cpu_time();
        world.barrier()?;
        let used = cpu_time() - before;
        assert!(used < Duration::from_millis(200), "{used:?} of 2 s");
        Ok(())
    });
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.try_into().unwrap()
}
