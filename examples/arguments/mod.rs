//! The command line of a program on many ranks: all have the same one, and one answers for all.

use clap::Parser;
use pgas::World;
use std::process::ExitCode;

/// Runs `body` with the program's arguments. If they are wrong, or help is asked for, rank 0 prints
/// what clap says.
pub fn with<A: Parser>(
    world: &World,
    body: impl FnOnce(&World, &A) -> pgas::Result<ExitCode>,
) -> pgas::Result<ExitCode> {
    match A::try_parse() {
        Ok(arguments) => body(world, &arguments),
        Err(error) => {
            if world.rank() == 0 {
                // If nobody reads it, there is nobody to tell.
                let _ = error.print();
            }
            Ok(ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2)))
        }
    }
}
