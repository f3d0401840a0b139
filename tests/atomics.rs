//! Atomic operations: nothing is lost, neighbours are untouched.

#![expect(clippy::cast_possible_truncation, reason = "test numbers are small")]

use pgas::testing::on_ranks;
use pgas::{AtomicElement, GlobalArray, Op, World};
use std::fmt::Debug;

const TIMES: usize = 2_000;

/// C07: all ranks add to one element, the next ones are written meanwhile.
fn add_beside_writers<T>(world: &World, one: T, marks: [T; 2]) -> pgas::Result<()>
where
    T: AtomicElement + Debug + TryInto<i64> + Default,
{
    let array = GlobalArray::<T>::new(world, 64)?;
    // 33 is 4 modulo 8 bytes for 4-byte elements.
    for target in [1, 33] {
        let mut last = None;
        for round in 0..TIMES {
            let before = array.fetch_add(target, one)?.try_into().ok().unwrap();
            assert!(last < Some(before), "a rank's own view only grows");
            last = Some(before);
            if world.rank() == 3 {
                array.put(target - 1, marks[round % 2])?;
                array.put(target + 1, marks[(round + 1) % 2])?;
            }
        }
        world.barrier()?;
        let sum: i64 = array.get(target)?.try_into().ok().unwrap();
        assert_eq!(sum, (TIMES * world.size()) as i64);
        assert_eq!(array.get(target - 1)?, marks[1]);
        assert_eq!(array.get(target + 1)?, marks[0]);
        world.barrier()?;
    }
    assert_eq!(array.get(3)?, T::default());
    Ok(())
}

#[test]
fn adds_are_not_lost_and_do_not_spill() {
    on_ranks(4, |world| {
        add_beside_writers::<u32>(world, 1, [0, u32::MAX])?;
        add_beside_writers::<i32>(world, 1, [-1, i32::MIN])?;
        add_beside_writers::<u64>(world, 1, [1 << 63, 7])?;
        add_beside_writers::<i64>(world, 1, [-1, i64::MIN])?;
        add_beside_writers::<usize>(world, 1, [usize::MAX, 0])
    });
}

#[test]
fn compare_exchange_makes_an_increment() {
    on_ranks(4, |world| {
        let array = GlobalArray::<u32>::new(world, 7)?;
        for _ in 0..500 {
            let mut seen = array.get(5)?;
            loop {
                let before = array.compare_exchange(5, seen, seen + 1)?;
                if before == seen {
                    break;
                }
                seen = before;
            }
        }
        world.barrier()?;
        assert_eq!(array.get(5)?, 2000);
        assert_eq!(array.get(4)?, 0);
        Ok(())
    });
}

/// Every value that goes in comes out once.
#[test]
fn swaps_hand_values_on() {
    on_ranks(4, |world| {
        let array = GlobalArray::<u64>::new(world, 3)?;
        let mut sum = 0_u64;
        for k in 0..1000 {
            sum += array.swap(2, world.rank() as u64 * 1000 + k)?;
        }
        let out = world.all_reduce(sum, Op::Sum)?;
        let last = array.get(2)?;
        let all: u64 = (0..4)
            .map(|rank| (0..1000).map(|k| rank * 1000 + k).sum::<u64>())
            .sum();
        assert_eq!(out + last, all);
        Ok(())
    });
}

/// Fetched values are tickets: each is drawn once, over all ranks.
#[test]
fn tickets_are_unique() {
    on_ranks(4, |world| {
        let array = GlobalArray::<u32>::new(world, 4)?;
        let drawn: Vec<u32> = (0..500)
            .map(|_| array.fetch_add(3, 1))
            .collect::<pgas::Result<_>>()?;
        let mut all = world.all_gather_slice(&drawn)?;
        all.sort_unstable();
        assert!(all.into_iter().eq(0..2000));
        Ok(())
    });
}

/// The histogram of C09: the bins add up, and equal a serial count.
#[test]
fn a_histogram_equals_a_serial_count() {
    on_ranks(4, |world| {
        let bins = 1000;
        let samples = |rank: usize| {
            let mut state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(rank as u64 + 1);
            (0..5_000).map(move |_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state % bins as u64) as usize
            })
        };
        let counts = GlobalArray::<u64>::new(world, bins)?;
        for bin in samples(world.rank()) {
            counts.fetch_add(bin, 1)?;
        }
        world.barrier()?;
        let mut serial = vec![0; bins];
        (0..4).flat_map(samples).for_each(|bin| serial[bin] += 1);
        assert_eq!(counts.get_range(0..bins)?, serial);
        Ok(())
    });
}
