//! Requests between ranks that map none of each other's memory.

use super::{Asks, MemoryName, Places, Run, Work};
use crate::atomic::AtomicOp;
use crate::element::Element;
use crate::error::{ErrorKind, Result};
use crate::testing::Ranks;
use crate::window::Window;
use crate::world::{Call, Memory, World};
use std::time::{Duration, Instant};

fn apart(ranks: usize) -> Ranks {
    Ranks::new(ranks).env("UCX_TLS", "tcp,self")
}

fn window<T: Element>(world: &World, each: usize) -> Result<Window> {
    let what = Memory {
        call: Call::NewArray,
        len: each * world.size(),
        layout: 0,
        counts: &|_| each,
    };
    Window::allocate::<T>(world.core(), &what, None)
}

fn bytes<T: Element>(values: &[T]) -> &[u8] {
    bytemuck::cast_slice(values)
}

fn values<T: Element>(bytes: &[u8]) -> Vec<T> {
    let all = bytes.chunks_exact(size_of::<T>());
    all.map(|one| crate::element::from_bits(bytemuck::pod_read_unaligned(one)).unwrap())
        .collect()
}

/// All answers, put together.
fn collect<T: Element>(asks: &mut Asks) -> Result<Vec<T>> {
    let mut all = Vec::new();
    while let Some(answer) = asks.next()? {
        all.extend(values::<T>(&answer));
    }
    Ok(all)
}

/// Stores and loads of elements of any size, at offsets and at runs, in any number of parts.
fn store_and_load<T: Element + PartialEq + std::fmt::Debug>(
    world: &World,
    each: usize,
    value: impl Fn(u64) -> T,
) -> Result<()> {
    let core = world.core();
    let window = window::<T>(world, each)?;
    let name = window.name::<T>();
    let mut asks = Asks::new(core);
    let next = (world.rank() + 1) % world.size();
    let len = each as u64;
    let all: Vec<T> = (0..len).map(|k| value(k + next as u64)).collect();
    // Backwards, and then the even ones again, as they are.
    let backwards = Run {
        start: len - 1,
        step: -1,
        count: len,
    };
    let reversed: Vec<T> = all.iter().rev().copied().collect();
    asks.post(
        next,
        &name,
        Places::Runs(&[backwards]),
        Work::Store(bytes(&reversed)),
    )?;
    let even = Run {
        start: 0,
        step: 2,
        count: len.div_ceil(2),
    };
    let evens: Vec<T> = all.iter().step_by(2).copied().collect();
    asks.post(
        next,
        &name,
        Places::Runs(&[even]),
        Work::Store(bytes(&evens)),
    )?;
    asks.finish()?;
    world.barrier()?;
    for rank in 0..world.size() {
        let right: Vec<T> = (0..len).map(|k| value(k + rank as u64)).collect();
        let whole = Run {
            start: 0,
            step: 1,
            count: len,
        };
        asks.post(rank, &name, Places::Runs(&[whole]), Work::Load)?;
        assert_eq!(collect::<T>(&mut asks)?, right);
        let offsets: Vec<u64> = (0..2 * len).map(|k| k * 7 % len).collect();
        asks.post(rank, &name, Places::Offsets(&offsets), Work::Load)?;
        let got = collect::<T>(&mut asks)?;
        let at = |offset: &u64| right[usize::try_from(*offset).unwrap()];
        assert!(got.into_iter().eq(offsets.iter().map(at)));
    }
    window.close()
}

#[test]
fn elements_of_all_sizes() {
    apart(3).run(|world| {
        store_and_load::<u8>(world, 100_000, |k| k.to_le_bytes()[0])?;
        store_and_load::<bool>(world, 1_000, |k| k % 3 == 0)?;
        store_and_load::<u16>(world, 3_333, |k| u16::try_from(k * 3).unwrap())?;
        store_and_load::<[f32; 3]>(world, 20_000, |_| [1.5, 2.5, 3.5])?;
        store_and_load::<u64>(world, 70_000, |k| k << 40)?;
        store_and_load::<u128>(world, 5_000, |k| u128::from(k) << 70)?;
        store_and_load::<[u64; 5]>(world, 5_000, |k| [k; 5])
    });
}

/// One element is more than an answer usually has.
#[test]
fn huge_elements() {
    let stack = (64 << 20).to_string();
    apart(2)
        .env("RUST_MIN_STACK", stack)
        .run(|world| store_and_load::<[u64; 33_000]>(world, 3, |k| [k; 33_000]));
}

