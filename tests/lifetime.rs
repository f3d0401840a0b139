//! C15: ranks drop their arrays when and in which order they like.

#![expect(clippy::cast_possible_truncation, reason = "test numbers are small")]

use pgas::testing::{Ranks, on_ranks};
use pgas::{ErrorKind, GlobalArray, World};
use std::sync::Arc;
use std::time::Duration;

/// One rank drops at once, the others go on reading its shard.
fn one_drops_first(world: &World) -> pgas::Result<()> {
    let len = 1000;
    let array = GlobalArray::<u64>::from_fn(world, len, |index| index as u64 + 1)?;
    if world.rank() == 1 {
        drop(array);
        // What takes the memory's place, were it unmapped.
        let _other = vec![u64::MAX; 1 << 20];
    } else {
        for _ in 0..10 {
            for index in 0..len {
                assert_eq!(array.get(index)?, index as u64 + 1);
            }
        }
    }
    // The next array is made while the others still hold the first.
    let next = GlobalArray::<u64>::from_fn(world, len, |_| 7)?;
    assert!(next.get_range(0..len)?.iter().all(|&value| value == 7));
    Ok(())
}

#[test]
fn one_rank_of_2_drops_first() {
    on_ranks(2, one_drops_first);
}
#[test]
fn one_rank_of_4_drops_first() {
    on_ranks(4, one_drops_first);
}

#[test]
fn every_rank_in_its_own_order() {
    on_ranks(4, |world| {
        for round in 0..20 {
            let a = GlobalArray::<u32>::from_fn(world, 50, |index| index as u32 + round)?;
            let b = GlobalArray::<u32>::from_fn(world, 60, |index| index as u32 + round)?;
            assert_eq!(a.get(49)? + 10, b.get(59)?);
            if world.rank() % 2 == 0 {
                drop(a);
                drop(b);
            } else {
                drop(b);
                drop(a);
            }
        }
        Ok(())
    });
}

#[test]
fn one_rank_keeps_a_clone() {
    on_ranks(3, |world| {
        let array = Arc::new(GlobalArray::<u64>::from_fn(world, 30, |index| {
            index as u64
        })?);
        if world.rank() == 0 {
            let clone = array.clone();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(500));
                assert_eq!(clone.get(29).unwrap(), 29);
            })
            .join()
            .unwrap();
        }
        drop(array);
        // Made while rank 0 still holds its clone.
        let other = GlobalArray::<u64>::new(world, 30)?;
        world.barrier()?;
        drop(other);
        Ok(())
    });
}

fn segments() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().count()
}

/// Two hundred arrays without a barrier in user code: memory and mappings do not grow.
#[test]
fn create_put_drop_in_a_loop() {
    on_ranks(2, |world| {
        let mut before = 0;
        for round in 0..200_u64 {
            let array = GlobalArray::<u64>::new(world, 1000)?;
            array.put(999 - world.rank(), round)?;
            assert_eq!(array.get(999 - world.rank())?, round);
            if round == 20 {
                before = segments();
            }
        }
        let after = segments();
        assert!(
            after <= before + 20,
            "{before} mappings after 20 rounds, {after} after 200"
        );
        Ok(())
    });
}

#[test]
fn close_frees_on_all_ranks() {
    on_ranks(3, |world| {
        // 64 rounds of 64 MiB: more than is there, were they not freed.
        for round in 0..64_u64 {
            let array = GlobalArray::<u64>::new(world, 1 << 23)?;
            array.put((1 << 23) - 1 - world.rank(), round)?;
            array.close()?;
        }
        Ok(())
    });
}

/// What still works with an array that outlives its world, and what is refused at once.
#[test]
fn an_array_that_outlives_the_world() {
    let outcome = Ranks::new(2).processes(|| {
        let array = World::run(|world| {
            let array = GlobalArray::<u64>::from_fn(world, 10, |index| index as u64)?;
            world.barrier()?;
            Ok::<_, pgas::Error>(array)
        })?;
        let mine = array.local_range().start;
        assert_eq!(array.get(mine)?, mine as u64, "its own memory is there");
        // The peer may be gone: what was never mapped is not mapped now.
        let error = array.get(9 - mine).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
        assert_eq!(array.close().unwrap_err().kind(), ErrorKind::Closed);
        Ok(())
    });
    let text = String::from_utf8_lossy(&outcome.stderr).into_owned();
    assert!(outcome.success(), "{outcome}: {text}");
}

