//! Algorithms on whole arrays that are of different teams, that have to be bounded in memory, or
//! whose way is looked at.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "test numbers are small"
)]

mod model;

use model::folder::Folder;
use model::{everywhere, over_tcp};
use pgas::testing::Ranks;
use pgas::{Dist, ErrorKind, GlobalArray, Team, World};

/// Two teams of the same ranks, in other orders.
fn turned(world: &World) -> pgas::Result<()> {
    let turned = world.split(0, -(world.rank() as i64))?;
    // Rank 0 goes last.
    let shifted = world.split(0, if world.rank() == 0 { 99 } else { 0 })?;
    let teams: [&Team; 3] = [world, &turned, &shifted];
    for len in [0, 1, 3, 4, 1000] {
        let all: Vec<usize> = (0..len).collect();
        for (first, second) in [(0, 1), (1, 0), (1, 2), (0, 2), (2, 2)] {
            let (first, second) = (teams[first], teams[second]);
            for dist in [Dist::Block, Dist::Cyclic] {
                let a = |value: &dyn Fn(usize) -> f64| {
                    GlobalArray::<f64>::builder(first, len)
                        .dist([dist.clone()])
                        .from_fn(value)
                };
                let mut b = GlobalArray::<f64>::builder(second, len)
                    .dist([dist.clone()])
                    .from_fn(|k: usize| k as f64)?;
                let mut mask = GlobalArray::<bool>::builder(second, len)
                    .dist([dist.clone()])
                    .from_fn(|k: usize| k % 3 == 1)?;
                let mut copied = a(&|_| -1.0)?;
                copied.copy_from(&mut b)?;
                let mut zipped = a(&|k| 2.0 * k as f64)?;
                zipped.zip_apply(&mut b, |x, y| 10.0 * x + y)?;
                let mut added = a(&|k| k as f64)?;
                added.axpy(3.0, &mut b)?;
                let right = (0..len).map(|k| 4.0 * (k * k) as f64).sum::<f64>();
                assert_eq!(added.dot(&mut b)?, right);
                let selected = added.select(&mut mask)?;
                world.barrier()?;
                for k in 0..len {
                    assert_eq!(copied.get(k)?, k as f64, "{len} {dist:?}");
                    assert_eq!(zipped.get(k)?, 21.0 * k as f64, "{len} {dist:?}");
                }
                let right = all.iter().filter(|&k| k % 3 == 1).map(|&k| 4.0 * k as f64);
                assert!(selected.get_range(0..selected.len())?.into_iter().eq(right));
                world.barrier()?;
            }
        }
        let mut a = GlobalArray::<f64, 2>::from_fn(world, [len, 3], |[i, j]| (i + 5 * j) as f64)?;
        let mut b = GlobalArray::<f64, 2>::from_fn(&turned, [3, 2], |[i, j]| (2 * i + j) as f64)?;
        let product = a.matmul(&mut b)?;
        world.barrier()?;
        for i in 0..len {
            for j in 0..2 {
                let right: f64 = (0..3).map(|k| ((i + 5 * k) * (2 * k + j)) as f64).sum();
                assert_eq!(product.get([i, j])?, right);
            }
        }
        world.barrier()?;
    }
    Ok(())
}

#[test]
fn teams_in_other_orders() {
    everywhere(2, turned);
    everywhere(4, turned);
}

/// Teams of as many ranks, but of others: whoever is in both is told, and waits for nobody.
#[test]
fn teams_of_other_ranks() {
    everywhere(3, |world| {
        let first = world.subset(world.rank() < 2)?;
        let second = world.subset(world.rank() > 0)?;
        let make = |team: &Option<Team>| {
            team.as_ref()
                .map(|team| GlobalArray::<f64>::from_fn(team, 10, |k| k as f64))
                .transpose()
        };
        let (mut a, mut b) = (make(&first)?, make(&second)?);
        let square = |team: &Option<Team>| {
            let square = |team| GlobalArray::<f64, 2>::new(team, [3, 3]);
            team.as_ref().map(square).transpose()
        };
        let (mut left, mut right) = (square(&first)?, square(&second)?);
        // Which would be moved first, by all of its ranks.
        let cyclic = |team| {
            let builder = GlobalArray::<f64>::builder(team, 10);
            builder.dist([Dist::Cyclic]).build()
        };
        let mut cyclic = first.as_ref().map(cyclic).transpose()?;
        let mask = |team| GlobalArray::<bool>::new(team, 10);
        let mut mask = second.as_ref().map(mask).transpose()?;
        let mut whole = GlobalArray::<f64>::from_fn(world, 10, |k| 100.0 + k as f64)?;
        let refused = |error: Option<pgas::Error>| {
            let error = error.expect("a refusal");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.to_string().contains("ranks"), "{error}");
        };
        if let (Some(a), Some(b)) = (&mut a, &mut b) {
            refused(a.copy_from(b).err());
            refused(a.zip_apply(b, |x, _| x).err());
            refused(a.axpy(1.0, b).err());
            refused(a.dot(b).err());
        }
        if let (Some(cyclic), Some(mask)) = (&mut cyclic, &mut mask) {
            refused(cyclic.select(mask).err());
        }
        if let (Some(left), Some(right)) = (&mut left, &mut right) {
            refused(left.matmul(right).err());
        }
        // And of fewer ranks.
        if let Some(a) = &mut a {
            refused(a.copy_from(&mut whole).err());
            refused(whole.copy_from(a).err());
        }
        world.barrier()?;
        // All of them are as they were, and of use.
        if let Some(a) = &mut a {
            assert_eq!(a.sum()?, 45.0);
        }
        assert_eq!(whole.sum()?, 1045.0);
        if let Some(b) = &mut b {
            assert_eq!(b.sum()?, 45.0);
        }
        world.barrier()
    });
}

