//! Atomic operations: nothing is lost, neighbours are untouched, whatever the width (C07, C09).

#![expect(clippy::cast_possible_truncation, reason = "test numbers are small")]

use pgas::testing::{Ranks, on_ranks};
use pgas::{AtomicBits, AtomicElement, AtomicNumber, GlobalArray, Op, World};
use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Runs `body` over the default transports, and where no memory is mapped, with the number of
/// times it is to do things.
fn everywhere(ranks: usize, body: impl Fn(&World, usize) -> pgas::Result<()>) {
    // A message and its answer take a thousand times as long as an instruction.
    let apart = std::env::var("UCX_TLS").is_ok_and(|transports| transports.contains("tcp"));
    on_ranks(ranks, |world| body(world, if apart { 150 } else { 10_000 }));
    over_tcp(ranks).run(|world| body(world, 150));
}

fn over_tcp(ranks: usize) -> Ranks {
    Ranks::new(ranks).env("UCX_TLS", "tcp,self")
}

/// A type's numbers, and what its width can hold.
trait Count: AtomicElement + PartialEq + Debug {
    /// What was counted, modulo the width.
    fn of(count: usize) -> Self;
    fn less_one(self) -> Self;
}

macro_rules! count {
    ($($type:ty: $less_one:expr;)*) => {$(
        impl Count for $type {
            #[expect(clippy::allow_attributes, reason = "some expansions lose nothing")]
            #[allow(trivial_numeric_casts, clippy::cast_precision_loss, clippy::cast_possible_wrap, reason = "small, or modulo the width")]
            fn of(count: usize) -> Self {
                count as $type
            }

            fn less_one(self) -> Self {
                $less_one(self)
            }
        }
    )*};
}
count! {
    u8: |value: u8| value.wrapping_sub(1);
    i16: |value: i16| value.wrapping_sub(1);
    i32: |value: i32| value.wrapping_sub(1);
    u32: |value: u32| value.wrapping_sub(1);
    i64: |value: i64| value.wrapping_sub(1);
    u64: |value: u64| value.wrapping_sub(1);
    usize: |value: usize| value.wrapping_sub(1);
    f32: |value: f32| value - 1.0;
    f64: |value: f64| value - 1.0;
}

/// Rank 3 writes the elements beside `target`; all do `change`.
fn beside_writers<T: Count>(
    world: &World,
    array: &GlobalArray<T>,
    target: usize,
    times: usize,
    mut change: impl FnMut(usize) -> pgas::Result<()>,
) -> pgas::Result<()> {
    for round in 0..times {
        change(round)?;
        if world.rank() == 3 {
            array.put(target - 1, T::of(round))?;
            array.put(target + 1, T::of(round + 77))?;
        }
    }
    world.barrier()?;
    assert_eq!(array.get(target - 1)?, T::of(times - 1));
    assert_eq!(array.get(target + 1)?, T::of(times - 1 + 77));
    Ok(())
}

/// C07: all ranks add to one element by every means, the next ones are written meanwhile.
fn adds<T: Count + AtomicNumber>(world: &World, times: usize) -> pgas::Result<()> {
    let array = GlobalArray::<T>::new(world, 64)?;
    // 33 is 4 modulo 8 bytes for 4-byte elements.
    for target in [1, 33] {
        let mut fetched = Vec::new();
        beside_writers(world, &array, target, times, |_| {
            fetched.push(array.fetch_add(target, T::of(1))?);
            Ok(())
        })?;
        let all = times * world.size();
        assert_eq!(array.get(target)?, T::of(all));
        if size_of::<T>() > 1 {
            let fetched = world.all_gather_slice(&fetched)?;
            let mut bytes: Vec<_> = fetched.iter().map(bytemuck::bytes_of).collect();
            bytes.sort_unstable();
            bytes.dedup();
            assert_eq!(bytes.len(), all, "each value is fetched once");
        }
        world.barrier()?;

        // Down again, by compare-and-exchange.
        beside_writers(world, &array, target, times, |_| {
            let mut seen = array.get(target)?;
            loop {
                let before = array.compare_exchange(target, seen, seen.less_one())?;
                if before == seen {
                    return Ok(());
                }
                seen = before;
            }
        })?;
        assert_eq!(array.get(target)?, T::of(0), "compare_exchange");
        world.barrier()?;

        beside_writers(world, &array, target, times, |_| {
            array.fetch_sub(target, T::of(1)).map(drop)
        })?;
        if world.rank() == 0 {
            for _ in 0..all {
                array.fetch_add(target, T::of(1))?;
            }
        }
        world.barrier()?;
        assert_eq!(array.get(target)?, T::of(0), "fetch_sub");
        world.barrier()?;
    }
    assert_eq!(array.get(5)?, T::of(0));
    world.barrier()
}