#[test]
fn nothing_is_asked_where_all_memory_is_mapped() {
    Ranks::new(2).env("UCX_TLS", "posix,self").run(|world| {
        let window = window::<u64>(world, 4)?;
        let name = window.name::<u64>();
        let mut asks = Asks::new(world.core());
        let refused = asks.post(0, &name, Places::Offsets(&[1]), Work::Load);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
        assert!(asks.next()?.is_none() && asks.is_done()?);
        window.close()
    });
}

#[test]
fn a_refused_request_harms_no_other() {
    apart(2).run(|world| {
        let window = window::<u32>(world, 10)?;
        let (peer, name) = (1 - world.rank(), window.name::<u32>());
        let mut asks = Asks::new(world.core());
        let three = bytes(&[1_u32, 2, 3]);
        let places = Places::Offsets(&[1, 2, 3]);
        let unknown = MemoryName { id: 999, ..name };
        asks.post(peer, &name, places, Work::Fetch(AtomicOp::Add, three))?;
        asks.post(peer, &unknown, places, Work::Store(three))?;
        asks.post(peer, &MemoryName::new::<f32>(window.id), places, Work::Load)?;
        asks.post(peer, &name, Places::Offsets(&[9, 10]), Work::Load)?;
        asks.post(peer, &name, places, Work::Load)?;
        assert_eq!(values::<u32>(&asks.next()?.unwrap()), [0, 0, 0]);
        for kind in [
            ErrorKind::Closed,
            ErrorKind::WrongElement,
            ErrorKind::OutOfBounds,
        ] {
            let error = asks.next().unwrap_err();
            assert_eq!((error.kind(), error.peer()), (kind, Some(peer)), "{error}");
        }
        let last = asks.next()?.unwrap();
        assert_eq!(values::<u32>(&last), [1, 2, 3]);
        let few = asks.post(peer, &name, places, Work::Store(&three[..8]));
        assert_eq!(few.unwrap_err().kind(), ErrorKind::InvalidArgument);
        window.close()
    });
}

/// Large and small requests of one rank are carried out in the order in which they were posted.
#[test]
fn requests_keep_their_order() {
    apart(3).run(|world| {
        let count = 8192_u64;
        let window = window::<u64>(world, 8192)?;
        let name = window.name::<u64>();
        let peer = (world.rank() + 1) % world.size();
        let mut asks = Asks::new(world.core());
        let whole = [Run {
            start: 0,
            step: 1,
            count,
        }];
        for round in 1..=50_u64 {
            let large = vec![round; 8192];
            asks.post(
                peer,
                &name,
                Places::Runs(&whole),
                Work::Store(bytes(&large)),
            )?;
            let one = [round + 1000];
            asks.post(
                peer,
                &name,
                Places::Offsets(&[77]),
                Work::Store(bytes(&one)),
            )?;
            asks.post(peer, &name, Places::Offsets(&[77, 78]), Work::Load)?;
            while let Some(answer) = asks.next()? {
                if !answer.is_empty() {
                    assert_eq!(values::<u64>(&answer), [round + 1000, round]);
                }
            }
            // Puts come before requests, and requests before gets.
            window.put(peer, 5, round + 7)?;
            asks.post(
                peer,
                &name,
                Places::Offsets(&[5]),
                Work::Apply(AtomicOp::Add, bytes(&[1_u64])),
            )?;
            asks.finish()?;
            assert_eq!(window.get::<u64>(peer, 5)?, round + 8);
        }
        window.close()
    });
}

/// Dropped or forgotten, with large answers under way; what was asked for is done all the same.
#[test]
fn asks_that_nobody_waits_for() {
    apart(2).run(|world| {
        let window = window::<u64>(world, 30_000)?;
        let (peer, name) = (1 - world.rank(), window.name::<u64>());
        let whole = [Run {
            start: 0,
            step: 1,
            count: 30_000,
        }];
        let ones = vec![1_u64; 30_000];
        let add = Work::Fetch(AtomicOp::Add, bytes(&ones));
        for round in 0..20 {
            let mut asks = Asks::new(world.core());
            asks.post(peer, &name, Places::Runs(&whole), add)?;
            asks.post(peer, &name, Places::Runs(&whole), Work::Load)?;
            if round % 2 == 0 {
                drop(asks);
            } else {
                std::mem::forget(asks);
            }
        }
        let mut asks = Asks::new(world.core());
        asks.post(peer, &name, Places::Runs(&whole), Work::Load)?;
        let until = Instant::now() + Duration::from_secs(20);
        while !asks.is_done()? {
            assert!(Instant::now() < until);
        }
        assert!(collect::<u64>(&mut asks)?.iter().all(|&value| value == 20));
        // Still under way at the end.
        asks.post(peer, &name, Places::Runs(&whole), Work::Load)?;
        world.barrier()
    });
}

