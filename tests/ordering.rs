//! C11: what is announced after a flush and a synchronisation is there.

use pgas::testing::on_ranks;
use pgas::{GlobalArray, World};
use std::time::{Duration, Instant};

/// Elements of a message: from one to a megabyte.
const SIZES: [(usize, u64); 6] = [
    (1, 300),
    (8, 300),
    (64, 300),
    (2048, 100),
    (7500, 100),
    (131_072, 8),
];

/// The writer fills its neighbour's shard, then a barrier; the neighbour looks at its own memory.
#[test]
fn data_is_there_after_a_barrier() {
    on_ranks(4, |world| {
        for (count, rounds) in SIZES {
            let mut array = GlobalArray::<u64>::new(world, count * 4)?;
            let target = array.range_of((world.rank() + 1) % 4);
            for round in 1..=rounds {
                array.put_range(target.start, &vec![round; target.len()])?;
                let view = array.local()?; // a barrier
                assert!(
                    view.iter().all(|&value| value == round),
                    "{count}: round {round}"
                );
            }
        }
        Ok(())
    });
}

/// Data, flush, then a flag in another array: who sees the flag sees the data.
fn flagged(world: &World) -> pgas::Result<()> {
    let peer = world.rank() ^ 1;
    for (count, rounds) in SIZES {
        let data = GlobalArray::<u64>::new(world, count * world.size())?;
        let flags = GlobalArray::<u64>::new(world, world.size())?;
        let (mine, theirs) = (data.local_range(), data.range_of(peer));
        for round in 1..=rounds {
            data.put_range(theirs.start, &vec![round; theirs.len()])?;
            data.flush()?;
            flags.put(peer, round)?;
            flags.flush()?;
            let until = Instant::now() + Duration::from_secs(20);
            while flags.get(world.rank())? < round {
                assert!(Instant::now() < until, "no flag");
                std::thread::yield_now();
            }
            let seen = data.get_range(mine.clone())?;
            assert!(
                seen.iter().all(|&value| value >= round),
                "{count}: round {round}"
            );
            world.barrier()?;
        }
    }
    Ok(())
}

#[test]
fn data_is_there_when_the_flag_is() {
    on_ranks(2, flagged);
    on_ranks(4, flagged);
}

/// A rank's own operations on one element happen in program order, without a flush.
#[test]
fn a_rank_reads_its_own_writes() {
    on_ranks(3, |world| {
        let array = GlobalArray::<u64>::new(world, 30)?;
        for index in (0..30).filter(|index| index % 3 == world.rank()) {
            for value in 0..200 {
                array.put(index, value)?;
                if value % 3 == 0 {
                    array.put(index, value + 1000)?;
                    assert_eq!(array.fetch_add(index, 1)?, value + 1000);
                    assert_eq!(array.get(index)?, value + 1001);
                } else {
                    assert_eq!(array.get(index)?, value);
                }
            }
        }
        Ok(())
    });
}

/// Large and small puts to the same place keep their order too.
#[test]
fn a_small_put_after_a_large_one_wins() {
    on_ranks(2, |world| {
        let count = 300_000;
        let array = GlobalArray::<u32>::new(world, 2 * count)?;
        let theirs = array.range_of(1 - world.rank());
        for round in 1..20 {
            array.put_range(theirs.start, &vec![round; count])?;
            array.put(theirs.start + count - 1, round + 100)?;
            let last = array.get_range(theirs.end - 2..theirs.end)?;
            assert_eq!(last, [round, round + 100]);
        }
        Ok(())
    });
}

/// Puts of one thread while another flushes are not forgotten.
#[test]
fn puts_of_two_threads_are_all_there_after_a_barrier() {
    on_ranks(2, |world| {
        let count = 200;
        let mut array = GlobalArray::<u64>::new(world, 2 * count)?;
        let theirs = array.range_of(1 - world.rank());
        for round in 1..=30 {
            std::thread::scope(|scope| {
                let array = &array;
                let start = theirs.start;
                // Each get of what was just put flushes.
                scope.spawn(move || {
                    for _ in 0..count {
                        array.put(start, round).unwrap();
                        assert_eq!(array.get(start).unwrap(), round);
                    }
                });
                scope.spawn(move || {
                    for index in start + 1..start + count {
                        array.put(index, round).unwrap();
                    }
                });
            });
            let view = array.local()?;
            assert!(
                view.iter().all(|&value| value == round),
                "round {round}: {view:?}"
            );
        }
        Ok(())
    });
}
