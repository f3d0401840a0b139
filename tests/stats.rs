//! What ranks count for `ucxrun --stats`, and what they say that they are doing when time is up.

use pgas::testing::Ranks;
use pgas::{Dist, ErrorKind, GlobalArray, Op, span};
use std::time::Duration;

/// Operations and bytes of a rank with another.
fn with(outcome: &ucxrun::Outcome, rank: usize, other: u32) -> (u64, u64) {
    let stats = outcome.stats[rank].as_ref().unwrap();
    let traffic = stats.traffic.iter().find(|one| one.rank == other);
    traffic.map_or((0, 0), |one| (one.operations, one.bytes))
}

#[test]
fn every_operation_is_counted() {
    let outcome = Ranks::new(4).env("PGAS_STATS", "1").outcome(|world| {
        let me = world.rank();
        let mut array = GlobalArray::<u32>::new(world, 400)?;
        let next = (me + 1) % 4 * 100;
        // With the next rank: 10 + 5 + 3 + 20 + 1 + 1 + 2 + 1 operations.
        for k in 0..10 {
            array.put(next + k, 1)?;
        }
        for k in 0..5 {
            array.get(next + k)?;
        }
        for k in 0..3 {
            array.fetch_add(next + k, 1)?;
        }
        let indices: Vec<usize> = (next..next + 20).collect();
        array.gather(&indices)?;
        array.get_range(next..next + 50)?;
        array.put_section(
            span(next..next + 50).step_by(5),
            &ndarray::Array1::zeros(10),
        )?;
        array.scatter_with(&[next, next + 1], &[1, 2], Op::Sum)?;
        array.get_async(next)?.wait()?;
        world.barrier()?;
        // With rank 0: 7 operations, in modes.
        let view = array.read()?;
        for k in 0..3 {
            view.get(k)?;
        }
        view.close()?;
        let view = array.atomics()?;
        for k in 0..2 {
            view.fetch_add(k, 1)?;
        }
        view.close()?;
        array.update(Op::Sum, |array| (0..2).try_for_each(|k| array.push(k, 1)))?;
        // With itself: one. An array off the line, and a message.
        let cyclic = GlobalArray::<u64>::builder(world, 40)
            .dist([Dist::Cyclic])
            .build()?;
        cyclic.put(me, 5)?;
        world.barrier()?;
        if me == 3 {
            world.send(1, 7, &[0_u8; 1000])?;
        }
        if me == 1 {
            world.recv::<u8>(3, 7)?;
        }
        Ok(())
    });
    assert!(outcome.success(), "{outcome}");
    let sent = (
        10 + 5 + 3 + 20 + 1 + 1 + 2 + 1,
        4 * (10 + 5 + 3 + 20 + 50 + 10 + 2 + 1),
    );
    for rank in 0..3 {
        let next = u32::try_from(rank + 1).unwrap();
        assert_eq!(with(&outcome, rank, next), sent, "{rank}");
    }
    let to_zero = with(&outcome, 3, 0);
    assert_eq!(to_zero, (sent.0 + 7, sent.1 + 28));
    assert_eq!(with(&outcome, 0, 0), (7 + 1, 28 + 8));
    assert_eq!(with(&outcome, 2, 0), (7, 28));
    assert_eq!(with(&outcome, 2, 2), (1, 8));
    assert_eq!(with(&outcome, 3, 1), (1, 1000));
    assert_eq!(with(&outcome, 1, 3), (0, 0));
}

#[test]
fn waits_are_counted() {
    let outcome = Ranks::new(2).env("PGAS_STATS", "1").outcome(|world| {
        if world.rank() == 1 {
            std::thread::sleep(Duration::from_millis(300));
        }
        world.barrier()
    });
    let waited = |rank: usize| outcome.stats[rank].as_ref().unwrap().waited;
    assert!(waited(0) >= Duration::from_millis(200), "{:?}", waited(0));
    assert!(waited(0) <= Duration::from_secs(5), "{:?}", waited(0));
    assert!(waited(1) < waited(0), "{:?}", waited(1));
}

#[test]
fn nothing_is_counted_unasked() {
    let outcome = Ranks::new(2).outcome(|world| {
        let array = GlobalArray::<u32>::new(world, 400)?;
        array.put(3, 1)?;
        Ok(())
    });
    assert!(outcome.success(), "{outcome}");
    assert_eq!(outcome.stats, [None, None]);
}

#[test]
fn late_ranks_say_where_they_are() {
    let ranks = Ranks::new(4).env("PGAS_WATCH", "1");
    let outcome = ranks.timeout(Duration::from_secs(2)).outcome(|world| {
        match world.rank() {
            0 => std::thread::sleep(Duration::from_secs(60)),
            1 => loop {
                std::hint::spin_loop();
            },
            _ => world.barrier()?,
        }
        Ok(())
    });
    assert_eq!(outcome.code, 124, "{outcome}");
    let doing = outcome.doing.join("\n");
    assert!(
        doing.contains("ranks 2-3: in barrier at tests/stats.rs:"),
        "{doing}"
    );
    // A thread of UCX's may be awake in rank 0 just then.
    let together = doing.contains("ranks 0-1: running, ");
    assert!(together || doing.contains("rank 1: running, "), "{doing}");
    assert!(together || doing.contains("rank 0: "), "{doing}");
}

#[test]
fn errors_are_as_without() {
    let outcome = Ranks::new(2).env("PGAS_STATS", "1").outcome(|world| {
        let array = GlobalArray::<u32>::new(world, 10)?;
        let error = array.get(10).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfBounds);
        assert_eq!(
            error.to_string(),
            "get of index 10: the array has 10 elements"
        );
        let error = array.gather(&[3, 11]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfBounds);
        world.barrier()
    });
    assert!(outcome.success(), "{outcome}");
}
