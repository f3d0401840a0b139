//! Every collective is a barrier, but a small broadcast: no rank returns before all have called it,
//! and then sees what all have put before. From a broadcast no rank returns before its root has called
//! it, and then sees what that has put before.

mod model;

use pgas::testing::Ranks;
use pgas::{GlobalArray, Op, Ragged, World};
use std::ops::Range;
use std::time::Duration;

/// What every rank has come to, one element each.
struct Rounds<'a> {
    world: &'a World,
    reached: GlobalArray<u64>,
    round: u64,
    late: usize,
}

impl Rounds<'_> {
    fn check<R>(&mut self, what: &str, call: impl FnOnce() -> pgas::Result<R>) -> pgas::Result<()> {
        self.check_ranks(what, 0..self.world.size(), call)
    }

    fn check_ranks<R>(
        &mut self,
        what: &str,
        ranks: Range<usize>,
        call: impl FnOnce() -> pgas::Result<R>,
    ) -> pgas::Result<()> {
        let me = self.world.rank();
        self.round += 1;
        if me == self.late {
            std::thread::sleep(Duration::from_millis(15));
        }
        self.reached.put(me, self.round)?;
        call()?;
        for rank in ranks {
            let reached = self.reached.get(rank)?;
            assert!(reached >= self.round, "{what}: rank {rank} has not come");
        }
        Ok(())
    }
}

fn every_collective(world: &World, late: usize, len: usize) -> pgas::Result<()> {
    let (me, size) = (world.rank(), world.size());
    let mut rounds = Rounds {
        world,
        reached: GlobalArray::new(world, size)?,
        round: 0,
        late,
    };
    let values = vec![me as u64; len * size];
    let rows: Ragged<u64> = (0..size).map(|to| vec![1; to * len]).collect();
    let text = "x".repeat(len);
    let texts = vec![text.clone(); size];
    let join = |a: String, b: String| a + &b;
    let mut some = values.clone();
    rounds.check("barrier", || world.barrier())?;
    rounds.check("ibarrier", || world.ibarrier()?.wait())?;
    rounds.check("all_gather", || world.all_gather_slice(&values))?;
    rounds.check("all_gather_ragged", || world.all_gather_ragged(&values))?;
    rounds.check("all_gather_obj", || world.all_gather_obj(&text))?;
    rounds.check("all_reduce", || world.all_reduce_slice(&mut some, Op::Sum))?;
    rounds.check("all_reduce_obj", || world.all_reduce_obj(&text, join))?;
    rounds.check("scan", || world.scan_slice(&mut some, Op::Sum))?;
    rounds.check("exscan", || world.exscan_slice(&mut some, Op::Sum))?;
    rounds.check("scan_obj", || world.scan_obj(&text, join))?;
    rounds.check("exscan_obj", || world.exscan_obj(&text, join))?;
    rounds.check("reduce_scatter", || world.reduce_scatter(&values, Op::Sum))?;
    rounds.check("reduce_scatter_obj", || {
        world.reduce_scatter_obj(&texts, join)
    })?;
    rounds.check("all_to_all", || world.all_to_all(&values))?;
    rounds.check("all_to_all_ragged", || world.all_to_all_ragged(&rows))?;
    rounds.check("all_to_all_obj", || world.all_to_all_obj(&texts))?;
    rounds.check("arg_min", || world.arg_min(me))?;
    rounds.check("split", || world.split(me, 0))?;
    for root in 0..size {
        let is_root = me == root;
        let who = match size_of_val(&some[..]) {
            ..=24 => root..root + 1,
            _ => 0..size,
        };
        rounds.check_ranks("broadcast", who, || world.broadcast_slice(root, &mut some))?;
        rounds.check("broadcast_obj", || world.broadcast_obj(root, Some(&text)))?;
        rounds.check("reduce", || world.reduce_slice(root, &values, Op::Sum))?;
        rounds.check("reduce_obj", || world.reduce_obj(root, &text, join))?;
        rounds.check("gather", || world.gather(root, &values))?;
        rounds.check("gather_obj", || world.gather_obj(root, &text))?;
        rounds.check("scatter", || world.scatter(root, is_root.then_some(&rows)))?;
        rounds.check("scatter_obj", || world.scatter_obj(root, Some(&texts[..])))?;
    }
    world.barrier()
}

#[test]
fn no_rank_leaves_before_all_have_come() {
    model::everywhere(3, |world| {
        for late in 0..3 {
            for len in [0, 1, 20_000] {
                every_collective(world, late, len)?;
            }
        }
        Ok(())
    });
}

/// A barrier that waits for one started before lets messages go on, which others may wait for first.
#[test]
fn messages_go_on_behind_a_started_barrier() {
    Ranks::new(2).env("PGAS_TIMEOUT", "10").run(|world| {
        let large = vec![7_u8; 8 << 20];
        if world.rank() == 0 {
            let message = world.isend(1, 1, &large)?;
            let started = world.ibarrier()?;
            world.barrier()?;
            started.wait()?;
            message.wait()
        } else {
            std::thread::sleep(Duration::from_millis(100));
            let (message, _) = world.recv::<u8>(0, 1)?;
            assert_eq!(message.len(), large.len());
            let started = world.ibarrier()?;
            world.barrier()?;
            started.wait()
        }
    });
}

/// Who waits for a barrier that was started sleeps until the others come, and is woken then.
#[test]
fn who_waits_for_a_started_barrier_is_idle() {
    Ranks::new(2).run(|world| {
        for late in 0..2 {
            world.barrier()?;
            if world.rank() == late {
                std::thread::sleep(Duration::from_secs(1));
                world.ibarrier()?.wait()?;
                continue;
            }
            let before = sleeps();
            world.ibarrier()?.wait()?;
            let sleeps = sleeps() - before;
            let network = std::env::var("UCX_TLS").is_ok_and(|tls| tls.starts_with("tcp"));
            assert!(network || sleeps < 300, "{sleeps} sleeps in a second");
        }
        Ok(())
    });
}

/// How often this thread has given its core away because it had to wait.
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}
