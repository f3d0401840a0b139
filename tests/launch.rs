//! Programs under the real `ucxrun`: many ranks with few descriptors (C37), and what a rank
//! sees of the caller (C39).

use pgas::testing::Ranks;
use pgas::{GlobalArray, World};
use std::time::{Duration, Instant};

/// Start, barrier, a put to the next rank, exit.
fn neighbour(world: &World) -> pgas::Result<()> {
    let array = GlobalArray::<u32>::new(world, world.size())?;
    let next = (world.rank() + 1) % world.size();
    array.put(next, world.rank() as u32 + 1)?;
    world.barrier()?;
    let before = (world.rank() + world.size() - 1) % world.size();
    assert_eq!(array.get(world.rank())?, before as u32 + 1);
    Ok(())
}

fn start_many(ranks: usize, descriptors: u64) {
    let started = Instant::now();
    Ranks::new(ranks).timeout(Duration::from_secs(60)).run(move |world| {
        use rustix::process::{Resource, Rlimit, setrlimit};
        let limit = Some(descriptors);
        setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).unwrap();
        neighbour(world)
    });
    let taken = started.elapsed();
    assert!(taken < Duration::from_secs(30), "{ranks} ranks took {taken:?}");
}

#[test]
fn ranks_8() {
    start_many(8, 64);
}

#[test]
fn ranks_32() {
    start_many(32, 256);
}

#[test]
fn ranks_64() {
    start_many(64, 256);
}

/// Descriptors of a rank do not grow with the ranks, as long as it speaks to few.
#[test]
fn descriptors_of_a_rank() {
    let open = |ranks| {
        let outcome = Ranks::new(ranks).outcome(|world| {
            neighbour(world)?;
            if world.rank() == world.size() - 1 {
                println!("open: {}", std::fs::read_dir("/proc/self/fd").unwrap().count());
            }
            world.barrier()
        });
        assert!(outcome.success(), "{outcome}");
        let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
        let line = text.lines().find_map(|line| line.split("open: ").nth(1)).unwrap();
        line.parse::<usize>().unwrap()
    };
    // One job a test process; the second in another test would compare nothing.
    let few = open(8);
    assert!(few < 64, "{few} descriptors");
}
