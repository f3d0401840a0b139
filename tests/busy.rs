//! C13: a rank that computes, sleeps or waits for input answers all the same.

use pgas::testing::on_ranks;
use pgas::{GlobalArray, World};
use std::time::{Duration, Instant};

const BUSY: Duration = Duration::from_secs(3);
/// What one operation may take: far below BUSY, far above what it should.
const SOON: Duration = Duration::from_millis(300);

fn timed<R>(what: &str, operation: impl FnOnce() -> pgas::Result<R>) -> pgas::Result<R> {
    let started = Instant::now();
    let result = operation()?;
    let taken = started.elapsed();
    assert!(taken < SOON, "{what} took {taken:?}");
    Ok(result)
}

fn served(world: &World, warm: bool, busy: impl FnOnce()) -> pgas::Result<()> {
    let count = 8192;
    let array = GlobalArray::<u64>::from_fn(world, 2 * count, |index| index as u64)?;
    let there = array.range_of(1).start;
    if warm && world.rank() == 0 {
        array.get(there)?;
    }
    world.barrier()?;
    if world.rank() == 1 {
        busy();
    } else {
        std::thread::sleep(Duration::from_millis(100));
        let block = timed("get of 64 KiB", || array.get_range(there..there + count))?;
        assert_eq!(block[5], there as u64 + 5);
        assert_eq!(timed("get", || array.get(there))?, there as u64);
        timed("put of 64 KiB", || array.put_range(there, &vec![7; count]))?;
        timed("flush", || array.flush())?;
        assert_eq!(timed("fetch_add", || array.fetch_add(there, 1))?, 7);
        assert_eq!(timed("get", || array.get(there))?, 8);
    }
    world.barrier()
}

fn compute() {
    let until = Instant::now() + BUSY;
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

#[test]
fn a_sleeping_target() {
    on_ranks(2, |world| served(world, true, || std::thread::sleep(BUSY)));
}

#[test]
fn a_computing_target() {
    on_ranks(2, |world| served(world, true, compute));
}

/// The very first operation too, before any connection exists.
#[test]
fn a_sleeping_target_never_spoken_to() {
    on_ranks(2, |world| served(world, false, || std::thread::sleep(BUSY)));
}

#[test]
fn a_target_that_waits_for_input() {
    on_ranks(2, |world| {
        served(world, true, || {
            let (mut reader, writer) = std::io::pipe().unwrap();
            std::thread::spawn(move || {
                std::thread::sleep(BUSY);
                drop(writer);
            });
            std::io::Read::read_to_end(&mut reader, &mut Vec::new()).unwrap();
        })
    });
}
