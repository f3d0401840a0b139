//! Topological sort of the bale suite: makes a matrix triangular again whose rows and columns have
//! been shuffled.
//!
//! ```console
//! $ ucxrun -n 4 target/release/examples/toposort [-n ROWS] [-Z NONZEROS] [--seed SEED]
//! ```
//!
//! A row with a single nonzero is the last but those that were found before, and so is that
//! nonzero's column. Taken away, they leave other rows with a single nonzero. Each rank counts the
//! nonzeros of its rows and sums their columns: of a single one the sum is the column. All ranks
//! take the rows away that they have found, in levels: they read the columns' rows, on any rank, and send the
//! rows' owners what to take off.

mod arguments;
#[path = "bale/check.rs"]
mod check;
mod lines;
#[path = "bale/matrix.rs"]
mod matrix;
#[path = "bale/permutation.rs"]
mod permutation;
mod random;

use clap::Parser;
use lines::{Lines, index};
use pgas::{GlobalArray, Op, Ragged, World};
use std::process::ExitCode;
use std::time::Instant;

/// Sorts the rows and columns of a shuffled triangular matrix.
#[derive(Parser)]
struct Arguments {
    /// Rows of the matrix for each rank
    #[arg(short = 'n', long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..1 << 24))]
    rows: u32,
    /// Nonzeros of a row on average, that on the diagonal included
    #[arg(short = 'Z', long, default_value_t = 10.0)]
    nonzeros: f64,
    /// Another matrix for each
    #[arg(short, long, default_value_t = 1)]
    seed: u64,
}

fn main() -> pgas::Result<ExitCode> {
    World::run(|world| arguments::with(world, measure))
}

