//! A token goes round the ring of ranks through an array with one place for each rank.
//!
//! ```console
//! $ ucxrun -n 4 target/release/examples/ring
//! ```
//!
//! With MPI this is a chain of sends and receives. Here nobody receives: each rank looks at its
//! own place until its left neighbour has put the token there, and puts it into its right
//! neighbour's place.

use pgas::{GlobalArray, Op, World};
use std::process::ExitCode;
use std::time::Instant;

/// Times the token goes round.
const ROUNDS: u64 = 1000;

fn main() -> pgas::Result<ExitCode> {
    World::run(|world| {
        let (rank, size) = (world.rank(), world.size());
        let right = (rank + 1) % size;

        // One element for each rank, all zero: no token has come yet.
        let place = GlobalArray::<u64>::new(world, size)?;
        let mut wrong = 0;

        let begin = Instant::now();
        for round in 0..ROUNDS {
            // The token counts its hops, so each rank knows which value comes next.
            let hops = round * size as u64 + rank as u64;
            if hops > 0 {
                // Each rank was passed by the token once a round, and it left a 0 behind.
                let mut token = place.swap(rank, 0)?;
                while token == 0 {
                    std::thread::yield_now();
                    token = place.swap(rank, 0)?;
                }
                if token != hops {
                    eprintln!("rank {rank}: the token is {token}, not {hops}");
                    wrong += 1;
                }
            }
            if round + 1 < ROUNDS || right != 0 {
                // An atomic operation is there when it returns; a `put` would need a `flush`.
                place.swap(right, hops + 1)?;
            }
        }
        let time = begin.elapsed().as_secs_f64();

        let wrong = world.all_reduce(wrong, Op::Sum)?;
        if rank == 0 {
            let hops = ROUNDS * size as u64 - 1;
            println!(
                "{hops} hops, {:.2} µs each",
                time / hops.max(1) as f64 * 1e6
            );
            println!(
                "{}",
                match wrong {
                    0 => "verified: every rank saw every token in its turn".to_owned(),
                    _ => format!("WRONG: {wrong} tokens"),
                }
            );
        }
        place.close()?;
        Ok(match wrong {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        })
    })
}
