//! Every rank says who it is: the first program to try with a new machine.
//!
//! ```console
//! $ ucxrun -n 4 target/release/examples/hello
//! ```
//!
//! The lines come in any order, as the ranks are separate processes.

use pgas::World;

fn main() -> pgas::Result<()> {
    World::run(|world| {
        let (major, minor, patch) = pgas::ucx::version();
        println!(
            "hello from rank {} of {} (process {}, UCX {major}.{minor}.{patch})",
            world.rank(),
            world.size(),
            std::process::id(),
        );
        Ok(())
    })
}
