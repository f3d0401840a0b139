//! `PGAS_CHECKS=races`: what races is found with both lines, what is ordered is not reported.

#![expect(clippy::cast_possible_truncation, reason = "test numbers are small")]

use pgas::testing::Ranks;
use pgas::{
    Any, Checks, Counter, Dist, ErrorKind, GlobalArray, GlobalMutex, Op, Result, Signals, World,
};
use std::time::Duration;

fn looking_for_races(ranks: usize) -> Ranks {
    Ranks::new(ranks).env("PGAS_CHECKS", "races")
}

/// What a rank did: the line, and how it ended.
type Did = (u32, Result<()>);

/// Two ranks have done these, without order: one of them at least has the error, which names the
/// index, both ranks and both lines.
#[track_caller]
fn is_found(world: &World, index: &str, (line, result): Did) -> Result<()> {
    let text = match result {
        Ok(()) => String::new(),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Race, "{error}");
            assert_eq!(error.peer(), Some(1 - world.rank()), "{error}");
            error.to_string()
        }
    };
    let all: Vec<(u32, String)> = world.all_gather_obj(&(line, text))?;
    let reports: Vec<&String> = all
        .iter()
        .map(|(_, text)| text)
        .filter(|text| !text.is_empty())
        .collect();
    assert!(!reports.is_empty(), "no race found between {all:?}");
    for report in reports {
        assert!(
            report.starts_with(&format!("race on index {index}: ")),
            "{report}"
        );
        for (rank, (line, _)) in all.iter().enumerate() {
            let place = format!("by rank {rank} at tests/races.rs:{line}");
            assert!(report.contains(&place), "{place:?}: {report}");
        }
    }
    Ok(())
}

/// Rank 0 does one, rank 1 the other.
macro_rules! race {
    ($world:expr, $index:expr, $one:expr, $other:expr $(,)?) => {
        is_found(
            $world,
            $index,
            match $world.rank() {
                0 => $one,
                _ => $other,
            },
        )
    };
}

/// The line it is written on, and its result.
macro_rules! did {
    ($call:expr) => {
        (line!(), $call.map(|_| ()))
    };
}

#[test]
fn elements() {
    looking_for_races(2).run(|world| {
        assert_eq!(world.checks(), Checks::Races);
        let a = GlobalArray::<u64>::new(world, 10)?;
        race!(world, "0", did!(a.put(0, 1)), did!(a.put(0, 2)))?;
        race!(world, "9", did!(a.put(9, 1)), did!(a.get(9)))?;
        race!(world, "1", did!(a.get(1)), did!(a.put(1, 2)))?;
        race!(world, "2", did!(a.fetch_add(2, 1)), did!(a.put(2, 2)))?;
        race!(
            world,
            "8",
            did!(a.get(8)),
            did!(a.compare_exchange(8, 0, 2))
        )?;
        race!(
            world,
            "7",
            did!(a.put_async(7, 3).and_then(pgas::Request::wait)),
            did!(a.get_async(7).and_then(pgas::Request::wait))
        )?;
        // Neither of these.
        a.get(3)?;
        a.fetch_add(4, 1)?;
        a.put(5 + world.rank(), 1)?;
        a.put(5 + world.rank(), 2)?;
        world.barrier()
    });
}