#[test]
fn adds_are_not_lost_and_do_not_spill() {
    everywhere(4, |world, times| {
        adds::<u8>(world, times)?;
        adds::<i16>(world, times)?;
        adds::<i32>(world, times)?;
        adds::<u32>(world, times)?;
        adds::<i64>(world, times)?;
        adds::<u64>(world, times)?;
        adds::<usize>(world, times)?;
        adds::<f32>(world, times)?;
        adds::<f64>(world, times)
    });
}

/// The flags that ranks set, clear and flip.
#[test]
fn flags_are_bytes_of_their_own() {
    everywhere(4, |world, times| {
        let array = GlobalArray::<bool>::new(world, 64)?;
        let odd = times % 2 == 1;
        for target in [1, 33] {
            let mut set = 0_u64;
            for round in 0..times {
                set += u64::from(array.fetch_xor(target, true)?);
                if world.rank() == 3 {
                    array.put(target - 1, round % 2 == 0)?;
                    array.put(target + 1, round % 2 == 1)?;
                }
            }
            let set = world.all_reduce(set, Op::Sum)?;
            assert_eq!(set as usize, 4 * times / 2, "every other one found it set");
            assert!(!array.get(target)?);
            assert_eq!(array.get(target - 1)?, odd);
            assert_ne!(array.get(target + 1)?, odd);

            // A lock of one byte protects a count in another array.
            let count = GlobalArray::<u64>::new(world, 4)?;
            for _ in 0..times / 10 {
                while array.compare_exchange(target, false, true)? {
                    std::thread::yield_now();
                }
                count.put(2, count.get(2)? + 1)?;
                count.flush()?;
                assert!(array.swap(target, false)?);
            }
            world.barrier()?;
            assert_eq!(count.get(2)?, 4 * (times as u64 / 10));
            assert!(!array.fetch_or(target, false)? && !array.fetch_and(target, true)?);
            world.barrier()?;
        }
        Ok(())
    });
}

fn extremes<T: Count + AtomicNumber>(world: &World, times: usize) -> pgas::Result<()> {
    let array = GlobalArray::<T>::from_fn(world, 9, |_| T::of(50))?;
    for k in 0..times {
        array.fetch_max(7, T::of(50 + (k * 7 + world.rank() * 13) % 70))?;
        array.fetch_min(8, T::of((k * 11 + world.rank() * 5) % 50))?;
    }
    world.barrier()?;
    let all = (0..4).flat_map(|rank| (0..times).map(move |k| (k, rank)));
    let max = all
        .clone()
        .map(|(k, rank)| 50 + (k * 7 + rank * 13) % 70)
        .max();
    let min = all.map(|(k, rank)| (k * 11 + rank * 5) % 50).min();
    assert_eq!(array.get(7)?, T::of(max.unwrap()));
    assert_eq!(array.get(8)?, T::of(min.unwrap()));
    assert_eq!(array.get(6)?, T::of(50));
    world.barrier()
}

