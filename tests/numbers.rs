//! Teams without end, of whose numbers there are only so many. They choose their transports themselves, and take long.

#![expect(clippy::cast_possible_truncation, reason = "test numbers are small")]

mod model;

use model::collectives;
use pgas::testing::{Ranks, on_ranks};
use pgas::{Any, ErrorKind, GlobalArray, Op, World};
use std::time::{Duration, Instant};

/// More teams than there are numbers for, one after another. Those that are there all the time keep
/// theirs, and what nobody has received in a team does not reach another of its number.
fn more_teams_than_numbers(world: &World) -> pgas::Result<()> {
    let (me, other) = (world.rank(), 1 - world.rank());
    let began = Instant::now();
    let alone = world.split(me, 0)?;
    let (mut kept, mut held) = (Vec::new(), Vec::new());
    for round in 0..40_000_u32 {
        // Numbers are used again from 32,768 on. Often before, and always then, there are two ranks in
        // a team, and all messages are looked for; else one, which needs nobody else.
        let both = round < 100 || round % 100 == 0 || (32_700..33_000).contains(&round);
        if !both && round % 4_000 != 50 {
            assert_eq!(alone.split(0, 0)?.size(), 1);
            continue;
        }
        let team = world.split(0, 0)?;
        match round {
            // Never received. To the other, to itself, from both, and in a team of a team.
            7 | 8 => team.send(other, 3, &[round])?,
            9 => team.send(me, 3, &[round])?,
            10 => drop(team.isend(other, 3, &vec![round; 100_000])?),
            11 => team.split(0, 0)?.send(other, 3, &[round])?,
            // Received, all of it, and then the number is free.
            12..30 => {
                let got = team.sendrecv(other, Any, 3, &[round])?;
                assert_eq!(got.0, [round]);
                let request = team.irecv::<u32>(other, 4)?;
                team.send(other, 4, &[round])?;
                assert_eq!(request.wait()?.0, [round]);
                team.ibarrier()?.wait()?;
                let large = team.all_to_all(&vec![round; 50_000])?;
                assert_eq!(large.len(), 50_000);
            }
            _ => {}
        }
        if both && !(7..=11).contains(&round) {
            assert_eq!(team.all_reduce(round, Op::Max)?, round);
            assert_eq!(team.iprobe(Any, Any)?, None, "round {round}");
            let array = GlobalArray::<u32>::new(&team, 2)?;
            array.put(me, round)?;
            team.barrier()?;
            assert_eq!(array.get(other)?, round);
        }
        match round {
            _ if round % 4_000 == 50 => {
                team.send(other, 5, &[round])?;
                let array = GlobalArray::from_fn(&team, 2, |i: usize| round + i as u32)?;
                kept.push((round, array, team));
            }
            // So many at a time that they have all the numbers that the first teams had.
            32_700..33_000 => held.push(team),
            _ => held.clear(),
        }
        let limit = Duration::from_secs(100);
        assert!(began.elapsed() < limit, "{round} rounds in {limit:?}");
    }
    assert_eq!(kept.len(), 10);
    for (round, array, team) in kept {
        assert_eq!(team.recv::<u32>(Any, Any)?.0, [round]);
        assert_eq!(team.iprobe(Any, Any)?, None);
        assert_eq!(team.all_reduce(round, Op::Max)?, round);
        assert_eq!(array.get(other)?, round + other as u32);
    }
    Ok(())
}

#[test]
fn more_teams_than_numbers_on_one_node() {
    on_ranks(2, more_teams_than_numbers);
}

#[test]
fn more_teams_than_numbers_on_two_nodes() {
    Ranks::new(2)
        .env("UCX_TLS", "tcp,self")
        .run(more_teams_than_numbers);
}

/// With as many teams as there are numbers the next one is an error, of all ranks. Of few numbers that
/// are left each is used many times, if all messages of its teams have been received.
fn numbers_run_out(world: &World) -> pgas::Result<()> {
    let me = world.rank();
    let mut alone = vec![world.split(me, 0)?];
    while alone.len() < 32_767 - 20 {
        alone.push(alone[0].split(0, 0)?);
    }
    for round in 0..100 {
        let team = world.split(0, 0)?;
        collectives::all(&team, round)?;
        // Not waited for, but come to; and a request that is dropped.
        drop(team.ibarrier()?);
        drop(team.irecv::<u8>(Any, 9)?);
        let large = vec![1_u8; 300_000];
        let sent = team.isend(1 - me, 8, &large)?;
        assert_eq!(team.probe(1 - me, 8)?.bytes, 300_000);
        assert!(team.recv::<u8>(Any, Any)?.0 == large);
        sent.wait()?;
        team.barrier()?;
        let half = team.split(me, 0)?;
        // The one that it was made of goes before it, on one rank.
        match me {
            0 => drop((team, half)),
            _ => drop((half, team)),
        }
    }
    // What is left is used by those that have not been told of, and by these.
    let mut few = Vec::new();
    let error = loop {
        match world.split(0, 0) {
            Ok(team) => few.push(team),
            Err(error) => break error,
        }
        assert!(few.len() < 30);
    };
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.to_string().contains("all 32767 numbers"), "{error}");
    assert!((18..=20).contains(&few.len()), "{}", few.len());
    for team in few.drain(..) {
        collectives::all(&team, 5)?;
    }
    // In dividing it again ranks tell that they have dropped those.
    collectives::all(&world.split(0, 0)?, 5)?;
    drop(alone);
    collectives::all(world, 3)
}

#[test]
fn numbers_run_out_on_one_node() {
    on_ranks(2, numbers_run_out);
}

#[test]
fn numbers_run_out_on_two_nodes() {
    Ranks::new(2)
        .env("UCX_TLS", "tcp,self")
        .run(numbers_run_out);
}
