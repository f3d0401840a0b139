//! C25: a million operations to one rank and to all, whose program sleeps or is in a barrier. Memory
//! for what is under way is bounded on both sides.

#![expect(clippy::cast_possible_truncation, reason = "test numbers are small")]

mod model;

use model::over_tcp;
use pgas::testing::on_ranks;
use pgas::{GlobalArray, Op, World};
use std::time::Duration;

/// Most memory that this process ever had, in MiB.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.expect("a peak").parse::<usize>().expect("a number") >> 10
}

fn flood(world: &World) -> pgas::Result<()> {
    const MANY: usize = 1_000_000;
    const LEN: usize = 1 << 12;
    let mut array = GlobalArray::<u32>::new(world, LEN)?;
    let ranges = [array.range_of(1), 0..LEN];
    for (to_all, range) in ranges.into_iter().enumerate() {
        let index = |k: usize| range.start + k % range.len();
        let times = |at: usize| match range.contains(&at) {
            true => {
                (MANY / range.len() + usize::from(at - range.start < MANY % range.len())) as u32
            }
            false => 0,
        };
        // One rank sends, the other one sleeps or waits; then both send.
        let senders = 1 + to_all;
        let sends = world.rank() < senders;
        let before: Vec<u32> = array.get_range(0..LEN)?;
        world.barrier()?;
        if sends {
            let list: Vec<usize> = (0..MANY).map(index).collect();
            array.scatter_with(&list, &vec![1; MANY], Op::Sum)?;
        } else {
            std::thread::sleep(Duration::from_millis(1500));
        }
        world.barrier()?;
        array.update(Op::Sum, |array| match sends {
            true => (0..MANY).try_for_each(|k| array.push(index(k), 1)),
            false => {
                std::thread::sleep(Duration::from_millis(500));
                Ok(())
            }
        })?;
        for at in (0..LEN).step_by(61) {
            let right = before[at] + 2 * senders as u32 * times(at);
            assert_eq!(array.get(at)?, right, "{at}");
        }
        world.barrier()?;
        if sends {
            for k in 0..MANY {
                array.put(index(k), (k / range.len()) as u32)?;
            }
        }
        world.barrier()?;
        for at in range.clone().step_by(61) {
            assert_eq!(array.get(at)?, times(at) - 1, "{at}");
        }
        world.barrier()?;
    }
    let peak = peak();
    assert!(peak < 300, "{peak} MiB");
    Ok(())
}

#[test]
fn a_million_operations_take_little_memory() {
    on_ranks(2, flood);
}
#[test]
fn a_million_operations_over_the_network_take_little_memory() {
    over_tcp(2).run(flood);
}