/// An array that one rank has dropped is served until all have, and no longer.
#[test]
fn dropped_memory_is_served_until_all_have_dropped_it() {
    apart(2).run(|world| {
        let old = window::<u64>(world, 10)?;
        let (peer, name) = (1 - world.rank(), old.name::<u64>());
        let mut asks = Asks::new(world.core());
        let set = Work::Store(bytes(&[5_u64]));
        asks.post(peer, &name, Places::Offsets(&[3]), set)?;
        asks.finish()?;
        let mut kept = Some(old);
        if world.rank() == 0 {
            kept = None;
        }
        let second = window::<u64>(world, 10)?;
        if world.rank() == 1 {
            asks.post(0, &name, Places::Offsets(&[3]), Work::Load)?;
            assert_eq!(collect::<u64>(&mut asks)?, [5]);
        }
        world.barrier()?;
        drop(kept);
        let third = window::<u64>(world, 10)?;
        asks.post(peer, &name, Places::Offsets(&[3]), Work::Load)?;
        assert_eq!(asks.next().unwrap_err().kind(), ErrorKind::Closed);
        let name = second.name::<u64>();
        world.barrier()?;
        second.close()?;
        world.barrier()?;
        asks.post(peer, &name, Places::Offsets(&[3]), Work::Load)?;
        assert_eq!(asks.next().unwrap_err().kind(), ErrorKind::Closed);
        third.close()
    });
}

/// Many threads and all ranks at once, adding to the same few elements of every type.
#[test]
fn threads_and_ranks_at_once() {
    apart(3).run(|world| {
        let window = window::<u8>(world, 16)?;
        let floats = self::window::<f32>(world, 16)?;
        let (names, size) = ((window.name::<u8>(), floats.name::<f32>()), world.size());
        std::thread::scope(|scope| {
            for thread in 0..2_usize {
                let names = &names;
                scope.spawn(move || {
                    let mut asks = Asks::new(world.core());
                    for round in 0..120 {
                        let owner = (round + thread) % size;
                        let places = Places::Offsets(&[3, 3, 4, 15]);
                        let one = Work::Apply(AtomicOp::Add, &[1; 4]);
                        asks.post(owner, &names.0, places, one).unwrap();
                        let ones = [1.0_f32; 4];
                        let one = Work::Fetch(AtomicOp::Add, bytes(&ones));
                        asks.post(owner, &names.1, places, one).unwrap();
                    }
                    asks.finish().unwrap();
                });
            }
        });
        world.barrier()?;
        let mut asks = Asks::new(world.core());
        for owner in 0..size {
            // 240 for each rank and element, over three owners.
            let places = Places::Offsets(&[2, 3, 4, 15]);
            asks.post(owner, &names.0, places, Work::Load)?;
            assert_eq!(
                asks.next()?.unwrap(),
                [0, 480_u64.to_le_bytes()[0], 240, 240]
            );
            asks.post(owner, &names.1, places, Work::Load)?;
            let got = values::<f32>(&asks.next()?.unwrap());
            assert_eq!(got, [0.0, 480.0, 240.0, 240.0]);
        }
        world.barrier()
    });
}

/// A rank that has posted large requests and then computes holds up nobody else's.
#[test]
fn an_asker_that_computes_delays_nobody() {
    apart(3).run(|world| {
        let window = window::<u64>(world, 70_000)?;
        let name = window.name::<u64>();
        let mut asks = Asks::new(world.core());
        let large = vec![7_u64; 65_536];
        let whole = [Run {
            start: 0,
            step: 1,
            count: 65_536,
        }];
        // Connected.
        asks.post(0, &name, Places::Offsets(&[1]), Work::Load)?;
        asks.finish()?;
        world.barrier()?;
        if world.rank() == 1 {
            let store = Work::Store(bytes(&large));
            asks.post(0, &name, Places::Runs(&whole), store)?;
            std::thread::sleep(Duration::from_millis(1500));
        } else if world.rank() == 2 {
            std::thread::sleep(Duration::from_millis(200));
            let start = Instant::now();
            for _ in 0..20 {
                let add = Work::Fetch(AtomicOp::Add, bytes(&[1_u64]));
                asks.post(0, &name, Places::Offsets(&[69_999]), add)?;
                asks.finish()?;
            }
            let took = start.elapsed();
            assert!(took < Duration::from_millis(500), "took {took:?}");
        }
        asks.finish()?;
        world.barrier()?;
        assert_eq!(window.get::<u64>(0, 65_535)?, 7);
        window.close()
    });
}

