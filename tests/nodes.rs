//! Nodes of several ranks: some shards are mapped and others are across the network, in one
//! operation.
//!
//! Two nodes on one machine: half of the ranks see another boot id, by which the library and UCX
//! tell machines apart.

mod model;

use model::collectives;
use model::ghosts::{Cell, Plan, any_edge};
use model::{Case, Random, indices, row_major};
use ndarray::Array;
use pgas::{BitOp, GlobalArray, Op, World, span};

/// Tells the worker how many of 4 ranks are on the first node.
const WORKER: &str = "NODES_WORKER";

/// Runs this file's worker on two nodes, the first one of so many ranks.
fn on_two_nodes(first: usize) {
    let boot_id = std::env::temp_dir().join(format!("boot-id-{}-{first}", std::process::id()));
    std::fs::write(&boot_id, "01234567-89ab-cdef-0123-456789abcdef\n").unwrap();
    let script = format!(
        "if [ \"${}\" -ge {first} ]; then \
         mount --bind \"$0\" /proc/sys/kernel/random/boot_id || exit 1; fi; exec \"$@\"",
        ucxrun::wire::env::RANK
    );
    let as_root: &[&str] = match rustix::process::geteuid().is_root() {
        true => &[],
        false => &["--user", "--map-root-user"],
    };
    // Whatever transports the tests run over, this is about those that are found here.
    let outcome = ucxrun::Job::new("env")
        .ranks(4)
        .output(ucxrun::Output::Capture)
        .args(["-u", "UCX_TLS", "unshare"])
        .args(as_root)
        .args(["--mount", "--", "sh", "-c", &script])
        .arg(&boot_id)
        .arg(std::env::current_exe().unwrap())
        .args(["worker", "--exact", "--nocapture", "--include-ignored"])
        .arg("--test-threads=1")
        .timeout(std::time::Duration::from_secs(60))
        .default_environment()
        .env(WORKER, first.to_string())
        .run()
        .unwrap();
    std::fs::remove_file(&boot_id).unwrap();
    let text = format!(
        "{outcome}\n{}{}",
        String::from_utf8_lossy(&outcome.stdout),
        String::from_utf8_lossy(&outcome.stderr)
    );
    assert!(outcome.success(), "{text}");
    assert_eq!(text.matches("worked through").count(), 4, "{text}");
}

#[test]
fn two_ranks_on_each() {
    on_two_nodes(2);
}
#[test]
fn one_rank_apart() {
    on_two_nodes(1);
    on_two_nodes(3);
}

#[test]
#[ignore = "started by the other tests of this file"]
fn worker() {
    let first: usize = std::env::var(WORKER).unwrap().parse().unwrap();
    let run = World::run(|world| {
        let mine = if world.rank() < first {
            0..first
        } else {
            first..4
        };
        assert_eq!(world.node_ranks(), mine.collect::<Vec<_>>());
        let mut random = Random(first as u64);
        for _ in 0..30 {
            elements(world, &mut random)?;
            ghost_cells(world, &mut random)?;
        }
        for len in collectives::LENS {
            collectives::all(world, len)?;
        }
        teams(world)?;
        println!("worked through");
        Ok::<_, pgas::Error>(())
    });
    if let Err(error) = run {
        eprintln!("Error: {error}");
        std::process::exit(1);
    }
    std::process::exit(0);
}

/// Teams across the nodes, numbered against their order.
fn teams(world: &World) -> pgas::Result<()> {
    let rank = world.rank() as i64;
    for team in [
        world.split(0, -rank)?,
        world.split(world.rank() % 2, -rank)?,
    ] {
        let (me, size) = (team.rank(), team.size());
        let all: Vec<usize> = (0..size).map(|r| team.world_rank(r)).collect();
        assert_eq!(team.all_gather(world.rank())?, all);
        // In rank order, though the nodes' ranks are not neighbours.
        let append = |a: [u64; 2], b: [u64; 2]| [a[0] * b[1] + b[0], a[1] * b[1]];
        let joined = team.all_reduce([me as u64, 10], append)?;
        let right = (0..size as u64).fold(0, |number, r| number * 10 + r);
        assert_eq!(joined[0], right);
        let array = GlobalArray::<u64>::from_fn(&team, 1_000, |index| index as u64)?;
        let indices: Vec<usize> = (0..2_000).map(|k| k * 7 % 1_000).collect();
        let right: Vec<u64> = indices.iter().map(|&index| index as u64).collect();
        assert_eq!(array.gather(&indices)?, right);
        let next = (me + 1) % size;
        let (values, _) = team.sendrecv(next, (me + size - 1) % size, 1, &vec![me; 50_000])?;
        assert_eq!(values[49_999], (me + size - 1) % size);
        let parts = team.all_to_all(&vec![me; size * 3])?;
        assert!(parts.iter().enumerate().all(|(k, &r)| r == k / 3));
        for len in [5, 100_003, 2_000] {
            collectives::all(&team, len)?;
        }
    }
    world.barrier()
}