#[test]
fn many_elements() {
    looking_for_races(2).run(|world| {
        let a = GlobalArray::<i32>::new(world, 5000)?;
        let mut buffer = [0; 2600];
        race!(
            world,
            "2500",
            did!(a.put_range(0, &[1; 2501])),
            did!(a.get_range(2500..5000))
        )?;
        race!(
            world,
            "2600",
            did!(a.put_range(2600, &[1; 2])),
            did!(a.get_into(1, &mut buffer))
        )?;
        race!(
            world,
            "4999",
            did!(a.scatter(&[1, 4999], &[1, 2])),
            did!(a.gather(&[0, 4999, 4998]))
        )?;
        race!(
            world,
            "4000",
            did!(a.scatter_with(&[4000, 7], &[1, 2], Op::Sum)),
            did!(a.get(4000))
        )?;
        race!(
            world,
            "100",
            did!(world.scope(|scope| { scope.put_range(&a, 100, &[3]) })),
            did!(a.put(100, 4))
        )?;
        race!(
            world,
            "99",
            did!(a.get_range_async(90..100).and_then(pgas::Request::wait)),
            did!(a.put(99, 4))
        )?;
        let table = GlobalArray::<f64, 2>::builder(world, [20, 30])
            .dist([Dist::Cyclic, Dist::Block])
            .grid([1, 2])
            .build()?;
        race!(
            world,
            "[10, 15]",
            did!(table.put_section((10, 0..16), &ndarray::Array::ones([1, 16]))),
            did!(table.get_section((0..20, 15..30)))
        )?;
        race!(
            world,
            "[7, 29]",
            did!(table.acc((7, 20..30), &ndarray::Array::ones([1, 10]), Op::Sum)),
            did!(table.put([7, 29], 1.0))
        )?;
        let ghosts = GlobalArray::<u8, 2>::builder(world, [6, 7])
            .halo([1, 2])
            .build()?;
        race!(
            world,
            "[5, 6]",
            did!(ghosts.put([5, 6], 1)),
            did!(ghosts.put([5, 6], 2))
        )?;
        let cyclic = GlobalArray::<u8>::builder(world, 7)
            .dist([Dist::BlockCyclic(2)])
            .build()?;
        race!(world, "6", did!(cyclic.put(6, 1)), did!(cyclic.get(6)))?;
        Ok(())
    });
}

/// Each rank writes its part and then reads all; `meet` says when it may.
fn turns(world: &World, mut meet: impl FnMut() -> Result<()>) -> Result<()> {
    let a = GlobalArray::<u64>::new(world, 12)?;
    let (rank, size) = (world.rank(), world.size());
    world.barrier()?;
    for round in 0..4 {
        for index in (rank..12).step_by(size) {
            a.put(index, round)?;
        }
        a.flush()?;
        meet()?;
        assert_eq!(a.get_range(0..12)?, [round; 12]);
        assert_eq!(a.gather(&[5, 11])?, [round; 2]);
        meet()?;
        a.scatter_with(&[0, 11], &[1, 1], Op::Sum)?;
        a.fetch_add(5, 1)?;
        meet()?;
        assert_eq!(a.get(11)?, round + size as u64);
        meet()?;
    }
    Ok(())
}

#[test]
fn collectives_order() {
    looking_for_races(3).run(|world| {
        turns(world, || world.barrier())?;
        turns(world, || world.all_reduce(1, Op::Sum).map(drop))?;
        turns(world, || world.broadcast(1, 7).map(drop))?;
        turns(world, || world.all_to_all(&[1, 2, 3]).map(drop))?;
        turns(world, || {
            let all: Vec<String> = world.all_gather_obj(&"text".to_string())?;
            assert_eq!(all.len(), 3);
            Ok(())
        })?;
        turns(world, || world.split(0, 0).map(drop))?;
        turns(world, || world.ibarrier()?.wait())?;
        turns(world, || {
            let mut barrier = world.ibarrier()?;
            while !barrier.is_done()? {}
            Ok(())
        })?;
        // Large enough for the stage.
        turns(world, || world.all_gather_slice(&[0_u8; 100_000]).map(drop))?;
        let array = GlobalArray::from_local(world, &[1, 2, 3])?;
        assert_eq!(array.get(8)?, 3);
        assert_eq!(GlobalArray::from_fn(world, 9, |i| i)?.get(8)?, 8);
        Ok(())
    });
}

