//! Teams: their ranks, collectives, arrays, modes and messages, apart and overlapping.

#![expect(clippy::cast_possible_truncation, reason = "test numbers are small")]

use pgas::testing::{Ranks, on_ranks};
use pgas::{Any, Counter, Dist, ErrorKind, GlobalArray, Op, Signals, Team, World};

/// Everything that a team can do, with numbers that differ from team to team.
fn exercise(team: &Team, salt: u64) -> pgas::Result<()> {
    let (rank, size) = (team.rank(), team.size());
    let sum = (0..size as u64).map(|r| r * salt).sum::<u64>();
    assert_eq!(team.all_reduce(rank as u64 * salt, Op::Sum)?, sum);
    assert_eq!(team.broadcast(size - 1, rank)?, size - 1);
    let large = team.all_gather_slice(&vec![salt + rank as u64; 20_000])?;
    assert!(
        large
            .chunks(20_000)
            .zip(salt..)
            .all(|(chunk, v)| chunk.iter().all(|&x| x == v))
    );
    let all = team.all_to_all(&vec![rank as u64 * salt; size])?;
    assert!(all.into_iter().eq((0..size as u64).map(|r| r * salt)));
    // Arrays.
    let mut array = GlobalArray::<u64, 2>::builder(team, [5, 7])
        .dist([Dist::Cyclic, Dist::Block])
        .from_fn(|[i, j]| salt + (i * 10 + j) as u64)?;
    for (i, j) in [(0, 0), (4, 6), (2, 3)] {
        assert_eq!(array.get([i, j])?, salt + (i * 10 + j) as u64);
    }
    array.update(Op::Sum, |u| (0..5).try_for_each(|i| u.push([i, 6], salt)))?;
    let column = array.get_section((.., 6))?;
    let right = |(i, &v): (usize, &u64)| v == salt + (i * 10 + 6) as u64 + salt * size as u64;
    assert!(column.iter().enumerate().all(right));
    let mut line = GlobalArray::<u32>::builder(team, 23)
        .halo([1])
        .from_fn(|i: usize| i as u32)?;
    let mut view = line.local()?;
    view.exchange()?;
    view.close()?;
    let view = line.read()?;
    assert_eq!(view.gather(&[22, 0, 11])?, [22, 0, 11]);
    for r in 0..size {
        assert_eq!(
            view.shard_of(r)?.len(),
            if view.owned().is_empty() {
                0
            } else {
                view.shard_of(r)?.len()
            }
        );
    }
    view.close()?;
    line.close()?;
    // Messages, by the ranks of the team.
    let next = (rank + 1) % size;
    let (values, envelope) = team.sendrecv(next, Any, 3, &[salt, rank as u64])?;
    let before = (rank + size - 1) % size;
    assert_eq!(
        (values, envelope.source),
        (vec![salt, before as u64], before)
    );
    // Signals and counters.
    let signals = Signals::new(team, 1)?;
    signals.add(next, 0, salt)?;
    signals.wait(0, |value| value == salt)?;
    let counter = Counter::new(team)?;
    let drawn = team.all_gather(counter.next(1)?)?;
    assert_eq!(
        drawn.iter().sum::<u64>(),
        (size as u64) * (size as u64 - 1) / 2
    );
    Ok(())
}