/// The most memory that this process has had so far, in MiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() / 1024
}

/// 32 MiB of counts, and elements that would be 16 pieces with counts of their own on each rank.
#[test]
fn a_histogram_of_many_bins_takes_them_once() {
    const BINS: usize = 4 << 20;
    for threads in ["1", "3"] {
        let ranks = Ranks::new(2).env("PGAS_THREADS", threads);
        ranks.run(|world| {
            let mut a = GlobalArray::<u32>::from_fn(world, 1 << 20, |k| k as u32)?;
            let before = peak();
            let counts = a.histogram(BINS, |&k| Some(k as usize * 7919 % BINS))?;
            let grown = peak() - before;
            assert!(grown < 32 * 7, "{grown} MiB for 32 of counts");
            assert_eq!(counts.iter().sum::<u64>(), 1 << 20);
            assert_eq!(counts.iter().filter(|&&count| count == 1).count(), 1 << 20);
            Ok(())
        });
    }
}

#[test]
fn histograms_on_several_threads() {
    let ranks = Ranks::new(2).env("PGAS_THREADS", "3");
    ranks.run(|world| {
        let mut a = GlobalArray::<u64>::from_fn(world, 300_000, |k| k as u64)?;
        for bins in [1, 7, 1 << 16, (1 << 16) + 1, 100_000] {
            let of = |k: u64| (!k.is_multiple_of(5)).then_some((k * k) as usize % bins);
            let mut right = vec![0; bins];
            (0..300_000).filter_map(of).for_each(|bin| right[bin] += 1);
            assert_eq!(a.histogram(bins, |&k| of(k))?, right, "{bins}");
            let error = a.histogram(bins, |&k| Some((k as usize).min(bins)));
            let error = error.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::OutOfBounds);
            let outside = (300_000_usize).saturating_sub(bins);
            let text = format!("{outside} elements belong to no bin of {bins}");
            assert_eq!(error.to_string(), text);
        }
        Ok(())
    });
}

#[test]
fn too_many_bins_are_refused() {
    everywhere(3, |world| {
        let mut a = GlobalArray::<u64>::from_fn(world, 100, |k| k as u64)?;
        for bins in [usize::MAX, usize::MAX / 8, 1 << 60] {
            let error = a.histogram(bins, |_| None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NoRoom, "{error}");
        }
        // On one rank only.
        let bins = if world.rank() == 1 { usize::MAX } else { 5 };
        let error = a.histogram(bins, |_| None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoRoom, "{error}");
        assert_eq!(a.histogram(2, |x| Some((x % 2) as usize))?, [50, 50]);
        Ok(())
    });
}

/// Several pieces on several threads: the first of equal ones, in the order of indices.
#[test]
fn places_of_the_least_and_the_greatest() {
    for threads in ["1", "3"] {
        let ranks = Ranks::new(2).env("PGAS_THREADS", threads);
        ranks.run(|world| {
            let value = |k: usize| (k * 7919 % 70_001) as f64;
            for (len, dist) in [(200_000, Dist::Block), (150_000, Dist::Cyclic)] {
                let mut a = GlobalArray::<f64>::builder(world, len)
                    .dist([dist])
                    .from_fn(value)?;
                let place = |best: f64| (0..len).position(|k| value(k) == best).unwrap();
                assert_eq!(a.arg_min()?, Some(([place(0.0)], 0.0)));
                assert_eq!(a.arg_max()?, Some(([place(70_000.0)], 70_000.0)));
                let mut mask = a.map(|x| x % 3.0 == 0.0)?;
                let kept = a.select(&mut mask)?;
                let right = (0..len).map(value).filter(|x| x % 3.0 == 0.0);
                assert!(kept.get_range(0..kept.len())?.into_iter().eq(right));
                if world.rank() == 1 {
                    a.put(len - 5, f64::NAN)?;
                    a.put(len - 2, f64::NAN)?;
                }
                world.barrier()?;
                assert_eq!(a.arg_min()?.map(|found| found.0), Some([len - 5]));
                assert_eq!(a.arg_max()?.map(|found| found.0), Some([len - 5]));
            }
            let mut plane = GlobalArray::<f64, 2>::builder(world, [400, 300])
                .halo([1, 1])
                .from_fn(|[i, j]| value(i * 300 + j))?;
            let place = (0..120_000).position(|k| value(k) == 70_000.0).unwrap();
            let found = plane.arg_max()?;
            assert_eq!(found, Some(([place / 300, place % 300], 70_000.0)));
            Ok(())
        });
    }
}