#[test]
fn minima_and_maxima() {
    everywhere(4, |world, times| {
        let times = times / 5;
        extremes::<u8>(world, times)?;
        extremes::<i16>(world, times)?;
        extremes::<u32>(world, times)?;
        extremes::<i64>(world, times)?;
        extremes::<f32>(world, times)?;
        extremes::<f64>(world, times)?;

        // Signed and unsigned; NaN wins, and zeros have an order.
        let signed = GlobalArray::<i8>::new(world, 4)?;
        let zeros = GlobalArray::<f64>::new(world, 8)?;
        signed.fetch_min(3, -1)?;
        zeros.fetch_min(6, -0.0)?;
        zeros.fetch_max(7, if world.rank() == 2 { f64::NAN } else { 1.0 })?;
        world.barrier()?;
        assert_eq!(signed.get(3)?, -1);
        assert!(zeros.get(6)?.is_sign_negative() && zeros.get(7)?.is_nan());
        world.barrier()?;
        // By bits: a NaN is found, and +0 is not -0.
        if world.rank() == 0 {
            assert!(zeros.compare_exchange(7, f64::NAN, 5.0)?.is_nan());
            assert!(zeros.compare_exchange(6, 0.0, 5.0)?.is_sign_negative());
            assert_eq!((zeros.get(7)?, zeros.get(6)?), (5.0, 0.0));
        }
        world.barrier()
    });
}

/// Bits of one element that ranks own one by one.
fn bits<T>(world: &World, one: [T; 4], all: T, times: usize) -> pgas::Result<()>
where
    T: AtomicBits + PartialEq + Debug + Default + std::ops::Not<Output = T>,
{
    let array = GlobalArray::<T>::new(world, 13)?;
    let mine = one[world.rank()];
    for _ in 0..times {
        array.fetch_or(11, mine)?;
        array.fetch_and(11, !mine)?;
        array.fetch_xor(11, mine)?;
        array.fetch_xor(11, mine)?;
    }
    array.fetch_or(11, mine)?;
    world.barrier()?;
    assert_eq!(array.get(11)?, all);
    assert_eq!(
        (array.get(10)?, array.get(12)?),
        (T::default(), T::default())
    );
    world.barrier()
}

#[test]
fn bits_of_one_element() {
    everywhere(4, |world, times| {
        let times = times / 5;
        bits::<u8>(world, [1, 2, 16, 128], 147, times)?;
        bits::<i16>(world, [1, 2, 16, 128], 147, times)?;
        bits::<i32>(world, [1, 2, 16, 128], 147, times)?;
        bits::<u64>(world, [1, 2, 16, 1 << 63], 19 + (1 << 63), times)
    });
}

/// Every value that goes in comes out once.
fn handed_on<T: Count>(world: &World, times: usize) -> pgas::Result<()> {
    let array = GlobalArray::<T>::new(world, 3)?;
    let mut out = Vec::new();
    for k in 0..times {
        out.push(array.swap(2, T::of(world.rank() * times + k))?);
    }
    world.barrier()?;
    out.push(array.get(2)?);
    let mut seen = world.all_gather_slice(&out[..times])?;
    seen.push(out[times]);
    let sorted = |mut values: Vec<T>| {
        values.sort_unstable_by_key(|value| bytemuck::bytes_of(value).to_vec());
        values
    };
    let mut put: Vec<T> = (0..4 * times).map(T::of).collect();
    put.push(T::of(0));
    assert_eq!(sorted(seen), sorted(put));
    world.barrier()
}

#[test]
fn swaps_hand_values_on() {
    everywhere(4, |world, times| {
        handed_on::<u8>(world, 60)?;
        handed_on::<i16>(world, times / 2)?;
        handed_on::<u32>(world, times / 2)?;
        handed_on::<u64>(world, times / 2)?;
        handed_on::<f32>(world, times / 2)?;
        handed_on::<f64>(world, times / 2)
    });
}