fn teams(world: &World) -> pgas::Result<()> {
    let (rank, size) = (world.rank(), world.size());
    // Odd and even, backwards.
    let half = world.split(rank % 2, -(rank as i64))?;
    let of_this: Vec<usize> = (0..size).rev().filter(|r| r % 2 == rank % 2).collect();
    assert_eq!(half.size(), of_this.len());
    for (r, &w) in of_this.iter().enumerate() {
        assert_eq!((half.world_rank(r), half.rank_of(w)), (w, Some(r)));
    }
    assert_eq!(
        half.rank_of((rank + 1) % 2),
        (size == 1).then_some(0).filter(|_| rank == 1)
    );
    assert_eq!(half.world_rank(half.rank()), rank);
    exercise(&half, 1000 + rank as u64 % 2)?;
    // A team of a team, while its ranks' others go on with theirs.
    let quarter = half.split(half.rank() / 2, 0)?;
    assert!(quarter.size() <= 2);
    exercise(&quarter, 77 + (half.rank() / 2) as u64)?;
    // Some only.
    let first = world.subset(rank < 2)?;
    assert_eq!(
        first.as_ref().map(Team::size),
        (rank < 2).then_some(size.min(2))
    );
    if let Some(first) = &first {
        exercise(first, 5)?;
    }
    let node = world.split_node()?;
    assert_eq!(node.size(), world.node_ranks().len());
    exercise(&node, 9)?;
    // All at once, in turn, and the world among them.
    for round in 0..20 {
        for team in [&half, &quarter, &node] {
            let sum = team.all_reduce(round, Op::Sum)?;
            assert_eq!(sum, round * team.size() as u64);
        }
        assert_eq!(world.all_reduce(round, Op::Max)?, round);
    }
    // They may go in any order, and arrays of theirs later.
    let array = GlobalArray::<u8>::new(&quarter, 10)?;
    let mine = quarter.rank();
    drop(quarter);
    drop(half);
    // In the memory of the team's first rank, an element for each.
    array.put(mine, 1)?;
    drop(array);
    exercise(world, 3)
}

#[test]
fn teams_of_1_rank() {
    on_ranks(1, teams);
}
#[test]
fn teams_of_4_ranks() {
    on_ranks(4, teams);
}
#[test]
fn teams_of_7_ranks() {
    on_ranks(7, teams);
}

