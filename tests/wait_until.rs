//! Waiting for an element: whoever writes it, and however, wakes who sleeps.

use pgas::testing::Ranks;
use pgas::{Dist, GlobalArray, Op, Result, World};
use std::time::{Duration, Instant};

/// A job in which a sleep that nobody ends takes 20 s.
fn long_sleeps(ranks: usize) -> Ranks {
    Ranks::new(ranks)
        .env("PGAS_NAP", "20000")
        .timeout(Duration::from_secs(60))
}

/// Whether ranks share memory. Where they do not, a waiter looks every millisecond, too.
fn shares_memory() -> bool {
    !std::env::var("UCX_TLS").is_ok_and(|transports| transports.starts_with("tcp"))
}

/// A way to write 1 to an element.
type Way = (
    &'static str,
    fn(&World, &GlobalArray<u32>, usize) -> Result<()>,
);

const WAYS: [Way; 20] = [
    ("put", |_, array, at| array.put(at, 1)),
    ("put_async", |_, array, at| array.put_async(at, 1)?.wait()),
    ("forgotten put_async", |_, array, at| {
        drop(array.put_async(at, 1)?);
        array.flush()
    }),
    ("put_range", |_, array, at| {
        array.put_range(at - 2, &[0, 0, 1, 0])
    }),
    ("put_range of all", |_, array, at| {
        let mut values = vec![0; array.len()];
        values[at] = 1;
        array.put_range(0, &values)
    }),
    ("put_range of a scope", |world, array, at| {
        world.scope(|scope| scope.put_range(array, at, &[1]))
    }),
    ("put_section", |_, array, at| {
        array.put_section(at..at + 1, &ndarray::arr1(&[1]))
    }),
    ("put_section with steps", |_, array, at| {
        let ones = ndarray::Array1::ones(20);
        array.put_section(pgas::span(at - 30..at + 30).step_by(3), &ones)
    }),
    ("accumulate", |_, array, at| {
        array.acc(at - 1..at + 1, &ndarray::arr1(&[0, 1]), Op::Sum)
    }),
    ("scatter", |_, array, at| {
        array.scatter(&[at - 1, at], &[0, 1])
    }),
    ("scatter of many", |_, array, at| {
        let indices: Vec<usize> = (0..array.len()).collect();
        let values: Vec<u32> = indices.iter().map(|&k| u32::from(k == at)).collect();
        array.scatter(&indices, &values)
    }),
    ("scatter_with", |_, array, at| {
        array.scatter_with(&[at, at - 1], &[1, 0], Op::Sum)
    }),
    ("swap", |_, array, at| array.swap(at, 1).map(drop)),
    ("compare_exchange", |_, array, at| {
        array.compare_exchange(at, 0, 1).map(drop)
    }),
    ("fetch_add", |_, array, at| array.fetch_add(at, 1).map(drop)),
    ("fetch_sub", |_, array, at| {
        array.fetch_sub(at, u32::MAX).map(drop)
    }),
    ("fetch_max", |_, array, at| array.fetch_max(at, 1).map(drop)),
    ("fetch_or", |_, array, at| array.fetch_or(at, 1).map(drop)),
    ("fetch_xor", |_, array, at| array.fetch_xor(at, 1).map(drop)),
    ("a thread's put", |_, array, at| {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| array.put(at, 1));
            thread.join().unwrap()
        })
    }),
];

/// Rank 0 waits for an element of each rank, which rank 1 writes when it has long been asleep.
fn wake_in_each_way(world: &World, dist: Dist) -> Result<()> {
    for (name, write) in WAYS {
        for owner in 0..world.size() {
            let array = GlobalArray::<u32>::builder(world, 1000)
                .dist([dist.clone()])
                .build()?;
            let at = (100..).find(|&at| array.owner(at).unwrap() == owner);
            let at = at.unwrap() + usize::from(dist == Dist::Block) * 5;
            world.barrier()?;
            let begin = Instant::now();
            match world.rank() {
                0 => {
                    let value = array.wait_until(at, |&value| value > 0)?;
                    assert_eq!(value, 1, "{name}");
                }
                1 => {
                    std::thread::sleep(Duration::from_millis(30));
                    write(world, &array, at)?;
                    array.flush()?;
                }
                _ => {}
            }
            let took = begin.elapsed();
            assert!(took < Duration::from_secs(5), "{name}: {took:?}");
            world.barrier()?;
        }
    }
    Ok(())
}

#[test]
fn each_way_of_writing_wakes() {
    long_sleeps(3).run(|world| wake_in_each_way(world, Dist::Block));
}