/// A set of requests may be finished by another thread.
#[test]
fn what_is_under_way_can_be_sent_to_another_thread() {
    fn is_send<T: Send>() {}
    is_send::<Asks>();
    is_send::<crate::ucx::GetBatch<f64>>();
    is_send::<crate::ucx::PutTicket>();
}

/// What requests cost beside UCX's own operations: run with `--release --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn the_cost_of_asking() {
    let outcome = apart(2).timeout(Duration::from_secs(300)).outcome(|world| {
        let each = 1 << 20;
        let window = window::<u64>(world, each)?;
        let name = window.name::<u64>();
        let mut asks = Asks::new(world.core());
        if world.rank() == 0 {
            let time =
                |what: &str, count: u32, body: &mut dyn FnMut() -> Result<()>| -> Result<()> {
                    let mut best = Duration::MAX;
                    for _ in 0..5 {
                        let start = Instant::now();
                        body()?;
                        best = best.min(start.elapsed() / count);
                    }
                    eprintln!("{what}: {best:?} each");
                    Ok(())
                };
            time("native fetch_add", 5000, &mut || {
                (0..5000).try_for_each(|_| window.fetch_op(AtomicOp::Add, 1, 7, 1_u64).map(drop))
            })?;
            time("requested fetch_max", 5000, &mut || {
                (0..5000).try_for_each(|_| window.fetch_op(AtomicOp::Max, 1, 7, 1_u64).map(drop))
            })?;
            let mut random = 1_u64;
            let mut offset = || {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (random >> 33) % (1 << 20)
            };
            let places: Vec<u64> = (0..1 << 20).map(|_| offset()).collect();
            time("blocking gets", 20_000, &mut || {
                places[..20_000].iter().try_for_each(|&place| {
                    window
                        .get::<u64>(1, usize::try_from(place).unwrap())
                        .map(drop)
                })
            })?;
            for size in [64, 512, 4096, 8192] {
                time(
                    &format!("loads in requests of {size}"),
                    1 << 20,
                    &mut || {
                        let mut sum = 0;
                        let mut take = |asks: &mut Asks| -> Result<bool> {
                            let answer = asks.next()?;
                            sum += answer.as_ref().map_or(0, Vec::len);
                            Ok(answer.is_some())
                        };
                        for (number, part) in places.chunks(size).enumerate() {
                            if number >= 8 {
                                take(&mut asks)?;
                            }
                            asks.post(1, &name, Places::Offsets(part), Work::Load)?;
                        }
                        while take(&mut asks)? {}
                        assert_eq!(sum, 8 << 20);
                        Ok(())
                    },
                )?;
            }
            let ones = vec![1_u64; 4096];
            time("adds in requests of 4096", 1 << 20, &mut || {
                for part in places.chunks(4096) {
                    let add = Work::Apply(AtomicOp::Add, bytes(&ones[..part.len()]));
                    asks.post(1, &name, Places::Offsets(part), add)?;
                }
                asks.finish()
            })?;
            time("single adds, 8 in flight", 200_000, &mut || {
                for place in &places[..200_000] {
                    let add = Work::Apply(AtomicOp::Add, bytes(&ones[..1]));
                    asks.post(1, &name, Places::Offsets(&[*place]), add)?;
                }
                asks.finish()
            })?;
            let whole = [Run {
                start: 0,
                step: 1,
                count: 1 << 20,
            }];
            time("a whole shard of 8 MiB", 1, &mut || {
                asks.post(1, &name, Places::Runs(&whole), Work::Load)?;
                asks.finish()
            })?;
            time("the same by get_range", 1, &mut || {
                window.get_range::<u64>(1, 0, 1 << 20).map(drop)
            })?;
        }
        world.barrier()?;
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let peak = status.lines().find(|line| line.starts_with("VmHWM"));
        eprintln!("rank {}: {}", world.rank(), peak.unwrap_or("?"));
        Ok(())
    });
    eprintln!("{}", String::from_utf8_lossy(&outcome.stderr));
    assert!(outcome.success(), "{outcome}");
}
