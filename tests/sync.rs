//! Signals, counters, the mutex, and waiting for an element.

#![expect(clippy::cast_possible_truncation, reason = "test numbers are small")]

use pgas::testing::{Ranks, on_ranks};
use pgas::{Counter, ErrorKind, GlobalArray, GlobalMutex, Op, Signals, World};
use std::time::{Duration, Instant};

/// C11 with a signal: the data is there when the signal is, whatever its size; also no data (C03).
#[test]
fn data_comes_before_its_signal() {
    on_ranks(3, |world| {
        for (len, rounds) in [
            (0, 50),
            (1, 300),
            (8, 300),
            (2_048, 100),
            (7_500, 50),
            (131_072, 8),
        ] {
            let mut array = GlobalArray::<u64>::new(world, len * world.size())?;
            let (there, taken) = (Signals::new(world, 1)?, Signals::new(world, 1)?);
            let next = (world.rank() + 1) % world.size();
            let before = (world.rank() + world.size() - 1) % world.size();
            let (to, mine) = (array.range_of(next).start, array.local_range());
            for round in 1..=rounds {
                let values = vec![round; len];
                there.put_signal(&array, to, &values, next, 0)?;
                assert_eq!(there.wait(0, |count| count >= round)?, round);
                let found = array.get_range(mine.clone())?;
                assert!(found.iter().all(|&value| value == round), "{len}: {round}");
                taken.add(before, 0, 1)?;
                taken.wait(0, |count| count >= round)?;
            }
            assert!(array.read()?.iter().all(|&value| value == rounds));
        }
        Ok(())
    });
}

#[test]
fn any_of_several_signals() {
    on_ranks(4, |world| {
        let signals = Signals::new(world, 4)?;
        assert_eq!((signals.len(), signals.is_empty()), (4, false));
        if world.rank() == 0 {
            let mut seen = [0; 4];
            while seen.iter().sum::<u64>() < 300 {
                let (signal, value) = signals.wait_any(&[3, 1, 2], |value| value > 0)?;
                assert_eq!(signals.get(signal)?.min(value), value, "only grows");
                // Takes what there is.
                seen[signal] += signals.set(0, signal, 0)?;
            }
            assert_eq!(seen, [0, 100, 100, 100]);
        } else {
            for _ in 0..100 {
                signals.add(0, world.rank(), 1)?;
            }
        }
        for error in [
            signals.add(4, 0, 1).unwrap_err(),
            signals.add(0, 4, 1).unwrap_err(),
            signals.wait(4, |_| true).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::OutOfBounds, "{error}");
        }
        let error = signals.wait_any(&[], |_| true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        world.barrier()
    });
}

/// A rank that has long been asleep is woken at once, and does not compute while it sleeps.
#[test]
fn a_sleeper_is_woken_and_idle() {
    on_ranks(2, |world| {
        let signals = Signals::new(world, 1)?;
        world.barrier()?;
        if world.rank() == 0 {
            let cpu = || -> f64 {
                let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
                stat.split_whitespace()
                    .next()
                    .unwrap()
                    .parse::<f64>()
                    .unwrap()
                    / 1e9
            };
            let before = cpu();
            signals.wait(0, |value| value == 1)?;
            let used = cpu() - before;
            assert!(used < 0.25, "{used} s of computing in 1 s of waiting");
            signals.add(1, 0, 1)?;
        } else {
            std::thread::sleep(Duration::from_secs(1));
            let begin = Instant::now();
            signals.add(0, 0, 1)?;
            signals.wait(0, |value| value == 1)?;
            let took = begin.elapsed();
            assert!(took < Duration::from_millis(500), "{took:?}");
        }
        Ok(())
    });
}

