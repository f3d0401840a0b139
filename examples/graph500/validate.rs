//! The five checks of the specification.

use crate::search::{NONE, level, parent};
use pgas::{GlobalArray, Op, World};

/// What the checks have found, on all ranks together.
pub struct Found {
    /// Edges of the list that the search has traversed.
    pub edges: u64,
    /// For each check, how often it failed.
    pub failures: [u64; 5],
}

/// Checks the tree of a search from `root` against the list of edges. Collective.
pub fn validate(
    world: &World,
    edges: &[[usize; 2]],
    root: usize,
    tree: &mut GlobalArray<u64>,
) -> pgas::Result<Found> {
    let mut failures = [0; 5];
    let start = tree.local_range().start;
    let entries = tree.read()?;
    // This rank's vertices of the tree, and their entries.
    let reached = || {
        (start..)
            .zip(entries.iter().copied())
            .filter(|(_, e)| *e != NONE)
    };
    let known = |vertex: usize| vertex < entries.global_len();

    // 1: it is a tree. Who goes to the parent, then to that one's, and so on, comes to the root.
    let mut strays: Vec<usize> = Vec::new();
    let mut ancestors = GlobalArray::<u64>::new(world, entries.global_len())?;
    ancestors.fill(NONE)?;
    let mut view = ancestors.local()?;
    for (vertex, entry) in reached() {
        let parent = parent(entry);
        match known(parent) && (vertex != root || parent == root) {
            true => view[vertex - start] = parent as u64,
            false => failures[0] += 1,
        }
        if parent != root {
            strays.push(vertex);
        }
    }
    view.close()?;
    // Each round doubles the steps that have been taken.
    for _ in 0..=entries.global_len().ilog2() {
        if world.all_reduce(strays.len() as u64, Op::Sum)? == 0 {
            break;
        }
        let now = ancestors.gather(&strays)?;
        let inside: Vec<usize> = now
            .iter()
            .map(|&a| parent(a))
            .filter(|&a| known(a))
            .collect();
        let mut beyond = ancestors.gather(&inside)?.into_iter();
        let next = |&ancestor: &u64| match known(parent(ancestor)) {
            true => beyond.next().unwrap_or(NONE),
            false => NONE,
        };
        let next: Vec<u64> = now.iter().map(next).collect();
        world.barrier()?; // all have read
        ancestors.scatter(&strays, &next)?;
        world.barrier()?; // all have written
        let arrived = strays.iter().zip(&next).filter(|(_, a)| **a != root as u64);
        strays = arrived.map(|(&vertex, _)| vertex).collect();
    }
    failures[0] += strays.len() as u64;
    ancestors.close()?;

    // 2: a vertex is one level below its parent.
    let below = |&(vertex, entry): &(usize, u64)| vertex != root && known(parent(entry));
    let children: Vec<(usize, u64)> = reached().filter(below).collect();
    let parents: Vec<usize> = children.iter().map(|&(_, entry)| parent(entry)).collect();
    for ((_, child), above) in children.iter().zip(entries.gather(&parents)?) {
        failures[1] += u64::from(above == NONE || level(*child) != level(above) + 1);
    }

    // 3: an edge's ends are on the same level or on neighbouring ones. 4: both are in the tree or
    // neither, so that the tree spans all that hangs together. 5: all edges of the tree are in the list.
    let ends: Vec<usize> = edges.iter().flatten().copied().collect();
    let found = entries.gather(&ends)?;
    let mut traversed = 0;
    let mut joined = GlobalArray::<u8>::new(world, entries.global_len())?;
    joined.update(Op::Max, |joined| {
        for (&[u, v], &[at_u, at_v]) in edges.iter().zip(found.as_chunks::<2>().0) {
            if at_u == NONE && at_v == NONE {
                continue;
            }
            if at_u == NONE || at_v == NONE {
                failures[3] += 1;
                continue;
            }
            traversed += 1;
            failures[2] += u64::from(level(at_u).abs_diff(level(at_v)) > 1);
            for (child, entry, other) in [(u, at_u, v), (v, at_v, u)] {
                if parent(entry) == other {
                    joined.push(child, 1)?;
                }
            }
        }
        Ok(())
    })?;
    let joined_view = joined.read()?;
    for (vertex, _) in reached() {
        failures[4] += u64::from(vertex != root && joined_view[vertex - start] == 0);
    }
    joined_view.close()?;
    joined.close()?;
    let root_reached = entries.get(root)? != NONE;
    entries.close()?;

    if world.rank() == 0 && !root_reached {
        failures[0] += 1;
    }
    let mut sums = [traversed, 0, 0, 0, 0, 0];
    sums[1..].copy_from_slice(&failures);
    world.all_reduce_slice(&mut sums, Op::Sum)?;
    let [edges, failures @ ..] = sums;
    Ok(Found { edges, failures })
}