/// Rows and columns of a grid are teams, too.
#[test]
fn grids_and_their_lines() {
    on_ranks(6, |world| {
        let grid = world.grid([2, 3], [false, true])?;
        let [i, j] = grid.coordinates();
        assert_eq!((world.rank(), grid.shape()), (i * 3 + j, [2, 3]));
        assert_eq!(grid.rank_at([i, j]), Some(world.rank()));
        assert_eq!(grid.rank_at([2, 0]), None);
        assert_eq!(grid.neighbour(0, 1), (i == 0).then_some(3 + j));
        assert_eq!(grid.neighbour(0, -1), (i == 1).then_some(j));
        assert_eq!(grid.neighbour(1, 1), Some(i * 3 + (j + 1) % 3));
        assert_eq!(grid.neighbour(1, -7), Some(i * 3 + (j + 2) % 3));
        let (row, column) = (grid.line(1)?, grid.line(0)?);
        assert_eq!((row.size(), row.rank()), (3, j));
        assert_eq!((column.size(), column.rank()), (2, i));
        assert_eq!(row.all_gather(world.rank())?, [i * 3, i * 3 + 1, i * 3 + 2]);
        assert_eq!(column.all_gather(world.rank())?, [j, 3 + j]);
        // One after another, as a matrix product would.
        for k in 0..50 {
            let a = row.broadcast(k % 3, world.rank())?;
            let b = column.broadcast(k % 2, world.rank())?;
            assert_eq!((a, b), (i * 3 + k % 3, k % 2 * 3 + j));
        }
        let error = world.grid([4, 2], [false; 2]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        Ok(())
    });
}

/// Messages of one team are not another's, though ranks and tags are equal.
#[test]
fn messages_of_teams_do_not_mix() {
    on_ranks(4, |world| {
        let same = world.split(0, 0)?;
        let reversed = world.split(0, -(world.rank() as i64))?;
        let to = (world.rank() + 1) % 4;
        world.send(to, 7, &[1_u8])?;
        same.send(to, 7, &[2_u8])?;
        let back = reversed.rank_of(to).unwrap();
        reversed.send(back, 7, &[3_u8])?;
        let from = (world.rank() + 3) % 4;
        let (values, envelope) = reversed.recv::<u8>(Any, 7)?;
        assert_eq!(
            (values, envelope.source),
            (vec![3], reversed.rank_of(from).unwrap())
        );
        assert_eq!(same.recv::<u8>(from, Any)?.0, [2]);
        assert_eq!(world.recv::<u8>(Any, Any)?.0, [1]);
        assert_eq!(same.iprobe(Any, Any)?, None);
        let error = world.send(to, 1 << 28, &[0_u8]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        world.barrier()
    });
}

/// What is wrong in one team stays there, and errors speak of its ranks.
#[test]
fn teams_disagree_by_themselves() {
    on_ranks(4, |world| {
        let half = world.split(world.rank() / 2, 0)?;
        if world.rank() < 2 {
            let error = match half.rank() {
                0 => half.barrier().unwrap_err(),
                _ => half.all_reduce(1, Op::Sum).map(drop).unwrap_err(),
            };
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        } else {
            assert_eq!(half.all_reduce(2, Op::Sum)?, 4);
        }
        let error = match world.rank() {
            3 => world.barrier().unwrap_err(),
            _ => world.split(0, 0).map(drop).unwrap_err(),
        };
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        // And all goes on.
        let again = world.split(0, 0)?;
        assert_eq!(again.all_reduce(1, Op::Sum)?, 4);
        Ok(())
    });
}

/// Divided by two threads at once, teams have numbers of their own.
#[test]
fn teams_of_two_threads() {
    on_ranks(2, |world| {
        let (a, b) = (world.split(0, 0)?, world.split(0, 0)?);
        let turn = std::sync::Mutex::new(0);
        for round in 0..30_u64 {
            let split = |team: &Team, number: u64| loop {
                // In one order on all ranks, though not by one thread.
                let mut turn = turn.lock().unwrap();
                if *turn == 2 * round + number {
                    *turn += 1;
                    return team.split(0, 0).unwrap();
                }
            };
            let (x, y) = std::thread::scope(|scope| {
                let x = scope.spawn(|| split(&a, 0));
                let y = scope.spawn(|| split(&b, 1));
                (x.join().unwrap(), y.join().unwrap())
            });
            x.send(1 - x.rank(), 1, &[round])?;
            assert_eq!(y.iprobe(Any, Any)?, None);
            assert_eq!(x.recv::<u64>(Any, Any)?.0, [round]);
        }
        Ok(())
    });
}

/// C29 (f): two teams in opposite order on two ranks is an error in the end, not a hang.
#[test]
fn teams_in_opposite_order() {
    Ranks::new(2).env("PGAS_TIMEOUT", "1").run(|world| {
        let (a, b) = (world.split(0, 0)?, world.split(0, 0)?);
        let error = match world.rank() {
            0 => a.barrier().and_then(|()| b.barrier()),
            _ => b.barrier().and_then(|()| a.barrier()),
        };
        let kind = error.unwrap_err().kind();
        assert!(
            matches!(kind, ErrorKind::Timeout | ErrorKind::PeerFailed),
            "{kind:?}"
        );
        world.barrier()
    });
}

/// Teams that come and go.
#[test]
fn many_teams() {
    on_ranks(3, |world| {
        let mappings =
            || std::fs::read_to_string("/proc/self/maps").map_or(0, |t| t.lines().count());
        let mut before = usize::MAX;
        for round in 0..60 {
            if round == 10 {
                before = mappings();
            }
            let team = world.split((world.rank() + round) % 2, 0)?;
            assert_eq!(team.all_reduce(1, Op::Sum)?, team.size());
            let array = GlobalArray::<u16>::new(&team, 100)?;
            array.put(team.rank(), 1)?;
            if round % 2 == 0 {
                array.close()?;
            }
        }
        // What they had in memory goes with them.
        let after = mappings();
        assert!(after < before + 12, "{before} mappings became {after}");
        Ok(())
    });
}
