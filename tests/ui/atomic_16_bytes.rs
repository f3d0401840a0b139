//! UCX has no atomics of 16 bytes.
use pgas::{GlobalArray, World};

fn main() -> pgas::Result<()> {
    World::run(|world| {
        let array = GlobalArray::<u128>::new(world, 10)?;
        array.swap(3, 1)?;
        Ok(())
    })
}
