//! The process grid: how many parts each dimension is divided into.

use super::{Dist, Plan};

/// The grid that is asked for, or the one whose parts have the least surface.
///
/// # Errors
/// What is wrong with the plan.
pub(super) fn choose<const D: usize>(plan: &Plan<D>, ranks: usize) -> Result<[usize; D], String> {
    let mut given = [None; D];
    for d in 0..D {
        given[d] = match &plan.dists[d] {
            Dist::Whole => Some(1),
            Dist::Irregular(lens) if lens.is_empty() => {
                return Err(format!("dimension {d}: no lengths"));
            }
            Dist::Irregular(lens) => Some(lens.len()),
            _ => None,
        };
        if let (Some(grid), Some(parts)) = (plan.grid, given[d])
            && grid[d] != parts
        {
            let (dist, asked) = (&plan.dists[d], grid[d]);
            return Err(format!("dimension {d}: {dist:?} in {asked} parts"));
        }
    }
    let grid = match plan.grid {
        Some(grid) => grid,
        None => {
            let fixed: usize = given.iter().flatten().product();
            if fixed > ranks {
                return Err(format!("{fixed} parts on {ranks} ranks"));
            }
            let mut best = Best {
                cost: f64::INFINITY,
                grid: given.map(|parts| parts.unwrap_or(1)),
            };
            let mut grid = best.grid;
            search(plan, &given, 0, ranks / fixed, &mut grid, &mut best);
            best.grid
        }
    };
    let parts = grid.iter().try_fold(1_usize, |all, &n| all.checked_mul(n));
    match parts {
        Some(parts) if (1..=ranks).contains(&parts) => Ok(grid),
        _ => Err(format!("a grid of {grid:?} on {ranks} ranks")),
    }
}

struct Best<const D: usize> {
    cost: f64,
    grid: [usize; D],
}

/// Tries all factorisations of `rest` over the dimensions from `d` on that are free.
fn search<const D: usize>(
    plan: &Plan<D>,
    given: &[Option<usize>; D],
    d: usize,
    rest: usize,
    grid: &mut [usize; D],
    best: &mut Best<D>,
) {
    if d == D {
        let cost = cost(plan, grid);
        // At equal cost the first found, which divides the first dimensions: whole rows.
        if rest == 1 && cost < best.cost {
            *best = Best { cost, grid: *grid };
        }
        return;
    }
    if given[d].is_some() {
        return search(plan, given, d + 1, rest, grid, best);
    }
    for parts in (1..=rest).rev().filter(|parts| rest.is_multiple_of(*parts)) {
        grid[d] = parts;
        search(plan, given, d + 1, rest / parts, grid, best);
    }
}

/// The surface of a part for its volume. More parts than indices cost more than any surface.
#[expect(clippy::cast_precision_loss, reason = "compared, not counted with")]
fn cost<const D: usize>(plan: &Plan<D>, grid: &[usize; D]) -> f64 {
    (0..D)
        .map(|d| {
            let (parts, len) = (grid[d] as f64, plan.shape[d].max(1) as f64);
            if parts > len {
                1e3 * parts
            } else {
                parts / len
            }
        })
        .sum()
}
