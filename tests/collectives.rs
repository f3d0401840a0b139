//! Collectives: results, zero lengths, NaN, and calls that do not go together.

#![expect(clippy::cast_possible_truncation, reason = "test numbers are small")]

mod model;

use model::collectives;
use pgas::testing::{Ranks, on_ranks};
use pgas::{BitOp, ErrorKind, GlobalArray, Op, Ragged, World};
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
            world.broadcast_slice(0, &mut [1.0; 4]).unwrap_err()
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
            world.broadcast_slice(root, &mut [1; 7]).unwrap_err(),
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
        world.all_reduce(1, Op::Sum)?;
        if world.rank() == 1 {
            std::thread::sleep(Duration::from_secs(20));
        }
        let error = world.barrier().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        let text = error.to_string();
        assert!(text.contains("rank 1"), "{text}");
        if world.rank() != 1 {
            let last = "(last seen in all_reduce of 1 elements at tests/collectives.rs:";
            assert!(text.contains(last), "{text}");
        }
        let again = world.barrier().unwrap_err();
        assert!(again.to_string().contains("after a failed"), "{again}");
        Err(error)
    });
    assert!(!outcome.success());
    let text = outcome.to_string();
    assert!(
        text.contains("barrier: rank 1") && text.contains("did not come within 1s"),
        "{text}"
    );
    assert!(started.elapsed() < Duration::from_secs(10));
}

/// Long before the time limit, on standard error: who is waited for, and from which line.
#[test]
fn a_long_wait_is_told() {
    let ranks = Ranks::new(3).env("PGAS_NOTICE", "1");
    let outcome = ranks.outcome(|world| {
        for len in [1, 20_000] {
            world.all_reduce_slice(&mut vec![1.0; len], Op::Sum)?;
            if world.rank() == 1 {
                std::thread::sleep(Duration::from_millis(2500));
            }
            world.barrier()?;
        }
        Ok(())
    });
    assert!(outcome.success(), "{outcome}");
    let text = String::from_utf8_lossy(&outcome.stderr);
    let said = "pgas: rank 0: has waited for 1s in barrier at tests/collectives.rs:";
    assert_eq!(text.matches(said).count(), 1, "{text}");
    let whom = "for rank 1 (last seen in all_reduce of 1 elements at tests/collectives.rs:";
    assert!(text.contains(whom), "{text}");
}