/// Two threads make the same collective call at once, in any order on any rank: each call is one
/// call on all ranks, of however many messages, and each array is one array.
#[test]
fn collectives_of_two_threads_do_not_mix() {
    fn twice(call: impl Fn() + Sync) {
        std::thread::scope(|scope| {
            scope.spawn(&call);
            scope.spawn(&call);
        });
    }
    on_ranks(3, |world| {
        for _ in 0..20 {
            twice(|| {
                let mine = [world.rank() as u32; 40_000];
                let all = world.all_gather_slice(&mine).unwrap();
                let right = |(k, value): (usize, &u32)| *value as usize == k / 40_000;
                assert!(all.iter().enumerate().all(right));
            });
            twice(|| {
                let array = GlobalArray::<u64>::new(world, 30).unwrap();
                array.fetch_add(29, 1).unwrap();
                assert!((1..=3).contains(&array.get(29).unwrap()));
            });
        }
        Ok(())
    });
}

/// Mappings, descriptors and kilobytes of memory of this process.
fn footprint() -> [usize; 3] {
    let lines = |path| std::fs::read_to_string(path).map_or(0, |text| text.lines().count());
    let descriptors = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let resident = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    [lines("/proc/self/maps"), descriptors, resident.unwrap_or(0)]
}

/// Creating and dropping takes nothing for good, for small arrays and for large ones.
#[test]
fn ten_thousand_arrays_one_after_another() {
    on_ranks(2, |world| {
        let cycle = |count: usize, len: usize| -> pgas::Result<()> {
            for round in 0..count {
                let array = GlobalArray::<u64>::new(world, len)?;
                array.put(len - 1 - world.rank(), round as u64 + 1)?;
                if round % 2 == 0 {
                    array.close()?;
                }
            }
            Ok(())
        };
        // Once, until everything is warm.
        cycle(200, 2)?;
        cycle(50, 10_000)?;
        let before = footprint();
        cycle(9_000, 2)?;
        cycle(1_000, 10_000)?;
        let after = footprint();
        for ((what, before), (after, may_grow)) in ["mappings", "descriptors", "KiB"]
            .iter()
            .zip(before)
            .zip(after.into_iter().zip([8, 4, 8 << 10]))
        {
            assert!(after <= before + may_grow, "{before} {what} became {after}");
        }
        Ok(())
    });
}

/// Small arrays share memory: thousands that live at once cost a few segments, and each is its
/// own, zero at first.
#[test]
fn thousands_of_small_arrays_at_once() {
    on_ranks(3, |world| {
        let before = footprint();
        let mut arrays = Vec::new();
        for number in 0..2_000_u32 {
            let array = GlobalArray::<u32>::new(world, 3)?;
            assert_eq!(array.get(world.rank())?, 0);
            array.put(world.rank(), number * 3 + world.rank() as u32)?;
            arrays.push(array);
        }
        world.barrier()?;
        for (number, array) in arrays.iter().enumerate() {
            for index in 0..3 {
                assert_eq!(array.get(index)? as usize, number * 3 + index);
            }
        }
        let after = footprint();
        // Own and peers', for each shared segment.
        assert!(after[0] < before[0] + 30, "{} mappings", after[0]);
        assert!(after[1] < before[1] + 30, "{} descriptors", after[1]);
        // Every other goes; what takes its place is zero, though it held something.
        let mut number = 0;
        arrays.retain(|_| {
            number += 1;
            number % 2 == 0
        });
        for _ in 0..1_000 {
            let array = GlobalArray::<u16, 2>::new(world, [3, 5])?;
            assert_eq!(array.get([world.rank(), 4])?, 0);
            array.put([world.rank(), 4], 1)?;
            arrays.push(GlobalArray::new(world, 3)?);
        }
        for array in &arrays[arrays.len() - 1_000..] {
            assert_eq!(array.get(2 - world.rank())?, 0);
        }
        world.barrier()?;
        Ok(())
    });
}
