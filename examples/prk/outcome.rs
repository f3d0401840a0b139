//! The lines that a kernel prints.

use pgas::World;
use std::process::ExitCode;

/// What a kernel has found, the same on all ranks.
pub struct Outcome {
    pub valid: bool,
    /// What was computed and what it should be.
    pub found: String,
    /// As `MFlops/s`.
    pub unit: &'static str,
    /// Millions of these in one iteration.
    pub amount: f64,
    /// Seconds of one iteration.
    pub time: f64,
}

impl Outcome {
    /// Rank 0 prints it.
    pub fn report(&self, world: &World) -> ExitCode {
        if world.rank() == 0 {
            match self.valid {
                true => println!("Solution validates\n{}", self.found),
                false => println!("ERROR: {}", self.found),
            }
            println!(
                "Rate ({}): {:.6} Avg time (s): {:.6}",
                self.unit,
                self.amount / self.time,
                self.time
            );
        }
        match self.valid {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        }
    }
}

/// Rank 0 says why these arguments will not do.
pub fn refuse(world: &World, why: &str) -> pgas::Result<ExitCode> {
    if world.rank() == 0 {
        eprintln!("ERROR: {why}");
    }
    Ok(ExitCode::from(2))
}