/// Each waits for the other in another team's collective.
#[test]
fn teams_in_opposite_order_are_told() {
    let ranks = Ranks::new(2).env("PGAS_NOTICE", "1");
    let outcome = ranks.env("PGAS_TIMEOUT", "4").outcome(|world| {
        let teams = [world.split(0, 0)?, world.split(0, 0)?];
        match world.rank() {
            0 => {
                teams[0].barrier()?;
                teams[1].all_reduce(1, Op::Sum).map(drop)
            }
            _ => {
                teams[1].all_reduce(1, Op::Sum)?;
                teams[0].barrier()
            }
        }
    });
    assert!(!outcome.success());
    let text = String::from_utf8_lossy(&outcome.stderr);
    for said in [
        "rank 0: has waited for 1s in barrier at",
        "rank 1: has waited for 1s in all_reduce",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
}

/// Both lines, whichever rank reads it, also for what a function of the library calls in turn.
#[test]
fn calls_that_do_not_go_together_are_found_in_the_source() {
    on_ranks(4, |world| {
        let line = line!() + 2;
        let error = match world.rank() {
            0 | 1 => world.arg_max(1.5).unwrap_err(),
            _ => GlobalArray::<u8, 2>::new(world, [3, 4]).unwrap_err(),
        };
        let text = error.to_string();
        for line in [line, line + 1] {
            let place = format!("tests/collectives.rs:{line}");
            assert!(text.contains(&place), "{place}: {text}");
        }
        let mut array = GlobalArray::<u8>::new(world, 3)?;
        let line = line!() + 2;
        let error = match world.rank() {
            0 => array.read().unwrap_err(),
            _ => array.local().unwrap_err(),
        };
        let text = error.to_string();
        for line in [line, line + 1] {
            let place = format!("tests/collectives.rs:{line}");
            assert!(text.contains(&place), "{place}: {text}");
        }
        Ok(())
    });
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

/// Parts of different lengths, also none, to and from every root.
fn parts(world: &World) -> pgas::Result<()> {
    let (rank, size) = (world.rank(), world.size());
    // Rank r's row for rank q.
    let row = |r: usize, q: usize| vec![(r * 100 + q) as u32; (r + 2 * q) % 5 * 1000];
    for root in 0..size {
        let all = world.gather(root, &row(rank, root))?;
        assert_eq!(all.is_some(), rank == root);
        for (r, found) in all.iter().flat_map(Ragged::iter).enumerate() {
            assert_eq!(found, row(r, root));
        }
        let names = world.gather_obj(root, &format!("rank {rank}"))?;
        if rank == root {
            let right: Vec<_> = (0..size).map(|rank| format!("rank {rank}")).collect();
            assert_eq!(names, Some(right));
        }
        let rows: Ragged<u32> = (0..size).map(|q| row(root, q)).collect();
        let mine = world.scatter(root, (rank == root).then_some(&rows))?;
        assert_eq!(mine, row(root, rank));
        let objects: Vec<_> = (0..size).map(|q| Some(q as u8)).collect();
        let object = world.scatter_obj(root, (rank == root).then_some(&objects[..]))?;
        assert_eq!(object, Some(rank as u8));
        let map = std::collections::BTreeMap::from([(root, "x".repeat(100_000))]);
        let same = world.broadcast_obj(root, (rank == root).then_some(&map))?;
        assert_eq!(same, map);
        // A root that gives nothing is an error on all ranks, and nothing hangs.
        for error in [
            world.scatter::<u32>(root, None).unwrap_err(),
            world.broadcast_obj::<u8>(root, None).unwrap_err(),
        ] {
            assert_eq!(
                (error.kind(), error.peer()),
                (ErrorKind::InvalidArgument, Some(root))
            );
        }
    }
    let all = world.all_gather_ragged(&row(rank, 1))?;
    assert!(all.len() == size && (0..size).all(|r| all[r] == row(r, 1)));
    let rows: Ragged<u32> = (0..size).map(|q| row(rank, q)).collect();
    let theirs = world.all_to_all_ragged(&rows)?;
    assert!(theirs.len() == size && (0..size).all(|r| theirs[r] == row(r, rank)));
    for each in [0, 1, 3000] {
        let mine: Vec<u64> = (0..size * each)
            .map(|k| (rank * size + k / each) as u64)
            .collect();
        let theirs = world.all_to_all(&mine)?;
        let right = (0..size * each).map(|k| (k / each * size + rank) as u64);
        assert!(theirs.into_iter().eq(right));
    }
    if size > 1 {
        let error = world.all_to_all(&vec![0_u8; size + 1]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    Ok(())
}

/// Reductions by operators, in rank order by functions, and scans.
fn reductions(world: &World) -> pgas::Result<()> {
    let (rank, size) = (world.rank(), world.size());
    let all = 0..size as u64;
    assert_eq!(
        world.all_reduce(rank as u64 + 1, Op::Product)?,
        (1..=size as u64).product()
    );
    let xor = all.clone().fold(0, |a, b| a ^ b);
    assert_eq!(world.all_reduce(rank as u64, BitOp::Xor)?, xor);
    assert!(!world.all_reduce(rank > 0, BitOp::And)?);
    assert!(world.all_reduce(rank == 0, BitOp::Or)?);
    // A function that does not commute: maps x → a·x + b, one after another.
    let map = |rank: u64| [rank + 2, rank * 3 + 1];
    let after =
        |[a, b]: [u64; 2], [c, d]: [u64; 2]| [a.wrapping_mul(c), b.wrapping_mul(c).wrapping_add(d)];
    let through = |ranks: std::ops::Range<u64>| ranks.map(map).reduce(after);
    let mine = map(rank as u64);
    assert_eq!(Some(world.all_reduce(mine, after)?), through(all.clone()));
    assert_eq!(Some(world.scan(mine, after)?), through(0..rank as u64 + 1));
    assert_eq!(world.exscan(mine, after)?, through(0..rank as u64));
    let mut many = vec![mine; 20_000];
    world.scan_slice(&mut many, after)?;
    assert!(many.iter().all(|&m| Some(m) == through(0..rank as u64 + 1)));
    let mut none: [u64; 0] = [];
    world.scan_slice(&mut none, Op::Sum)?;
    for root in 0..size {
        let sum = world.reduce(root, rank as u64, Op::Sum)?;
        assert_eq!(sum, (rank == root).then_some(all.clone().sum()));
    }
    let values: Vec<u64> = (0..10).map(|k| k * (rank as u64 + 1)).collect();
    let mine = world.reduce_scatter(&values, Op::Sum)?;
    let total: u64 = (1..=size as u64).sum();
    let counts = world.all_gather(mine.len())?;
    let start: usize = counts[..rank].iter().sum();
    assert_eq!(counts.iter().sum::<usize>(), 10);
    assert!(
        mine.iter()
            .zip(start as u64..)
            .all(|(&v, k)| v == k * total)
    );
    slices_of_extremes(world)?;
    // Ties go to the lowest rank; NaN wins.
    assert_eq!(world.arg_max(7_u8)?, (7, 0));
    assert_eq!(
        world.arg_min(-(rank as f64))?,
        (-(size as f64 - 1.0), size - 1)
    );
    for nan in 0..size {
        let value = if rank == nan { f64::NAN } else { rank as f64 };
        for (found, at) in [world.arg_min(value)?, world.arg_max(value)?] {
            assert!(found.is_nan() && at == nan);
        }
    }
    Ok(())
}

/// `arg_min_slice` and `arg_max_slice` of lengths that go different ways, with ties, NaN and both
/// zeros, against `arg_min` and `arg_max` of each element.
fn slices_of_extremes(world: &World) -> pgas::Result<()> {
    let special = [f64::NAN, -0.0, 0.0, f64::INFINITY, f64::NEG_INFINITY, 1.0];
    let value = |k: usize, rank: usize| match (k * 7 + rank * 5) % 11 {
        few @ 0..6 => special[few],
        many => (many * (k + 1) % 13) as f64,
    };
    for len in [0, 1, 100, 5_000, 120_001] {
        let mine: Vec<f64> = (0..len).map(|k| value(k, world.rank())).collect();
        let (mut least, mut most) = (mine.clone(), mine);
        let (least_at, most_at) = (
            world.arg_min_slice(&mut least)?,
            world.arg_max_slice(&mut most)?,
        );
        assert_eq!((least_at.len(), most_at.len()), (len, len));
        // The same on all ranks, bit by bit.
        let bits = |values: &[f64]| {
            values
                .iter()
                .fold(0, |a, v| a ^ v.to_bits().rotate_left(a as u32))
        };
        let all = (bits(&least), bits(&most), least_at.clone(), most_at.clone());
        let all = world.all_gather_obj(&all)?;
        assert!(all.iter().all(|one| *one == all[0]), "{len}");
        for k in 0..len {
            let each = (0..world.size()).map(|rank| value(k, rank));
            let mut best = (value(k, 0), 0, value(k, 0), 0);
            for (rank, value) in each.enumerate().skip(1) {
                let nan_first = |a: f64, b: f64| a.is_nan() && !b.is_nan();
                let less = value.total_cmp(&best.0).is_lt() && !value.is_nan();
                if nan_first(value, best.0) || less && !best.0.is_nan() {
                    (best.0, best.1) = (value, rank);
                }
                let more = value.total_cmp(&best.2).is_gt() && !value.is_nan();
                if nan_first(value, best.2) || more && !best.2.is_nan() {
                    (best.2, best.3) = (value, rank);
                }
            }
            let same = |a: f64, b: f64| a.is_nan() && b.is_nan() || a.to_bits() == b.to_bits();
            assert!(
                same(least[k], best.0) && same(most[k], best.2),
                "{len}: {k}"
            );
            assert_eq!((least_at[k], most_at[k]), (best.1, best.3), "{len}: {k}");
        }
    }
    let mut bytes = [3_u8, world.rank() as u8, 200];
    assert_eq!(world.arg_min_slice(&mut bytes)?, [0; 3]);
    assert_eq!(bytes, [3, 0, 200]);
    let mut wide = [-(world.rank() as i128) << 70];
    assert_eq!(world.arg_min_slice(&mut wide)?, [world.size() - 1]);
    Ok(())
}

#[test]
fn parts_and_reductions_on_1_rank() {
    on_ranks(1, |world| parts(world).and_then(|()| reductions(world)));
}
#[test]
fn parts_and_reductions_on_2_ranks() {
    on_ranks(2, |world| parts(world).and_then(|()| reductions(world)));
}
#[test]
fn parts_and_reductions_on_5_ranks() {
    on_ranks(5, |world| parts(world).and_then(|()| reductions(world)));
}

#[test]
fn extremes_that_do_not_go_together() {
    on_ranks(3, |world| {
        let error = match world.rank() {
            0 => world.arg_min(1.0).map(drop).unwrap_err(),
            _ => world.arg_min_slice(&mut [1.0]).map(drop).unwrap_err(),
        };
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        let error = match world.rank() {
            0 => world.arg_max_slice(&mut [1.0]).map(drop).unwrap_err(),
            _ => world.arg_min_slice(&mut [1.0]).map(drop).unwrap_err(),
        };
        assert!(error.to_string().contains("arg_max_slice"), "{error}");
        let mut many = vec![1_u64; 10_000 + world.rank()];
        let error = world.arg_min_slice(&mut many).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        world.barrier()
    });
}

/// C29 for the collectives that give parts.
#[test]
fn parts_that_do_not_go_together() {
    on_ranks(3, |world| {
        let error = match world.rank() {
            0 => world.gather(0, &[1_u8]).map(drop).unwrap_err(),
            1 => world.gather(1, &[1_u8]).map(drop).unwrap_err(),
            _ => world.all_to_all(&[1_u8, 2, 3]).map(drop).unwrap_err(),
        };
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        let error = match world.rank() {
            0 => world.all_reduce(1_u8, Op::Sum).unwrap_err(),
            _ => world.all_reduce(1_u8, |a, b| a + b).unwrap_err(),
        };
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        // And all goes on.
        assert_eq!(world.all_to_all(&[5_u8; 3])?, [5; 3]);
        Ok(())
    });
}

/// An object that cannot be encoded.
#[derive(Debug)]
struct Stubborn(bool);

impl serde::Serialize for Stubborn {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            true => Err(serde::ser::Error::custom("will not")),
            false => serializer.serialize_u8(7),
        }
    }
}

impl<'de> serde::Deserialize<'de> for Stubborn {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <u8 as serde::Deserialize>::deserialize(deserializer).map(|_| Self(false))
    }
}

/// What one rank cannot do is an error on all, and nobody waits.
#[test]
fn arguments_that_are_wrong_on_one_rank() {
    on_ranks(3, |world| {
        let me = world.rank() == 1;
        // Who need not wait for the others hears of it in the next collective.
        let broadcast = world.broadcast(if me { 9 } else { 0 }, 1).map(drop);
        let barrier = world.barrier();
        let errors = [
            broadcast.and(barrier),
            world.gather(if me { 3 } else { 0 }, &[1]).map(drop),
            world.all_gather_obj(&Stubborn(me)).map(drop),
            world.gather_obj(0, &Stubborn(me)).map(drop),
            world.broadcast_obj(1, Some(&Stubborn(me))).map(drop),
            world
                .scatter_obj(1, Some(&[Stubborn(me), Stubborn(false), Stubborn(false)]))
                .map(drop),
            world.reduce(usize::from(me), 1, Op::Sum).map(drop),
        ];
        for (number, result) in errors.into_iter().enumerate() {
            let error = result.unwrap_err();
            let kinds = [ErrorKind::InvalidArgument, ErrorKind::Mismatch];
            assert!(kinds.contains(&error.kind()), "{number}: {error}");
        }
        assert_eq!(world.all_reduce(1, Op::Sum)?, 3);
        // What a rank that is not the root would give is not looked at.
        let one = world.broadcast_obj(0, Some(&Stubborn(me)))?;
        assert!(!one.0);
        Ok(())
    });
}

fn any_length(world: &World) -> pgas::Result<()> {
    // From long to short and back, so that each method follows each.
    let lens = collectives::LENS;
    for &len in lens.iter().rev().chain(&lens) {
        collectives::all(world, len)?;
    }
    Ok(())
}

#[test]
fn any_length_on_1_rank() {
    on_ranks(1, any_length);
}

#[test]
fn any_length_on_2_ranks() {
    on_ranks(2, any_length);
}

#[test]
fn any_length_on_3_ranks() {
    on_ranks(3, any_length);
}

#[test]
fn any_length_on_5_ranks() {
    on_ranks(5, any_length);
}

#[test]
fn any_length_in_teams() {
    on_ranks(4, |world| {
        for team in [
            world.split(world.rank() % 2, 0)?,
            world.split(0, -(world.rank() as i64))?,
        ] {
            for len in [5, 100_003, 2_000] {
                collectives::all(&team, len)?;
            }
        }
        Ok(())
    });
}

#[test]
fn a_barrier_that_is_not_waited_for() {
    model::everywhere(3, |world| {
        let (me, size) = (world.rank(), world.size());
        for round in 0..50_usize {
            let array = GlobalArray::<u64>::new(world, size)?;
            array.put((me + 1) % size, round as u64)?;
            let mut first = world.ibarrier()?;
            // A second one, and a message that the last rank waits for before it comes.
            let second = match me {
                0 => {
                    let second = world.ibarrier()?;
                    world.send(size - 1, 1, &[round])?;
                    second
                }
                _ if me == size - 1 => {
                    assert_eq!(world.recv::<usize>(0, 1)?.0, [round]);
                    world.ibarrier()?
                }
                _ => world.ibarrier()?,
            };
            if round % 3 == 0 {
                // Collectives come after them.
                assert_eq!(world.all_reduce(1, Op::Sum)?, size);
                assert!(first.is_done()?);
            }
            first.wait()?;
            assert_eq!(array.get(me)?, round as u64);
            if round % 2 == 0 {
                second.wait()?;
            }
        }
        world.barrier()
    });
}

#[test]
fn nobody_leaves_a_barrier_before_all_have_come() {
    model::everywhere(3, |world| {
        if world.rank() == 2 {
            std::thread::sleep(Duration::from_millis(300));
            return world.ibarrier()?.wait();
        }
        let began = Instant::now();
        let mut barrier = world.ibarrier()?;
        assert!(began.elapsed() < Duration::from_millis(200));
        while !barrier.is_done()? {}
        barrier.wait()?;
        assert!(began.elapsed() > Duration::from_millis(200));
        Ok(())
    });
}

#[test]
fn barriers_of_both_kinds_do_not_go_together() {
    model::everywhere(3, |world| {
        let error = match world.rank() {
            1 => world.barrier().unwrap_err(),
            _ => world.ibarrier()?.wait().unwrap_err(),
        };
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        let text = error.to_string();
        assert!(
            text.contains("called barrier") && text.contains("ibarrier"),
            "{text}"
        );
        world.barrier()
    });
}

#[test]
fn a_rank_that_does_not_come_to_an_ibarrier() {
    let outcome = Ranks::new(3).env("PGAS_TIMEOUT", "1").outcome(|world| {
        world.barrier()?;
        if world.rank() == 1 {
            std::thread::sleep(Duration::from_secs(20));
        }
        let error = world.ibarrier()?.wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        let again = world.barrier().unwrap_err();
        assert!(again.to_string().contains("after a failed"), "{again}");
        Err(error)
    });
    assert!(!outcome.success());
    assert!(outcome.to_string().contains("ibarrier"), "{outcome}");
}
