//! Programs whose ranks do not call the same: nobody hangs, everybody hears of it, and all can go on.
//!
//! Small broadcasts are what makes this hard: ranks that do not wait for each other may be at
//! different collectives when one of them does something else.

use pgas::testing::Ranks;
use pgas::{ErrorKind, Op, Result, World};

const CALLS: usize = 40;

/// Numbers that are the same on all ranks: splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) >> 32).unwrap() % limit
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    Broadcast(usize),
    /// Too much to be handed out.
    BroadcastMany(usize),
    BroadcastObject(usize),
    NoSuchRoot,
    Barrier,
    LateBarrier,
    Sum,
}

impl Call {
    fn any(random: &mut Random, ranks: usize) -> Self {
        let root = random.below(ranks);
        match random.below(12) {
            0..6 => Self::Broadcast(root),
            6 => Self::BroadcastMany(root),
            7 => Self::BroadcastObject(root),
            8 => Self::NoSuchRoot,
            9 => Self::Barrier,
            10 => Self::LateBarrier,
            _ => Self::Sum,
        }
    }

    /// With `number` as what is sent. What comes is checked only `if_all` ranks call the same.
    fn run(self, world: &World, number: u64, if_all: bool) -> Result<()> {
        let right = |is: bool| assert!(is || !if_all, "{self:?}");
        match self {
            Self::Broadcast(root) => {
                let mine = if world.rank() == root { number } else { 0 };
                right(world.broadcast(root, mine)? == number);
            }
            Self::BroadcastMany(root) => {
                let mine = if world.rank() == root { number } else { 0 };
                let mut values = [mine; 9];
                world.broadcast_slice(root, &mut values)?;
                right(values == [number; 9]);
            }
            Self::BroadcastObject(root) => {
                let mine = Some(number).filter(|_| world.rank() == root);
                right(world.broadcast_obj(root, mine.as_ref())? == number);
            }
            Self::NoSuchRoot => {
                world.broadcast(world.size(), number)?;
            }
            Self::Barrier => world.barrier()?,
            Self::LateBarrier => world.ibarrier()?.wait()?,
            Self::Sum => right(world.all_reduce(number, Op::Sum)? == number * world.size() as u64),
        }
        Ok(())
    }
}

/// Runs a program in which some ranks sometimes call something else; the errors of this rank.
fn program(world: &World, seed: u64) -> Result<()> {
    let mut random = Random(seed);
    let ranks = world.size();
    let mut wrong = false;
    let mut heard = false;
    for number in 0..CALLS {
        let planned = Call::any(&mut random, ranks);
        let mut calls = vec![planned; ranks];
        // One of objects takes two meetings, and nobody else's call takes so many.
        if random.below(12) == 0 && !matches!(planned, Call::BroadcastObject(_)) {
            let other = Call::any(&mut random, ranks);
            if !matches!(other, Call::BroadcastObject(_)) {
                calls[random.below(ranks)] = other;
            }
        }
        let alike = calls.iter().all(|call| *call == calls[0]);
        wrong |= !alike;
        // Before a disagreement has been heard by all, any call may end with it.
        match calls[world.rank()].run(world, number as u64 + 1, alike) {
            Ok(()) => assert_ne!(calls[world.rank()], Call::NoSuchRoot),
            Err(error) if error.kind() == ErrorKind::InvalidArgument => {
                assert_eq!(calls[world.rank()], Call::NoSuchRoot, "{error}");
                // It has heard that its own call is wrong; of that of others it may hear later.
                heard |= !alike;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Mismatch, "{seed}: {error}");
                assert!(wrong, "{seed}: {number}: {error}");
                heard = true;
            }
        }
        if random.below(8) == 0 {
            std::thread::sleep(std::time::Duration::from_micros(random.below(300) as u64));
        }
    }
    match world.barrier() {
        Ok(()) => {}
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{seed}: {error}");
            heard = true;
        }
    }
    assert_eq!(wrong, heard, "{seed}");
    world.barrier()
}

fn programs(ranks: usize, count: u64) {
    Ranks::new(ranks)
        .env("PGAS_TIMEOUT", "20")
        .run(|world| (0..count).try_for_each(|seed| program(world, seed)));
}

#[test]
fn programs_of_2_ranks() {
    programs(2, 300);
}

#[test]
fn programs_of_3_ranks() {
    programs(3, 300);
}

#[test]
fn programs_of_5_ranks() {
    programs(5, 300);
}

/// As many as see for themselves that all agree, and one more, who are told.
#[test]
fn programs_of_16_ranks() {
    programs(16, 30);
}

#[test]
fn programs_of_17_ranks() {
    programs(17, 30);
}

/// Past the meetings in which the leader must have a word, and sums that a rank which is ahead would spoil.
#[test]
fn many_meetings_and_then_a_mismatch() {
    Ranks::new(3).run(|world| {
        let me = world.rank() as u64;
        for round in 0..90_000 {
            let sum = world.all_reduce(round * me, Op::Sum)?;
            assert_eq!(sum, 3 * round);
            world.barrier()?;
        }
        let wrong = match me {
            1 => world.all_reduce(me, Op::Max).map(drop),
            _ => world.barrier(),
        };
        assert_eq!(
            wrong.map_err(|error| error.kind()),
            Err(ErrorKind::Mismatch)
        );
        assert_eq!(world.all_reduce(me, Op::Max)?, 2);
        Ok(())
    });
}

/// Ranks that sleep in a meeting, all but one that comes late, are woken and see what it brings.
#[test]
fn sleepers_hear_of_the_last_one() {
    Ranks::new(4)
        .env("PGAS_YIELD", "0")
        .env("PGAS_NAP", "20000")
        .run(|world| {
            for round in 0..200 {
                let late = round % world.size();
                if world.rank() == late {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
                let sum = world.all_reduce(round + world.rank(), Op::Sum)?;
                assert_eq!(sum, 4 * round + 6);
                // Larger ones meet at the stage, too.
                let mut many = vec![round; 2000];
                if world.rank() == late {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
                world.all_reduce_slice(&mut many, Op::Sum)?;
                assert_eq!(many, [4 * round; 2000]);
            }
            Ok(())
        });
}