fn measure(world: &World, arguments: &Arguments) -> pgas::Result<ExitCode> {
    let len = arguments.rows as usize * world.size();
    let p = 2.0 * (arguments.nonzeros - 1.0) / (len as f64 - 1.0).max(1.0);
    if !(0.0..1.0).contains(&p) {
        if world.rank() == 0 {
            eprintln!(
                "toposort: {} nonzeros in a row of a triangular matrix of {len}",
                arguments.nonzeros
            );
        }
        return Ok(ExitCode::from(2));
    }
    let (rows, columns) = shuffled(world, len, p, random::mix(arguments.seed))?;
    let all = world.all_reduce(rows.others.len() as u64, Op::Sum)?;

    world.barrier()?;
    let begin = Instant::now();
    let mut sorted = sort(world, len, &rows, &columns)?;
    let time = world.all_reduce(begin.elapsed().as_secs_f64(), Op::Max)?;

    let wrong = verify(world, &rows, &mut sorted)?;
    if world.rank() == 0 {
        println!(
            "{len} rows and columns with {all} nonzeros by {} ranks: {time:.3} s, {:.1} million nonzeros/s, {} levels",
            world.size(),
            all as f64 / time / 1e6,
            sorted.levels
        );
        match wrong {
            0 => println!("verified: triangular again, with ones on the diagonal"),
            _ => println!("WRONG: {wrong} rows, columns or nonzeros are not in their places"),
        }
    }
    sorted.rows.close()?;
    sorted.columns.close()?;
    Ok(match wrong {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// A random triangular matrix with its rows and columns shuffled, by rows and by columns.
fn shuffled(world: &World, len: usize, p: f64, seed: u64) -> pgas::Result<(Lines, Lines)> {
    let (row_order, _) = permutation::random(world, len, seed)?;
    let (column_order, _) = permutation::random(world, len, !seed)?;
    let nonzeros = matrix::triangular(row_order.local_range(), len, p, seed);
    let of = |order: &GlobalArray<u64>, d: usize| {
        let places: Vec<usize> = nonzeros.iter().map(|nonzero| nonzero[d]).collect();
        order.gather(&places)
    };
    let (rows, columns) = (of(&row_order, 0)?, of(&column_order, 1)?);
    let pairs = || {
        rows.iter()
            .map(|&row| index(row))
            .zip(columns.iter().map(|&c| index(c)))
    };
    let by_row = Lines::collect(
        world,
        &row_order,
        pairs().map(|(row, column)| [row, column]),
    )?;
    let by_column = Lines::collect(
        world,
        &column_order,
        pairs().map(|(row, column)| [column, row]),
    )?;
    row_order.close()?;
    column_order.close()?;
    Ok((by_row, by_column))
}

/// Where the rows and columns go.
struct Sorted {
    rows: GlobalArray<u64>,
    columns: GlobalArray<u64>,
    levels: u64,
}

fn sort(world: &World, len: usize, rows: &Lines, columns: &Lines) -> pgas::Result<Sorted> {
    let (column_lines, column_rows) = matrix::share(world, columns)?;
    let mut sorted = Sorted {
        rows: GlobalArray::new(world, len)?,
        columns: GlobalArray::new(world, len)?,
        levels: 0,
    };
    let lines = 0..rows.mine.len();
    let mut counts: Vec<usize> = lines.clone().map(|k| rows.line(k).len()).collect();
    let mut sums: Vec<usize> = lines.clone().map(|k| rows.line(k).iter().sum()).collect();
    // This rank's rows with a single nonzero, by their number here.
    let mut single: Vec<usize> = lines.filter(|&k| counts[k] == 1).collect();
    let mut found = 0;
    loop {
        let before = world.exscan(single.len(), Op::Sum)?.unwrap_or(0);
        let all = world.all_reduce(single.len(), Op::Sum)?;
        // More than there are: no triangular matrix.
        if all == 0 || found + all > len {
            break;
        }
        let my_rows: Vec<usize> = single.iter().map(|&k| rows.mine.start + k).collect();
        let my_columns: Vec<usize> = single.iter().map(|&k| sums[k]).collect();
        // From the last place left on.
        let left = len - found - before;
        let places: Vec<u64> = (1..=single.len()).map(|k| (left - k) as u64).collect();
        sorted.rows.scatter(&my_rows, &places)?;
        sorted.columns.scatter(&my_columns, &places)?;

        // All rows that have a nonzero in these columns have one less.
        let lines = column_lines.gather(&my_columns)?;
        let range = |line: &[u64; 2]| index(line[0])..index(line[1]);
        let indices: Vec<usize> = lines.iter().flat_map(range).collect();
        let mut less = column_rows.gather(&indices)?.into_iter();
        let mut outgoing = vec![Vec::new(); world.size()];
        for (line, column) in lines.iter().zip(&my_columns) {
            for row in less.by_ref().take(range(line).len()) {
                let owner = sorted.rows.owner(index(row))?;
                outgoing[owner].push([row, *column as u64]);
            }
        }
        let messages: Ragged<[u64; 2]> = outgoing.iter().collect();
        single.clear();
        for &[row, column] in world.all_to_all_ragged(&messages)?.values() {
            let k = index(row) - rows.mine.start;
            counts[k] -= 1;
            sums[k] -= index(column);
            if counts[k] == 1 {
                single.push(k);
            }
        }
        // Of two columns taken away from one row at once, the first may have made it look single.
        single.retain(|&k| counts[k] == 1);
        found += all;
        sorted.levels += 1;
    }
    column_lines.close()?;
    column_rows.close()?;
    Ok(sorted)
}

/// How many rows, columns and nonzeros are not where they must be in a triangular matrix.
fn verify(world: &World, rows: &Lines, sorted: &mut Sorted) -> pgas::Result<u64> {
    let mut wrong = check::missing(world, &mut sorted.rows)?;
    wrong += check::missing(world, &mut sorted.columns)?;
    let nonzeros: Vec<[usize; 2]> = matrix::nonzeros(rows).collect();
    let of = |places: &GlobalArray<u64>, d: usize| {
        let indices: Vec<usize> = nonzeros.iter().map(|nonzero| nonzero[d]).collect();
        places.gather(&indices)
    };
    let (new_rows, new_columns) = (of(&sorted.rows, 0)?, of(&sorted.columns, 1)?);
    let pairs = || new_rows.iter().zip(&new_columns);
    let below = pairs().filter(|(row, column)| row > column).count();
    let diagonal = pairs().filter(|(row, column)| row == column).count();
    let mine = (below + rows.mine.len().abs_diff(diagonal)) as u64;
    Ok(wrong + world.all_reduce(mine, Op::Sum)?)
}