/// All operations on many elements; all ranks at once where they commute.
fn elements(world: &World, random: &mut Random) -> pgas::Result<()> {
    let case = Case::<2>::random(random, 4, 25);
    let shape = case.shape;
    let all = indices(shape);
    let mut array = case.filled::<u64>(world, 0)?;
    let mut right: Vec<u64> = (0..case.len()).map(model::Value::of).collect();
    assert_eq!(array.gather(&all)?, right, "{case:?}");
    world.barrier()?;
    for rank in 0..4 {
        let backwards = Array::from_shape_fn(shape, |(i, j)| (i * 100 + j * 7 + rank) as u64);
        let mut list = all.clone();
        random.shuffle(&mut list);
        let values: Vec<u64> = (0..list.len()).map(|k| (k * 11 + rank) as u64).collect();
        if rank == world.rank() {
            array.acc(
                (span(..).step_by(-1), span(..).step_by(-1)),
                &backwards,
                Op::Sum,
            )?;
            array.scatter_with(&list, &values, Op::Sum)?;
            for &index in &list {
                array.fetch_add(index, 3)?;
            }
        }
        for (&[i, j], to) in all.iter().zip(&mut right) {
            *to += backwards[[shape[0] - 1 - i, shape[1] - 1 - j]] + 3;
        }
        for (index, value) in list.into_iter().zip(values) {
            right[row_major(index, shape)] += value;
        }
    }
    world.barrier()?;
    let got = array.get_section((.., ..))?;
    assert!(got.iter().eq(&right), "{case:?}");
    world.barrier()?;
    array.update(BitOp::Xor, |array| {
        let flip = |&index: &[usize; 2]| array.push(index, 1 << world.rank());
        all.iter().try_for_each(flip)
    })?;
    right.iter_mut().for_each(|value| *value ^= 0b1111);
    assert_eq!(array.gather(&all)?, right, "{case:?}");
    world.barrier()?;
    // Every fourth row from each rank, of which it sees itself at once what it wrote.
    let mine = || (span(world.rank()..).step_by(4), span(..).step_by(-1));
    if world.rank() < shape[0] {
        let old = array.get_section(mine())?;
        let new = old.mapv(|value| value + 1);
        array.put_section(mine(), &new)?;
        assert_eq!(array.get_section(mine())?, new, "{case:?}");
        array.scatter(&all[..0], &[])?;
    }
    right.iter_mut().for_each(|value| *value += 1);
    world.barrier()?;
    let view = array.read()?;
    assert!(view.section((.., ..))?.iter().eq(&right), "{case:?}");
    view.close()
}

fn ghost_cells(world: &World, random: &mut Random) -> pgas::Result<()> {
    let plan = Plan::<2>::random(random, 4, 10, any_edge);
    let shape = plan.shape();
    let value = |number: usize, round: usize| (number * 100 + round) as u64;
    let mut array = plan.builder::<u64>(world).build()?;
    for round in 0..4 {
        let mut view = array.local()?;
        let owned: Vec<_> = view.owned().iter().collect();
        for (cell, index) in view.array_mut().iter_mut().zip(owned) {
            *cell = value(row_major(index, shape), round);
        }
        view.exchange()?;
        for (cell, got) in plan.cells(world.rank()).into_iter().zip(view.iter()) {
            if let Cell::Own(number) | Cell::Ghost(number) = cell {
                assert_eq!(*got, value(number, round), "{plan:?} {cell:?}");
            }
        }
        view.accumulate_halo(Op::Max)?;
        view.close()?;
    }
    let all = array.gather(&indices(shape))?;
    assert!(
        all.into_iter()
            .eq((0..plan.len()).map(|number| value(number, 3)))
    );
    world.barrier()
}
