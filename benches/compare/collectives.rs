//! All ranks together: barrier, broadcast, all-reduce, all-to-all, a message from rank 0 to rank 1
//! while the others wait in a barrier, and pairs that send to each other. `benches/rivals/collectives.h` does the same.

use crate::batches::{Batches, median, nanoseconds};
use pgas::{Op, Result, World};
use std::time::Instant;

pub(crate) fn run(world: &World, batches: Batches) -> Result<()> {
    let large = (1 << 20) / 8;
    let figure = |name: &str, work: &mut dyn FnMut() -> Result<()>| {
        let ns = time(world, batches, work)?;
        if world.rank() == 0 {
            println!("figure {name} {ns}");
        }
        Ok(())
    };
    figure("barrier", &mut || world.barrier())?;
    let mut values = vec![1.0_f64; large];
    // From each rank in turn: each waits for the last, as what is done with the values would.
    let mut root = (0..world.size()).cycle();
    let mut next = move || root.next().unwrap_or(0);
    figure("broadcast_8", &mut || {
        world.broadcast_slice(next(), &mut values[..1])
    })?;
    figure("broadcast_1m", &mut || {
        world.broadcast_slice(next(), &mut values)
    })?;
    figure("all_reduce_8", &mut || {
        world.all_reduce_slice(&mut values[..1], Op::Sum)
    })?;
    values[0] = 1.0;
    figure("all_reduce_1m", &mut || {
        world.all_reduce_slice(&mut values, Op::Sum)
    })?;
    let give = vec![1.0_f64; world.size() * 512];
    let mut get = give.clone();
    figure("all_to_all_4k", &mut || {
        world.all_to_all_into(&give, &mut get)
    })?;
    let mut message = vec![1.0_f64; large];
    figure("message_1m", &mut || {
        match world.rank() {
            0 => {
                world.send(1, 1, &message)?;
                world.recv_into(1, 2, &mut message[..1])?;
            }
            1 => {
                world.recv_into(0, 1, &mut message)?;
                world.send(0, 2, &message[..1])?;
            }
            _ => {}
        }
        world.barrier()
    })?;
    let other = world.rank() ^ 1;
    let mut received = Vec::<f64>::new();
    figure("exchange_1m", &mut || {
        if other < world.size() {
            let receive = world.irecv_vec(other, 3, std::mem::take(&mut received))?;
            let send = world.isend(other, 3, &message)?;
            (received, _) = receive.wait()?;
            send.wait()?;
        }
        Ok(())
    })
}

/// Time of one call, by rank 0; the number of calls in a batch is found by doubling.
fn time(world: &World, batches: Batches, work: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
    work()?;
    let mut n = 1_u64;
    loop {
        world.barrier()?;
        let begin = Instant::now();
        (0..n).try_for_each(|_| work())?;
        let enough = nanoseconds(begin.elapsed()) >= batches.ns / 2.0 || n >= 1_000_000;
        if world.broadcast(0, enough)? {
            break;
        }
        n *= 2;
    }
    let mut times = Vec::new();
    for _ in 0..batches.count {
        world.barrier()?;
        let begin = Instant::now();
        (0..n).try_for_each(|_| work())?;
        times.push(nanoseconds(begin.elapsed()) / n as f64);
    }
    Ok(median(&mut times))
}