#[test]
fn messages_order() {
    looking_for_races(3).run(|world| {
        // All to all, as messages.
        turns(world, || {
            for rank in 0..world.size() {
                world.send(rank, 5, &[1_u8])?;
            }
            for _ in 0..world.size() {
                let envelope = world.probe(Any, 5)?;
                assert_eq!(envelope.bytes, 1);
                let received = world.irecv::<u8>(envelope.source, 5)?.wait()?;
                assert_eq!(received, (vec![1], envelope));
            }
            Ok(())
        })?;
        // Around the ring of ranks, twice; the second message is large.
        let (next, before) = ((world.rank() + 1) % 3, (world.rank() + 2) % 3);
        turns(world, || {
            for len in [1, 100_000] {
                let (received, envelope) = world.sendrecv(next, before, 6, &vec![7_u8; len])?;
                assert_eq!((received.len(), envelope.bytes), (len, len));
            }
            Ok(())
        })?;
        turns(world, || {
            for _ in 0..2 {
                let sent = world.isend(next, 7, &[0_u64; 3])?;
                let large = vec![0_u64; 30_000];
                std::thread::scope(|scope| {
                    let sending = scope.spawn(|| world.send(next, 8, &large));
                    assert_eq!(world.probe(before, 8)?.bytes, 240_000);
                    let mut to = vec![1_u64; 30_000];
                    world.recv_into(before, 8, &mut to)?;
                    assert_eq!(to[29_999], 0);
                    sending.join().unwrap()
                })?;
                world.recv::<u64>(before, 7)?;
                sent.wait()?;
            }
            Ok(())
        })?;
        world.barrier()?;
        // Seen, and not received yet.
        let seen = GlobalArray::<u64>::new(world, 3)?;
        if world.rank() == 0 {
            seen.put(2, 1)?;
            seen.flush()?;
            world.send(1, 8, &[1])?;
            world.send(2, 8, &[1])?;
        } else {
            let mut receive = None;
            if world.rank() == 1 {
                let receive = receive.insert(world.irecv::<i32>(0, 8)?);
                while !receive.is_done()? {}
            } else {
                while world.iprobe(0, 8)?.is_none() {}
            }
            assert_eq!(seen.get(2)?, 1);
            match receive {
                Some(receive) => receive.wait()?,
                None => world.recv(0, 8)?,
            };
        }
        world.barrier()?;
        // Through rank 1.
        let a = GlobalArray::<u64>::new(world, 3)?;
        match world.rank() {
            0 => {
                a.put(2, 1)?;
                a.flush()?;
                world.send_obj(1, 1, &"done".to_string())?;
            }
            1 => {
                let (text, envelope) = world.recv_obj::<String>(0, 1)?;
                assert_eq!((text.as_str(), envelope.bytes), ("done", 5));
                world.send(2, 2, &[0.5])?;
            }
            _ => {
                world.recv::<f64>(1, Any)?;
                assert_eq!(a.get(2)?, 1);
            }
        }
        world.barrier()?;
        // The wrong way round orders nothing.
        if world.rank() == 1 {
            a.put(0, 1)?;
        } else if world.rank() == 0 {
            world.send(1, 3, &[1])?;
            world.send(2, 3, &[1])?;
        } else {
            world.recv::<i32>(0, 3)?;
        }
        world.all_reduce(0, Op::Sum)?;
        let outcome = match world.rank() {
            0 => {
                let put = a.put(1, 5);
                world.send(2, 4, &[1])?;
                put
            }
            1 => {
                world.recv::<i32>(2, 4)?; // before rank 2 hears of rank 0
                a.put(1, 6)
            }
            _ => {
                world.send(1, 4, &[1])?;
                world.recv::<i32>(0, 4).map(drop)
            }
        };
        let races = outcome.is_err_and(|error| error.kind() == ErrorKind::Race);
        let races = world.all_reduce(u32::from(races), Op::Sum)?;
        assert!(races >= 1);
        Ok(())
    });
}

