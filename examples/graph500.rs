//! Graph500: breadth-first searches in a large random graph.
//!
//! ```console
//! $ ucxrun -n 4 target/release/examples/graph500 [SCALE] [EDGEFACTOR]
//! ```
//!
//! A Kronecker graph of 2^SCALE vertices and EDGEFACTOR times as many edges is made into lists of
//! neighbours (kernel 1) and searched from 64 roots (kernel 2). Each search's tree passes the five
//! checks of the specification. The result is in TEPS, traversed edges per second.

mod arguments;
#[path = "graph500/kronecker.rs"]
mod kronecker;
mod lines;
#[path = "bale/permutation.rs"]
mod permutation;
mod random;
#[path = "graph500/search.rs"]
mod search;
#[path = "graph500/validate.rs"]
mod validate;

use clap::Parser;
use lines::Lines;
use pgas::{GlobalArray, Op, World};
use std::process::ExitCode;
use std::time::Instant;

/// Searches a random graph.
#[derive(Parser)]
struct Arguments {
    /// The graph has 2^SCALE vertices
    #[arg(default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=31))]
    scale: u32,
    /// Edges for each vertex
    #[arg(default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    edgefactor: u32,
    /// Searches
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    roots: u32,
    /// Another graph for each
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> pgas::Result<ExitCode> {
    World::run(|world| arguments::with(world, measure))
}

fn measure(world: &World, arguments: &Arguments) -> pgas::Result<ExitCode> {
    let vertices = 1_usize << arguments.scale;
    let all = u64::from(arguments.edgefactor) << arguments.scale;
    let seed = random::mix(arguments.seed);
    let edges = kronecker::edges(world, arguments.scale, all, seed)?;
    let mut tree = GlobalArray::<u64>::new(world, vertices)?;

    world.barrier()?;
    let begin = Instant::now();
    // Both ways, without loops from a vertex to itself.
    let both = edges.iter().flat_map(|&[u, v]| [[u, v], [v, u]]);
    let graph = Lines::collect(world, &tree, both.filter(|[u, v]| u != v))?;
    let construction = slowest(world, begin)?;

    let roots = roots(world, &graph, vertices, arguments)?;
    let mut times = Vec::new();
    let mut rates = Vec::new();
    let mut failures = [0; 5];
    for &root in &roots {
        world.barrier()?;
        let begin = Instant::now();
        search::search(world, &graph, root, &mut tree)?;
        let time = slowest(world, begin)?;
        let found = validate::validate(world, &edges, root, &mut tree)?;
        times.push(time);
        rates.push(found.edges as f64 / time);
        for (sum, count) in failures.iter_mut().zip(found.failures) {
            *sum += count;
        }
    }
    tree.close()?;

    let valid = failures == [0; 5] && !roots.is_empty();
    if world.rank() == 0 {
        println!("SCALE: {}", arguments.scale);
        println!("edgefactor: {}", arguments.edgefactor);
        println!("NBFS: {}", roots.len());
        println!("num_ranks: {}", world.size());
        println!("construction_time: {construction:.6}");
        times.sort_by(f64::total_cmp);
        rates.sort_by(f64::total_cmp);
        for (name, values) in [("time", &times), ("TEPS", &rates)] {
            let quarter = |k: usize| values.get((values.len().max(1) - 1) * k / 4);
            for (k, part) in ["min", "firstquartile", "median", "thirdquartile", "max"]
                .iter()
                .enumerate()
            {
                println!("{part}_{name}: {:.6}", quarter(k).unwrap_or(&f64::NAN));
            }
        }
        let (mean, deviation) = harmonic(&rates);
        println!("harmonic_mean_TEPS: {mean:.1}\nharmonic_stddev_TEPS: {deviation:.1}");
        match valid {
            true => println!(
                "validation: all {} trees passed the five checks",
                roots.len()
            ),
            false => println!("validation FAILED: {failures:?} failures of the five checks"),
        }
    }
    Ok(match valid {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn slowest(world: &World, begin: Instant) -> pgas::Result<f64> {
    world.all_reduce(begin.elapsed().as_secs_f64(), Op::Max)
}

/// Different vertices with at least one neighbour, chosen at random; fewer if there are not so
/// many. The same on all ranks.
fn roots(
    world: &World,
    graph: &Lines,
    vertices: usize,
    arguments: &Arguments,
) -> pgas::Result<Vec<usize>> {
    let degrees: Vec<u64> = graph
        .starts
        .windows(2)
        .map(|w| (w[1] - w[0]) as u64)
        .collect();
    let degrees = GlobalArray::from_local(world, &degrees)?;
    let (order, _) = permutation::random(world, vertices, !random::mix(arguments.seed))?;
    let mut roots = Vec::new();
    let block = 1024;
    for start in (0..vertices).step_by(block) {
        let candidates = order.get_range(start..vertices.min(start + block))?;
        let candidates: Vec<usize> = candidates.into_iter().map(lines::index).collect();
        let degrees = degrees.gather(&candidates)?;
        let connected = candidates
            .iter()
            .zip(degrees)
            .filter(|(_, degree)| *degree > 0);
        roots.extend(connected.map(|(&vertex, _)| vertex));
        if roots.len() >= arguments.roots as usize {
            break;
        }
    }
    roots.truncate(arguments.roots as usize);
    order.close()?;
    degrees.close()?;
    Ok(roots)
}

/// The harmonic mean, and the standard deviation of that mean.
fn harmonic(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().map(|value| 1.0 / value).sum::<f64>() / count;
    let squares = values.iter().map(|value| (1.0 / value - mean).powi(2));
    let deviation = (squares.sum::<f64>() / (count - 1.0)).sqrt();
    (1.0 / mean, deviation / (count - 1.0).sqrt() / mean.powi(2))
}
