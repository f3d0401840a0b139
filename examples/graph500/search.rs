//! Breadth-first search.

use crate::lines::Lines;
use pgas::{GlobalArray, Op, World};

/// Of a vertex that was not reached.
pub const NONE: u64 = u64::MAX;

/// The bits of an entry that name the parent; those above are the level.
const PARENT_BITS: u32 = 48;

/// The parent in an entry.
pub fn parent(entry: u64) -> usize {
    (entry & ((1 << PARENT_BITS) - 1)) as usize
}

/// The level in an entry: edges from the root.
pub fn level(entry: u64) -> u64 {
    entry >> PARENT_BITS
}

/// For each vertex its level and its parent in a tree of shortest ways from `root`. Collective.
///
/// Level by level: each rank pushes its vertices of the level to all their neighbours as parents. An
/// entry keeps the least of what is pushed, so that of an earlier level.
pub fn search(
    world: &World,
    graph: &Lines,
    root: usize,
    tree: &mut GlobalArray<u64>,
) -> pgas::Result<()> {
    tree.fill(NONE)?;
    // Vertices that this rank has pushed to, or holds and has found reached.
    let mut seen = vec![0_u64; tree.len().div_ceil(64)];
    let mut first = |vertex: usize| {
        let (word, bit) = (&mut seen[vertex / 64], 1 << (vertex % 64));
        let first = *word & bit == 0;
        *word |= bit;
        first
    };
    let mut frontier = Vec::new();
    let mine = graph.mine.clone();
    if mine.contains(&root) {
        tree.put(root, root as u64)?;
        first(root);
        frontier.push(root);
    }
    let mut depth = 0;
    while world.all_reduce(frontier.len() as u64, Op::Sum)? > 0 {
        depth += 1;
        let tag = depth << PARENT_BITS;
        tree.update(Op::Min, |tree| {
            for &vertex in &frontier {
                for &neighbour in graph.line(vertex - mine.start) {
                    if first(neighbour) {
                        tree.push(neighbour, tag | vertex as u64)?;
                    }
                }
            }
            Ok(())
        })?;
        let view = tree.read()?;
        let reached = view.iter().zip(mine.clone());
        let reached = reached.filter(|(entry, _)| **entry != NONE && level(**entry) == depth);
        frontier = reached.map(|(_, vertex)| vertex).collect();
        view.close()?;
        frontier.iter().for_each(|&vertex| {
            first(vertex);
        });
    }
    Ok(())
}