#[test]
fn signals_and_their_like_order() {
    looking_for_races(3).run(|world| {
        let (rank, size) = (world.rank(), world.size());
        let signals = Signals::new(world, 2)?;
        let mut met = 0;
        turns(world, || {
            met += size as u64;
            (0..size).try_for_each(|rank| signals.add(rank, 0, 1).map(drop))?;
            signals.wait(0, |count| count >= met).map(drop)
        })?;
        let a = GlobalArray::<u64>::new(world, 3)?;
        signals.put_signal(&a, (rank + 1) % size, &[7], (rank + 1) % size, 1)?;
        signals.wait(1, |count| count == 1)?;
        assert_eq!(a.get(rank)?, 7);

        // What is not atomic by itself, and another element that only the mutex protects.
        let mutex = GlobalMutex::new(world)?;
        let sums = GlobalArray::<[u64; 2]>::new(world, 4)?;
        for _ in 0..10 {
            let guard = mutex.lock()?;
            let [count, sum] = sums.get(3)?;
            sums.put(3, [count + 1, sum + rank as u64])?;
            guard.unlock()?;
        }
        // Work that is drawn, and looked at by whoever draws last.
        let mut counter = Counter::new(world)?;
        let work = GlobalArray::<u32>::new(world, 100)?;
        for chunk in counter.chunks(100, 7) {
            for job in chunk? {
                work.put(job as usize, 1)?;
            }
        }
        counter.reset()?;
        assert_eq!(sums.get(3)?, [30, 30]);
        work.put(99 - rank, 2)?;
        work.flush()?;
        if counter.next(1)? == 2 {
            assert_eq!(work.get_range(0..100)?.iter().sum::<u32>(), 103);
        }
        world.barrier()
    });
}

#[test]
fn atomic_operations_order() {
    looking_for_races(3).run(|world| {
        let (rank, size) = (world.rank(), world.size() as u64);
        let lock = GlobalArray::<u32>::new(world, 1)?;
        let sum = GlobalArray::<u64>::new(world, 5)?;
        for _ in 0..5 {
            while lock.compare_exchange(0, 0, 1)? != 0 {
                std::thread::yield_now();
            }
            sum.put(4, sum.get(4)? + 1)?;
            sum.flush()?;
            lock.swap(0, 0)?;
        }
        world.barrier()?;
        assert_eq!(sum.get(4)?, 5 * size);
        // In the mode for them, too; and a flag that is waited for.
        let mut flags = GlobalArray::<u64>::new(world, 6)?;
        let view = flags.atomics()?;
        if rank == 0 {
            sum.put(1, 9)?;
            sum.flush()?;
            view.store(5, 1)?;
        } else {
            while view.load(5)? == 0 {
                std::thread::yield_now();
            }
            assert_eq!(sum.get(1)?, 9);
        }
        view.close()?;
        match rank {
            0 => {
                sum.put(2, 10)?;
                sum.flush()?;
                flags.put(0, 1)?;
                flags.flush()?;
                // Nothing of rank 0's tells others anything before they have looked.
                flags.wait_until(2, |&flag| flag == 1)?;
            }
            1 => {
                flags.wait_until(0, |&flag| flag == 1)?;
                flags.put(1, 1)?;
                flags.flush()?;
            }
            _ => {
                flags.wait_until(1, |&flag| flag == 1)?;
                assert_eq!(sum.get(2)?, 10);
                flags.put(2, 1)?;
                flags.flush()?;
            }
        }
        // Put here, read there: the mode's ends are between.
        let mut local = flags.local()?;
        local.fill(rank as u64);
        local.close()?;
        assert_eq!(flags.get(5)?, 2);
        let view = flags.read()?;
        assert_eq!(view.get(0)?, 0);
        view.close()?;
        flags.update(Op::Sum, |all| all.push(3, 1))?;
        assert_eq!(flags.get(3)?, 4);
        Ok(())
    });
}

#[test]
fn teams() {
    looking_for_races(4).run(|world| {
        let all = GlobalArray::<u64>::new(world, 4)?;
        let pair = world.split(world.rank() / 2, 0)?;
        // Among the two of a team, a barrier of the team is enough.
        let mine = GlobalArray::<u64>::new(&pair, 2)?;
        let first = world.rank() / 2 * 2;
        if pair.rank() == 0 {
            mine.put(1, 5)?;
            all.put(first, 6)?;
            all.flush()?;
        }
        pair.barrier()?;
        assert_eq!((mine.get(1)?, all.get(first)?), (5, 6));
        // Not so for the others.
        world.barrier()?;
        let put = if world.rank() == 1 {
            Ok(())
        } else {
            all.put(3, 1)
        };
        pair.barrier()?;
        let races = u32::from(put.is_err());
        assert!(world.all_reduce(races, Op::Sum)? >= 1);
        // Ranks are told by their numbers in the array's team.
        let put = mine.put(0, 1);
        if let Err(error) = &put {
            assert_eq!(error.peer(), Some(1 - pair.rank()));
            let text = format!("put by rank {}", pair.rank());
            assert!(error.to_string().contains(&text), "{error}");
        }
        assert!(pair.all_reduce(u32::from(put.is_err()), Op::Sum)? >= 1);
        Ok(())
    });
}