/// Two million elements of one byte on each rank, whose indices would be 48 MiB.
#[test]
fn elements_are_moved_in_bounded_pieces() {
    let folder = Folder::new("bounded");
    let body = |world: &World| {
        let shape = [128, 256, 256];
        let value = |[i, j, k]: [usize; 3]| (i * 7 + j * 3 + k) as u8;
        let path = folder.file("array");
        let before = peak();
        let mut grid = GlobalArray::<u8, 3>::builder(world, shape)
            .grid([2, 2, 1])
            .from_fn(value)?;
        let mut rows = grid.redistribute([Dist::Block, Dist::Whole, Dist::Whole])?;
        let mut odd = grid.redistribute([Dist::Whole, Dist::Cyclic, Dist::BlockCyclic(32)])?;
        rows.fill(0)?;
        rows.copy_from(&mut odd)?;
        grid.fill(1)?;
        grid.copy_from(&mut rows)?;
        grid.checkpoint(&path)?;
        odd.fill(2)?;
        odd.read_checkpoint(&path)?;
        let grown = peak() - before;
        // All three arrays are mapped: 24 MiB.
        assert!(grown < 24 + 20, "{grown} MiB");
        let sum = |array: &mut GlobalArray<u8, 3>| array.map(u64::from)?.sum();
        // Values repeat after 256 indices of the last dimension: all bytes are there as often.
        let right = (0..256).sum::<u64>() * (128 * 256);
        assert_eq!((sum(&mut grid)?, sum(&mut odd)?), (right, right));
        for array in [&grid, &odd, &rows] {
            let some: Vec<[usize; 3]> = (0..1000)
                .map(|k| [k * 31 % 128, k * 17 % 256, k * 101 % 256])
                .collect();
            let values = array.gather(&some)?;
            assert!(values.into_iter().eq(some.into_iter().map(value)));
        }
        world.barrier()
    };
    folder.ranks(4).run(body);
}

/// Whatever the keys, each rank has as many elements after a sort as before, in order, and none has
/// more than another by more than one.
#[test]
fn parts_stay_balanced() {
    everywhere(4, |world| {
        const LEN: usize = 40_001;
        let keys: [fn(usize) -> u32; 4] = [
            // All equal, all on one rank's side, a few large ones, in falling order.
            |_| 7,
            |k| (k / 39_000) as u32,
            |k| {
                if k % 1000 == 3 {
                    u32::MAX - k as u32
                } else {
                    0
                }
            },
            |k| (LEN - k) as u32,
        ];
        for key in keys {
            let mut a = GlobalArray::<u32>::from_fn(world, LEN, key)?;
            let before = a.local_range();
            assert!(before.len() == LEN / 4 || before.len() == LEN / 4 + 1);
            a.sort()?;
            assert_eq!(a.local_range(), before);
            let mut right: Vec<u32> = (0..LEN).map(key).collect();
            right.sort_unstable();
            let view = a.read()?;
            assert_eq!(*view, right[before]);
            view.close()?;
        }
        Ok(())
    });
}

/// Batches of 1,024, two of them asked for before the first element, and a third with it.
#[test]
fn elements_come_ahead_in_batches() {
    const LEN: usize = 10_000;
    let ranks = over_tcp(3).env("PGAS_STATS", "1");
    let outcome = ranks.outcome(|world| {
        // All of them are rank 0's.
        let a = GlobalArray::<u64>::builder(world, LEN)
            .dist([Dist::Irregular(vec![LEN, 0, 0])])
            .from_fn(|k: usize| k as u64)?;
        if world.rank() == 1 {
            let all: pgas::Result<Vec<u64>> = a.iter(0..LEN)?.collect();
            assert!(all?.into_iter().eq(0..LEN as u64));
        }
        if world.rank() == 2 {
            let mut some = a.iter(5..LEN)?;
            assert_eq!(some.next().transpose()?, Some(5));
        }
        world.barrier()
    });
    assert!(outcome.success(), "{outcome}");
    let operations = |rank: usize| {
        let stats = outcome.stats[rank].as_ref().unwrap();
        let with_owner = stats.traffic.iter().find(|one| one.rank == 0);
        with_owner.map(|one| (one.operations, one.bytes))
    };
    assert_eq!(
        operations(1),
        Some((LEN.div_ceil(1024) as u64, 8 * LEN as u64))
    );
    assert_eq!(operations(2), Some((3, 8 * 3 * 1024)));
}