#[test]
fn each_way_of_writing_wakes_where_elements_are_dealt_out() {
    long_sleeps(2).run(|world| wake_in_each_way(world, Dist::Cyclic));
}

/// Where each access goes the slow way.
#[test]
fn each_way_of_writing_wakes_while_races_are_looked_for() {
    let ranks = long_sleeps(2).env("PGAS_CHECKS", "races");
    ranks.run(|world| wake_in_each_way(world, Dist::Block));
}

/// Threads of one rank, alone in its job.
#[test]
fn threads_wake_each_other() {
    long_sleeps(1).run(|world| {
        let array = GlobalArray::<u64>::new(world, 10)?;
        let begin = Instant::now();
        std::thread::scope(|scope| {
            let array = &array;
            let wait = |at| scope.spawn(move || array.wait_until(at, |&x| x == 5));
            let waiters = [3, 3, 7].map(wait);
            std::thread::sleep(Duration::from_millis(50));
            array.put(3, 5)?;
            array.put(7, 5)?;
            for waiter in waiters {
                assert_eq!(waiter.join().unwrap()?, 5);
            }
            Ok::<_, pgas::Error>(())
        })?;
        assert!(begin.elapsed() < Duration::from_secs(5));
        Ok(())
    });
}

/// Arrays of teams whose ranks are numbered otherwise, and other arrays that are written meanwhile.
#[test]
fn ranks_of_teams_wake_each_other() {
    long_sleeps(4).run(|world| {
        let backwards = -i64::try_from(world.rank()).unwrap();
        let pair = world.split(world.rank() % 2, backwards)?.split(0, 0)?;
        let others: Vec<_> = (0..20)
            .map(|_| GlobalArray::<u8>::new(world, 100))
            .collect::<Result<_>>()?;
        let begin = Instant::now();
        for round in 0..5 {
            let array = GlobalArray::<u16>::new(&pair, 2 + round)?;
            if pair.rank() == 0 {
                let value = array.wait_until(1 + round, |&value| value > 0)?;
                assert_eq!(value, 7);
            } else {
                std::thread::sleep(Duration::from_millis(30));
                for (k, other) in others.iter().enumerate() {
                    other.put(k, 1)?;
                }
                array.put(1 + round, 7)?;
                array.flush()?;
            }
            pair.barrier()?;
        }
        assert!(begin.elapsed() < Duration::from_secs(5));
        Ok(())
    });
}

/// Both orders of going to sleep and of writing, again and again: a wake-up that is lost would take
/// 20 s.
#[test]
fn no_wake_up_is_lost() {
    let ranks = long_sleeps(2).env("PGAS_YIELD", "0").env("PGAS_SPIN", "0");
    ranks.run(|world| {
        let array = GlobalArray::<u64>::new(world, 64)?;
        let (mine, other) = (world.rank() * 32, (1 - world.rank()) * 32);
        let rounds = if shares_memory() { 20_000 } else { 1000 };
        let begin = Instant::now();
        let mut random = 1_u64;
        for round in 1..=rounds {
            if world.rank() == 1 {
                array.wait_until(mine, |&value| value == round)?;
                // The other one is just going to sleep, or already does.
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (0..random >> 54).for_each(|_| std::hint::spin_loop());
            }
            array.put(other, round)?;
            array.flush()?;
            if world.rank() == 0 {
                array.wait_until(mine, |&value| value == round)?;
            }
        }
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(19), "{took:?}");
        Ok(())
    });
}

/// A rank that waits does not compute.
#[test]
fn who_waits_is_idle() {
    Ranks::new(2).run(|world| {
        let array = GlobalArray::<u64>::new(world, 2)?;
        world.barrier()?;
        if world.rank() == 1 {
            std::thread::sleep(Duration::from_secs(2));
            array.put(0, 1)?;
            return array.flush();
        }
        let cpu = || -> f64 {
            let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
            let nanos = stat.split_whitespace().next().unwrap();
            nanos.parse::<f64>().unwrap() / 1e9
        };
        let sleeps = || -> u64 {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let mut lines = status.lines();
            let line = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            line.unwrap().trim().parse().unwrap()
        };
        let before = (cpu(), sleeps());
        array.wait_until(0, |&value| value == 1)?;
        let (used, slept) = (cpu() - before.0, sleeps() - before.1);
        if shares_memory() {
            assert!(slept < 300, "{slept} sleeps in 2 s");
        }
        let most = if shares_memory() { 0.05 } else { 0.25 };
        assert!(used < most, "{used} s of computing in 2 s of waiting");
        Ok(())
    });
}