/// The histogram of C09: the bins add up, and equal a serial count.
#[test]
fn a_histogram_equals_a_serial_count() {
    on_ranks(4, |world| {
        let bins = 1000;
        let samples = |rank: usize| {
            Random::new(rank)
                .take(5_000)
                .map(move |r| (r % 1000) as usize)
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

/// A random stream of numbers for each rank.
struct Random(u64);

impl Random {
    fn new(rank: usize) -> Self {
        Self(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(rank as u64 + 1))
    }
}

impl Iterator for Random {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        Some(self.0)
    }
}

/// C09: a stream of exclusive ors, done twice, leaves the table as it was.
fn twice(world: &World, updates: usize) -> pgas::Result<()> {
    let len = 1 << 12;
    let wide = GlobalArray::<u64>::from_fn(world, len, |index| index as u64)?;
    let narrow = GlobalArray::<u8>::from_fn(world, len, |index| index as u8)?;
    for pass in 0..2 {
        for random in Random::new(world.rank()).take(updates) {
            let index = (random % len as u64) as usize;
            wide.fetch_xor(index, random)?;
            narrow.fetch_xor(index, (random >> 40) as u8)?;
        }
        world.barrier()?;
        let right = (0..len).filter(|&index| wide.get(index).unwrap() == index as u64);
        assert_eq!(right.count() == len, pass == 1, "after pass {pass}");
        world.barrier()?;
    }
    let narrow = narrow.get_range(0..len)?;
    assert!(
        narrow
            .iter()
            .enumerate()
            .all(|(index, &value)| value == index as u8)
    );
    world.barrier()
}

#[test]
fn a_stream_of_xors_done_twice_leaves_no_trace() {
    on_ranks(4, |world| twice(world, 16_384));
    over_tcp(3).run(|world| twice(world, 400));
}

/// A rank's put, request and get of one element happen in program order, whatever is in between.
fn in_order<T: Count + AtomicNumber>(world: &World) -> pgas::Result<()> {
    let array = GlobalArray::<T>::new(world, 64)?;
    let theirs = array.range_of((world.rank() + 1) % world.size()).start;
    for round in 0..100 {
        array.put(theirs + 3, T::of(round))?;
        assert_eq!(array.fetch_max(theirs + 3, T::of(200))?, T::of(round));
        assert_eq!(array.get(theirs + 3)?, T::of(200));
        array.put_range(theirs, &[T::of(round); 8])?;
        assert_eq!(array.fetch_add(theirs + 7, T::of(1))?, T::of(round));
        assert_eq!(array.get(theirs + 7)?, T::of(round + 1));
        assert_eq!(array.swap(theirs + 7, T::of(9))?, T::of(round + 1));
        array.put(theirs + 7, T::of(10))?;
        assert_eq!(array.get(theirs + 7)?, T::of(10));
    }
    world.barrier()
}

#[test]
fn puts_requests_and_gets_of_one_element_keep_their_order() {
    let test = |world: &World| {
        in_order::<u8>(world)?;
        in_order::<u64>(world)?;
        in_order::<f64>(world)
    };
    on_ranks(2, test);
    over_tcp(2).run(test);
}

/// The owner's service thread answers while the owner computes.
#[test]
fn a_busy_owner_answers_requests() {
    over_tcp(2).run(|world| {
        let array = GlobalArray::<u16>::new(world, 2)?;
        array.fetch_add(1 - world.rank(), 1)?;
        world.barrier()?;
        let start = Instant::now();
        if world.rank() == 0 {
            while start.elapsed() < Duration::from_secs(2) {
                std::hint::spin_loop();
            }
        } else {
            assert_eq!(array.fetch_add(0, 5)?, 1);
            let took = start.elapsed();
            assert!(took < Duration::from_millis(300), "took {took:?}");
        }
        world.barrier()
    });
}

/// A request to a rank that dies ends with the rank's name, not with the time limit.
#[test]
fn a_killed_owner_ends_requests() {
    let start = Instant::now();
    let outcome = over_tcp(2).outcome(|world| {
        let array = GlobalArray::<f32>::new(world, 2)?;
        array.fetch_max(1 - world.rank(), 1.0)?;
        world.barrier()?;
        if world.rank() == 1 {
            std::thread::sleep(Duration::from_millis(200));
            std::process::abort();
        }
        loop {
            array.fetch_max(1, 2.0)?;
        }
    });
    let took = start.elapsed();
    assert!(took < Duration::from_secs(20), "took {took:?}");
    assert!(!outcome.success());
    assert!(outcome.to_string().contains("rank 1"), "{outcome}");
}