/// Where a sleep would take 20 s if nobody woke the sleeper.
#[test]
fn sleepers_are_woken() {
    let ranks = Ranks::new(2).env("PGAS_NAP", "20000");
    ranks.timeout(Duration::from_secs(50)).run(|world| {
        let signals = Signals::new(world, 3)?;
        let mutex = GlobalMutex::new(world)?;
        let large = vec![1_u64; 100_000];
        let begin = Instant::now();
        for round in 1..=3 {
            // Rank 0 has long been asleep when rank 1 comes.
            let late = || {
                if world.rank() == 1 {
                    std::thread::sleep(Duration::from_millis(150));
                }
            };
            let mut sums = large.clone();
            late();
            world.barrier()?;
            late();
            world.ibarrier()?.wait()?;
            late();
            let (started, other) = (world.ibarrier()?, world.ibarrier()?);
            world.barrier()?;
            started.wait()?;
            other.wait()?;
            late();
            world.all_reduce_slice(&mut sums, Op::Sum)?;
            late();
            match world.rank() {
                0 => signals.wait(0, |value| value >= round).map(drop)?,
                _ => signals.add(0, 0, 1).map(drop)?,
            }
            late();
            match world.rank() {
                0 => signals
                    .wait_any(&[1, 2], |value| value >= round)
                    .map(drop)?,
                _ => signals.add(0, 2, 1).map(drop)?,
            }
            late();
            match world.rank() {
                0 => world.recv::<u64>(1, 1).map(drop)?,
                _ => world.send(0, 1, &[1_u64])?,
            }
            late();
            match world.rank() {
                0 => world.recv::<u64>(1, 2).map(drop)?,
                _ => world.send(0, 2, &large)?,
            }
            world.barrier()?;
            let held = (world.rank() == 1).then(|| mutex.lock()).transpose()?;
            world.barrier()?;
            match held {
                None => mutex.lock()?.unlock()?,
                Some(held) => {
                    late();
                    held.unlock()?;
                }
            }
        }
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(15), "{took:?}");
        Ok(())
    });
}

/// Every number goes to one rank.
#[test]
fn chunks_cover_all_once() {
    on_ranks(4, |world| {
        let mut counter = Counter::new(world)?;
        let done = GlobalArray::<u8>::new(world, 10_007)?;
        for round in 1..4 {
            for chunk in counter.chunks(10_007, 10) {
                for job in chunk? {
                    done.fetch_add(job as usize, 1)?;
                }
            }
            world.barrier()?;
            let all = done.get_range(0..10_007)?;
            assert!(all.iter().all(|&times| times == round));
            counter.reset()?;
        }
        assert!(counter.next(5)? < 20);
        world.barrier()?;
        counter.reset()?;
        // Sizes beyond all there is.
        let mut drawn = 0;
        for chunk in counter.chunks(10, 1 << 63) {
            assert_eq!(chunk?, 0..10);
            drawn += 1;
        }
        assert_eq!(world.all_reduce(drawn, Op::Sum)?, 1);
        Ok(())
    });
}

/// What is not atomic by itself: get, then put, of two elements at different ranks.
#[test]
fn the_mutex_excludes() {
    on_ranks(4, |world: &World| {
        let mutex = GlobalMutex::new(world)?;
        let sums = GlobalArray::<[u64; 2]>::new(world, 4)?;
        let mine = 50;
        for k in 0..mine {
            let guard = mutex.lock()?;
            for index in [1, 3] {
                let [count, sum] = sums.get(index)?;
                sums.put(index, [count + 1, sum + k * (world.rank() as u64 + 1)])?;
            }
            if k % 2 == 0 {
                guard.unlock()?;
            }
        }
        // Threads of a rank, too.
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        let _guard = mutex.lock().unwrap();
                        let [count, sum] = sums.get(1).unwrap();
                        sums.put(1, [count + 1, sum]).unwrap();
                    }
                });
            }
        });
        world.barrier()?;
        let sum = world.all_reduce(world.rank() as u64 + 1, Op::Sum)? * (mine * (mine - 1) / 2);
        assert_eq!(sums.get(1)?, [4 * (mine + 20), sum]);
        assert_eq!(sums.get(3)?, [4 * mine, sum]);
        world.barrier()
    });
}

#[test]
fn waiting_for_an_element() {
    on_ranks(3, |world| {
        let array = GlobalArray::<i32>::new(world, 3)?;
        let next = (world.rank() + 1) % 3;
        if world.rank() == 0 {
            array.put(next, 1)?;
            array.flush()?;
        }
        let value = array.wait_until(world.rank(), |&value| value > 0)?;
        if world.rank() > 0 {
            array.put(next, value + 1)?;
            array.flush()?;
        }
        assert_eq!(
            value,
            if world.rank() == 0 {
                3
            } else {
                world.rank() as i32
            }
        );
        world.barrier()
    });
}

#[test]
fn what_does_not_come_is_an_error() {
    Ranks::new(2).env("PGAS_TIMEOUT", "1").run(|world| {
        let (signals, mutex) = (Signals::new(world, 2)?, GlobalMutex::new(world)?);
        let array = GlobalArray::<u8>::new(world, 2)?;
        if world.rank() == 0 {
            let error = signals.wait(1, |value| value > 0).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            assert!(
                error.to_string().contains("signal [1] of rank 0"),
                "{error}"
            );
            let error = array.wait_until(1, |&value| value > 0).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            std::mem::forget(mutex.lock()?);
            let error = mutex.lock().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            signals.add(1, 0, 1)?;
        } else {
            while signals.get(0)? == 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    });
}