#[test]
fn races_that_are_meant() {
    looking_for_races(2).run(|world| {
        let a = GlobalArray::<u64>::builder(world, 4)
            .checks(Checks::Collectives)
            .build()?;
        let b = GlobalArray::<u64>::builder(world, 4)
            .checks(Checks::Races)
            .build()?;
        for _ in 0..100 {
            a.put(3, a.get(3)? + 1)?;
        }
        // It orders others all the same.
        if world.rank() == 0 {
            b.put(3, 1)?;
            b.flush()?;
            a.swap(0, 1)?;
        } else {
            while a.fetch_add(0, 0)? == 0 {}
            assert_eq!(b.get(3)?, 1);
        }
        world.barrier()
    });
}

/// More elements than there are places for.
#[test]
fn large_arrays() {
    looking_for_races(2).run(|world| {
        let a = GlobalArray::<u8>::new(world, 300_000)?;
        let last = 299_999;
        race!(
            world,
            "299999",
            did!(a.put(last, 1)),
            did!(a.put_range(last - 100_000, &vec![2; 100_001]))
        )?;
        // These share places.
        for index in [0, 1 << 15, 1 << 16] {
            a.put(index + world.rank(), 1)?;
            a.get(index + world.rank())?;
        }
        world.barrier()?;
        for _ in 0..2 {
            a.get_range(0..300_000)?;
        }
        world.barrier()
    });
}

#[test]
fn the_launcher_says_it() {
    let outcome = looking_for_races(2).outcome(|world| {
        let a = GlobalArray::<u64>::new(world, 2)?;
        a.put(1, world.rank() as u64)?;
        world.barrier()
    });
    let text = String::from_utf8_lossy(&outcome.stderr);
    assert!(!outcome.success());
    assert!(text.contains("race on index 1: put by rank "), "{text}");
    for line in ["tests/races.rs:", " and a write by rank "] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn what_checks_there_are() {
    let outcome = Ranks::new(2)
        .env("PGAS_CHECKS", "everything")
        .outcome(|_| Ok(()));
    let text = String::from_utf8_lossy(&outcome.stderr);
    let wanted = "PGAS_CHECKS is \"everything\", not collectives or races";
    assert!(text.contains(wanted), "{text}");
}

/// Rank 1 of 3 looks for races: no rank starts.
#[test]
fn all_ranks_have_the_same() {
    if std::env::var_os("PGAS_RANK").is_some() {
        let error = World::from_env().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert_eq!(error.peer(), Some(1));
        eprintln!("refused: {error}");
        return;
    }
    let script = r#"[ $PGAS_RANK = 1 ] && export PGAS_CHECKS=races
        exec "$0" --exact all_ranks_have_the_same --nocapture"#;
    let outcome = ucxrun::Job::new("/bin/sh")
        .args(["-c", script])
        .arg(std::env::current_exe().unwrap())
        .ranks(3)
        .output(ucxrun::Output::Capture)
        .timeout(Duration::from_secs(60))
        .run()
        .unwrap();
    let text = String::from_utf8_lossy(&outcome.stderr);
    let wanted = "PGAS_CHECKS says Collectives on rank 0 and Races on rank 1";
    assert_eq!(
        text.matches(&format!("refused: {wanted}")).count(),
        3,
        "{text}"
    );
}

#[test]
fn off_unless_asked_for() {
    Ranks::new(2)
        .env("PGAS_CHECKS", "collectives")
        .run(|world| {
            assert_eq!(world.checks(), Checks::Collectives);
            let a = GlobalArray::<u64>::new(world, 1)?;
            a.put(0, 1)?;
            a.get(0)?;
            let builder = || GlobalArray::<u64>::builder(world, 1);
            builder().checks(Checks::Collectives).build()?;
            let error = builder().checks(Checks::Races).build().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            world.barrier()
        });
}
